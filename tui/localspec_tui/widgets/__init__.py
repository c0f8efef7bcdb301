"""The parts of the screens; they get plain values, and report user actions by messages."""
