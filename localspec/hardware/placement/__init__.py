"""The placement of models on this machine, and its reasons."""
