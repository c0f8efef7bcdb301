"""Checks for common problems, each with the command that fixes it."""
