"""Compare ways of decoding, ours and llama.cpp's own, in interleaved runs."""
