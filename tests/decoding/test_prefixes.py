"""How far two texts are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.prefixes import _BLOCK, begin_alike, common_prefix

TOKENS = st.lists(st.integers(0, 1), max_size=4)


def shared(left: Sequence[int], right: Sequence[int]) -> int:
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))])


@given(left=TOKENS, right=TOKENS, start=TOKENS, padding=st.integers(0, 3 * _BLOCK), as_tuple=st.booleans())
def test_any_two_texts(
    left: list[int], right: list[int], start: list[int], padding: int, *, as_tuple: bool
) -> None:
    kind: Callable[[list[int]], Sequence[int]] = tuple if as_tuple else list
    one, other = kind([*start, *[7] * padding, *left]), [*start, *[7] * padding, *right]
    found = shared(one, other)
    assert common_prefix(one, other) == common_prefix(other, one) == found
    for length in {-1, 0, 1, found - 1, found, found + 1, len(one), len(one) + 1}:
        assert begin_alike(one, other, length) == (length <= found)


@pytest.mark.parametrize("length", [0, 1, _BLOCK - 1, _BLOCK, _BLOCK + 1, 2 * _BLOCK])
def test_texts_that_end_at_the_edge_of_a_block(length: int) -> None:
    text = [*range(length)]
    assert common_prefix(text, [*text, 1]) == length
    assert common_prefix(text, text) == length
