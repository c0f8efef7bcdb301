"""The kept conversations, in SQLite."""
