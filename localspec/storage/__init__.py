"""Files that the user and LocalSpec write: settings, profiles and measurements."""
