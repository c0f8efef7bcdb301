"""Markdown as blocks of text, whole or still being written."""
