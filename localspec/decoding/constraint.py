"""What is asked of an answer's tokens beside `Sampling`: a bias for some, and a grammar that refuses many.

Both change the target's distribution, and that of a draft model in the same way, so that they go on agreeing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.types.drafts import TokenMask

Logits = NDArray[np.float32]

_BAN = -100.0
_BANNED = -1e10  # no chance beside any other token, and yet a number: of banned ones alone the best is taken
_MOST = 1e10  # by more no token is likelier


class Constraint(Protocol):
    """Which tokens may follow a text, which begins with the prompt and may go back behind drafts at any time.

    One thread at a time; another one takes a copy.
    """

    def mask(self, text: Sequence[int]) -> TokenMask | None:
        """Return the tokens that may follow, at least one; None stands for all."""

    def copy(self) -> Constraint:
        """Return another that says the same."""


@dataclass(frozen=True, slots=True)
class ForcedTokens:
    """Tokens that stand at a place of the text, whatever the model wants; `elsewhere` holds around them."""

    start: int
    tokens: tuple[int, ...]
    elsewhere: Constraint | None = None

    def mask(self, text: Sequence[int]) -> TokenMask | None:
        """Return the tokens that may follow, at least one; None stands for all."""
        place = len(text) - self.start
        if 0 <= place < len(self.tokens):
            return TokenMask(np.array([self.tokens[place]], np.int64))
        return None if self.elsewhere is None else self.elsewhere.mask(text)

    def copy(self) -> ForcedTokens:
        """Return another that says the same."""
        return self if self.elsewhere is None else replace(self, elsewhere=self.elsewhere.copy())


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The bias first, by token; then the constraint. Penalties and the other steps of sampling come after."""

    bias: tuple[tuple[int, float], ...] = ()
    constraint: Constraint | None = None

    def copy(self) -> TokenRules:
        """Return the same rules for another thread."""
        return self if self.constraint is None else replace(self, constraint=self.constraint.copy())

    def biased(self, logits: Logits) -> Logits:
        """Return rows of logits, or one, with the bias added; tokens that the rows lack are left out."""
        known = {token: value for token, value in self.bias if token < logits.shape[-1]}
        if not known:
            return logits
        values = [_BANNED if value <= _BAN else min(value, _MOST) for value in known.values()]
        logits = logits.copy()
        logits[..., list(known)] += np.array(values, np.float32)
        return logits

    def mask(self, text: Sequence[int]) -> TokenMask | None:
        """Return the tokens that may follow a text; None stands for all."""
        return None if self.constraint is None else self.constraint.mask(text)

    def accepts(self, text: Sequence[int], tokens: Sequence[int]) -> int:
        """Return how many of some tokens may follow one after another."""
        for count, token in enumerate(tokens):
            mask = self.mask([*text, *tokens[:count]])
            if mask is not None and (token in mask.ids) == mask.are_refused:
                return count
        return len(tokens)

    def forced(self, text: Sequence[int]) -> list[int]:
        """Return the tokens that follow without a choice: each is the only one that may."""
        found: list[int] = []
        while len(found) < _LONGEST_FORCED:
            mask = self.mask([*text, *found])
            if mask is None or mask.are_refused or len(mask.ids) != 1:
                break
            found.append(mask.ids.item())
        return found


_LONGEST_FORCED = 32
