"""The chat screen, and the screens on top of it."""
