"""Tools in a chat: how they are offered, how their calls are read, allowed and run."""
