"""llama.cpp behind a small interface; nothing native is loaded before first use."""
