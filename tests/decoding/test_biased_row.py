"""A row with a bias says what a copy of the row with the bias added would say."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.decoding.biased_row import Bias
from localspec.decoding.constraint import TokenRules
from localspec.errors import LogitsError
from localspec.types.candidates import FullRow, Logits
from localspec.types.drafts import TokenMask

SIZE = 400
BIASES: dict[str, Bias] = {
    "bans": ((3, -100.0), (7, -100.0)),
    "lowers": ((3, -1.5), (399, -0.25)),
    "raises": ((3, 4.0), (12, 0.5)),
    "both": ((3, 4.0), (12, -3.0), (13, 1e300), (5, -1e300)),
    "of tokens that the row lacks": ((SIZE, 5.0), (2, -1.0)),
    "of many": tuple((token, float(token % 7 - 3)) for token in range(0, SIZE, 2)),
    "of all": tuple((token, -100.0) for token in range(SIZE)),
}


def by_copy(row: Logits, bias: Bias) -> Logits:
    """Return a copy of a row with a bias: -100 and less ban a token, and none is beyond all bounds."""
    copied = row.copy()
    for token, value in bias:
        if token < len(row):
            copied[token] += np.float32(-1e10 if value <= -100 else min(value, 1e10))
    return copied


def rows(kind: str) -> list[FullRow]:
    """Return rows with distinct logits, or with many ties."""
    random = np.random.default_rng(11)
    found = []
    for _ in range(40):
        row = (random.normal(size=SIZE) * 3).astype(np.float32)
        found.append(FullRow(row.round() if kind == "ties" else row))
    return found


@pytest.mark.parametrize("kind", ["distinct", "ties"])
@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
def test_it_is_as_a_copy_with_the_bias_added(bias: Bias, kind: str) -> None:
    mask = TokenMask(np.arange(0, SIZE, 3))
    for row in rows(kind):
        before = row.logits.copy()
        biased = TokenRules(bias).biased(row)
        copied = FullRow(by_copy(row.logits, bias))
        assert biased.best() == copied.best()
        for count in (1, 2, 40):
            assert biased.top(count) == copied.top(count)
        assert biased.among(mask, 5) == copied.among(mask, 5)
        assert biased.lead(1.0) == copied.lead(1.0)
        assert (biased.logits == copied.logits).all()
        assert (row.logits == before).all()


def test_rows_of_two_sizes_have_their_own_tokens() -> None:
    """A draft model may know fewer tokens."""
    rules = TokenRules(((1, -100.0), (3, 9.0)))
    large, small = (FullRow(np.array(row, np.float32)) for row in ([0, 5, 1, 0], [0, 5, 1]))
    for _ in range(2):
        assert rules.biased(large).best() == 3
        assert rules.biased(small).best() == 2


def test_more_tokens_than_there_are_is_all_of_them() -> None:
    row = FullRow(np.array([1.0, 2.0, 3.0], np.float32))
    assert TokenRules(((2, -5.0),)).biased(row).top(10) == ([1, 0, 2], [2.0, 1.0, -2.0])


@pytest.mark.parametrize("place", [0, 3])
def test_a_row_that_is_not_numbers_is_noticed(place: int) -> None:
    logits = np.zeros(SIZE, np.float32)
    logits[place] = np.nan
    row = TokenRules(((3, -100.0),)).biased(FullRow(logits))
    with pytest.raises(LogitsError):
        row.best()
    with pytest.raises(LogitsError):
        row.top(3)
