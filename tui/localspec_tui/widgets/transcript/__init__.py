"""The conversation as it is read."""
