"""The terminal screens of LocalSpec."""
