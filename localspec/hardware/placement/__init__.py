"""Who sits where on this machine, and why."""
