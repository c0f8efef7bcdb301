"""How far two texts are the same."""

from __future__ import annotations

from collections.abc import Sequence

_BLOCK = 256  # tokens that are compared at once, which is much faster than one by one


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the common prefix of two texts."""
    most = min(len(left), len(right))
    start = 0
    while start < most:
        end = min(start + _BLOCK, most)
        if [*left[start:end]] != [*right[start:end]]:
            return next(place for place in range(start, end) if left[place] != right[place])
        start = end
    return most


def begin_alike(left: Sequence[int], right: Sequence[int], length: int) -> bool:
    """Return whether the first `length` tokens of two texts are there, and the same."""
    if length > min(len(left), len(right)):
        return False
    # most texts that differ do so in the last of them
    return length <= 0 or (left[length - 1] == right[length - 1] and [*left[:length]] == [*right[:length]])
