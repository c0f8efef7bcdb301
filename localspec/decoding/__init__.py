"""Decoding: drafts, their verification, and the text that comes of it; no llama.cpp."""
