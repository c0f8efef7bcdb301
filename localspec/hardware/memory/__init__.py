"""What models take of each device, and whether that fits."""
