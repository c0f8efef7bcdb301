"""The version of LocalSpec; it stands alone so that everything may read it."""

__version__ = "0.2.0"
