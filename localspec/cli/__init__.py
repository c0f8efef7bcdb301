"""The command line: one module per verb; it reads arguments and prints, nothing else."""
