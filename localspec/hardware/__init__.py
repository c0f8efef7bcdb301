"""This machine: what it has, how fast it is, what fits, and where models sit best."""
