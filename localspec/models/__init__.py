"""Model files: their kinds, places and sources, and which draft model fits which target."""
