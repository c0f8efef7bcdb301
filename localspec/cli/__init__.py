"""The command line: one module per command; it reads arguments and prints, nothing else."""
