"""Slash commands: each is declared once, in `registry`, for the screen and for `localspec chat`."""
