"""Model files: what they are, where they lie, where they come from, and which draft serves which target."""
