"""Fake and paced models, and the contract of every engine; for tests of LocalSpec and of new engines."""
