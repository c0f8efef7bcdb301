"""Constraints on an answer's tokens in addition to `Sampling`: a bias for some, and a grammar that bans many.

Both change the distributions of the target and the draft model in the same way, so they still agree.
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
_BANNED = -1e10  # practically impossible, and yet finite: if all tokens are banned, the best is taken
_MOST = 1e10  # by more no token is likelier


class Constraint(Protocol):
    """The tokens that may follow a text, which begins with the prompt and may shrink to drop drafts.

    For one thread at a time; another thread uses a copy.
    """

    def mask(self, text: Sequence[int]) -> TokenMask | None:
        """Return the tokens that may follow, at least one; None means all."""

    def copy(self) -> Constraint:
        """Return another that says the same."""


@dataclass(frozen=True, slots=True)
class ForcedTokens:
    """Tokens forced at a position of the text; `elsewhere` applies around them."""

    start: int
    tokens: tuple[int, ...]
    elsewhere: Constraint | None = None

    def mask(self, text: Sequence[int]) -> TokenMask | None:
        """Return the tokens that may follow, at least one; None means all."""
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
        """Return the tokens that may follow a text; None means all."""
        return None if self.constraint is None else self.constraint.mask(text)

    def accepts(self, text: Sequence[int], tokens: Sequence[int]) -> int:
        """Return the number of leading tokens that are allowed."""
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
