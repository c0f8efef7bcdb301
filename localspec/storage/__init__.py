"""Files that people and LocalSpec write: settings, profiles, and what was measured."""
