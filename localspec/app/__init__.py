"""What the screen and the command line both do: from flags, configuration and profiles to opened models."""
