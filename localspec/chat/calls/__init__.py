"""Calls of tools in what a model writes: the form its template gives them, and how they are read."""
