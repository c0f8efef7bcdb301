"""A local chat assistant that speculates, exactly."""

__version__ = "0.1.0"
