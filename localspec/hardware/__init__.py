"""This machine: its devices, their speed and memory, and the placement of models."""
