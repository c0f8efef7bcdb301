"""The effect of any settings on traced answers, in virtual time."""
