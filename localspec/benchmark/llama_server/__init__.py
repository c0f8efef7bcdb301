"""llama.cpp's own server as a contender."""
