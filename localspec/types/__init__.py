"""Values that cross borders: frozen, slotted, picklable; no native pointers, no input or output.

Sizes are in bytes, times in seconds (`_s`), token ids plain `int`.
"""
