"""Find the fastest exact way to decode on this machine, for each kind of task, and prove it."""
