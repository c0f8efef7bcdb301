"""A row of logits with a bias on a few of its tokens: never copied where the few best tokens decide."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from localspec.types.candidates import Candidates, FullRow, Ids, Logits
from localspec.types.drafts import TokenMask

Bias = tuple[tuple[int, float], ...]

_BAN = -100.0
_BANNED = -1e10  # practically impossible, and yet finite: if all tokens are banned, the best is taken
_MOST = 1e10  # by more no token is likelier
_MOST_TOKENS = 64  # that are looked at apart: for more, a copy of the row costs less


class Additions(NamedTuple):
    """A bias as what is added to the logits of some tokens."""

    ids: Ids
    values: Logits
    tokens: frozenset[int]
    only_lower: bool


def additions(bias: Bias, size: int) -> Additions:
    """Return a bias as arrays, without the tokens that rows of a size lack."""
    known = {token: _BANNED if value <= _BAN else min(value, _MOST) for token, value in bias if token < size}
    values = np.array(list(known.values()), np.float32)
    ids = np.array(list(known), np.int64)
    return Additions(ids, values, frozenset(known), bool((values <= 0).all()))


class BiasedRow(Candidates):
    """A row with a bias; the row itself stays as it is."""

    __slots__ = ("_added", "_row")

    def __init__(self, row: Candidates, added: Additions) -> None:
        """Take a row of which all logits are there, and what is added for a row of its size."""
        self._row = row
        self._added = added

    @property
    def logits(self) -> Logits:
        """Return a copy of all logits, with the bias."""
        logits = self._row.logits.copy()
        logits[self._added.ids] += self._added.values
        return logits

    def best(self) -> int:
        """Return the likeliest token."""
        best = self._row.best()
        if self._added.only_lower and best not in self._added.tokens:
            return best
        return self.top(1)[0][0]

    def top(self, count: int) -> tuple[list[int], list[float]]:
        """Return the likeliest tokens with their logits, best first."""
        added = self._added
        if len(added.tokens) > _MOST_TOKENS:
            return FullRow(self.logits).top(count)
        ids, logits = self._row.top(count + len(added.tokens))
        others = [
            (-value, token) for token, value in zip(ids, logits, strict=True) if token not in added.tokens
        ]
        values = self._row.logits.take(added.ids) + added.values
        own = zip((-values).tolist(), added.ids.tolist(), strict=True)
        found = sorted([*others, *own])[:count]
        return [token for _, token in found], [-value for value, _ in found]

    def among(self, mask: TokenMask, count: int) -> tuple[list[int], list[float]]:
        """Return the likeliest tokens that a mask allows, with their logits, best first."""
        return FullRow(self.logits).among(mask, count)

    def lead(self, sharpness: float) -> tuple[int, float]:
        """Return the likeliest token and its share."""
        return FullRow(self.logits).lead(sharpness)
