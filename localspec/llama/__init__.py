"""llama.cpp behind a small face; nothing native is loaded before first use."""
