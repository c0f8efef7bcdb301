"""The parts of the screens; they get plain values, and tell what was done to them by messages."""
