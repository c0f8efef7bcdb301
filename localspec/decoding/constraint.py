"""Constraints on an answer's tokens in addition to `Sampling`: a bias for some, and a grammar that bans many.

Both change the distributions of the target and the draft model in the same way, so they still agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from localspec.decoding.biased_row import Additions, Bias, BiasedRow, additions
from localspec.types.candidates import Candidates
from localspec.types.drafts import TokenMask


class Constraint(Protocol):
    """The tokens that may follow a text, which begins with the prompt and may shrink to drop drafts.

    For one thread at a time; another thread uses a copy.
    """

    @property
    def is_lazy(self) -> bool:
        """Whether it refuses nothing in most of an answer, so that `may_refuse` is worth asking."""

    def mask(self, text: Sequence[int]) -> TokenMask | None:
        """Return the tokens that may follow, at least one; None means all."""

    def may_refuse(self, text: Sequence[int], drafted: Sequence[int]) -> bool:
        """Return whether a token may be refused after a text, or after one of the tokens drafted for it."""

    def copy(self) -> Constraint:
        """Return another that says the same."""


@dataclass(frozen=True, slots=True)
class ForcedTokens:
    """Tokens forced at a position of the text; `elsewhere` applies around them."""

    start: int
    tokens: tuple[int, ...]
    elsewhere: Constraint | None = None

    @property
    def is_lazy(self) -> bool:
        """Whether nothing is refused in most of an answer."""
        return self.elsewhere is None or self.elsewhere.is_lazy

    def mask(self, text: Sequence[int]) -> TokenMask | None:
        """Return the tokens that may follow, at least one; None means all."""
        place = len(text) - self.start
        if 0 <= place < len(self.tokens):
            return TokenMask(np.array([self.tokens[place]], np.int64))
        return None if self.elsewhere is None else self.elsewhere.mask(text)

    def may_refuse(self, text: Sequence[int], drafted: Sequence[int]) -> bool:
        """Return whether a token may be refused after a text, or after one of the tokens drafted for it."""
        place = len(text) - self.start
        is_forced = place < len(self.tokens) and place + len(drafted) >= 0
        return is_forced or (self.elsewhere is not None and self.elsewhere.may_refuse(text, drafted))

    def copy(self) -> ForcedTokens:
        """Return another that says the same."""
        return self if self.elsewhere is None else replace(self, elsewhere=self.elsewhere.copy())


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The bias first, by token; then the constraint. Penalties and the other steps of sampling come after."""

    bias: Bias = ()
    constraint: Constraint | None = None
    _additions: dict[int, Additions] = field(default_factory=dict, repr=False, compare=False)  # by row size

    @property
    def are_lazy(self) -> bool:
        """Whether most of an answer is decoded as if there were none."""
        return not self.bias and (self.constraint is None or self.constraint.is_lazy)

    def copy(self) -> TokenRules:
        """Return the same rules for another thread."""
        return self if self.constraint is None else replace(self, constraint=self.constraint.copy())

    def biased(self, row: Candidates) -> Candidates:
        """Return a row with the bias."""
        if not self.bias:
            return row
        size = len(row.logits)
        added = self._additions.get(size)
        if added is None:
            added = self._additions[size] = additions(self.bias, size)
        return BiasedRow(row, added)

    def mask(self, text: Sequence[int]) -> TokenMask | None:
        """Return the tokens that may follow a text; None means all."""
        return None if self.constraint is None else self.constraint.mask(text)

    def apply(self, text: Sequence[int], drafted: Sequence[int]) -> bool:
        """Return whether they change anything about the tokens after a text and those drafted for it."""
        return bool(self.bias) or (self.constraint is not None and self.constraint.may_refuse(text, drafted))

    def accepts(self, text: Sequence[int], tokens: Sequence[int]) -> int:
        """Return the number of leading tokens that are allowed."""
        if self.constraint is None or not self.constraint.may_refuse(text, tokens):
            return len(tokens)
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
