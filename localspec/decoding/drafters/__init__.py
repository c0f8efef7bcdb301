"""Who writes drafts: the draft model, prompt lookup, both, or ahead of time."""
