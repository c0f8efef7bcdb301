"""Who writes drafts: the draft model, repetitions in the text, both, or ahead of time."""
