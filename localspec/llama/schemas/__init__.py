"""JSON schemas: what a grammar can enforce of one, and whether a finished value meets all of it."""
