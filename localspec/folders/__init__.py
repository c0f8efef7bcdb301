"""Folders and patterns in a prompt: what is in them, which of it is attached."""
