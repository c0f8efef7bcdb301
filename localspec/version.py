"""The version of LocalSpec; a separate module, so every package may import it."""

__version__ = "0.2.0"
