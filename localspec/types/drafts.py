"""What drafting and verifying hand to each other. Token ids are plain `int`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy costs 0.1 s at start-up, and this module is imported by `--help`
    import numpy as np
    from numpy.typing import NDArray

Token = tuple[int, bytes]
"""A token and its bytes."""


class DraftOrigin(Enum):
    """Who wrote a draft; also of one that was not worth sending and left empty."""

    NONE = "none"  # plain decoding
    FRESH = "fresh"  # the draft model, while the target waited
    AHEAD = "ahead"  # the draft model, while the target verified the round before
    NGRAM = "ngram"  # a repetition in the text; in mode ngram also what a grammar leaves no choice about


class Provenance(Enum):
    """Where an emitted token comes from."""

    TARGET = "target"  # the target's own: plain decoding, or the correction of a rejected draft token
    ACCEPTED = "accepted"  # drafted while the target waited, accepted
    PREPARED = "prepared"  # drafted ahead of time, accepted
    BONUS = "bonus"  # the target's own after a draft that was accepted in full


@dataclass(frozen=True, slots=True)
class Distribution:
    """A next-token distribution on its support."""

    ids: NDArray[np.int64] | None  # (n,); None is the whole vocabulary in order
    probs: NDArray[np.float64]  # (n,), sums to 1


@dataclass(frozen=True, slots=True)
class TokenMask:
    """The tokens that may follow: these alone, or all but these where they are fewer; ascending."""

    ids: NDArray[np.int64]
    are_refused: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed for the target to judge; the empty draft is plain decoding."""

    tokens: tuple[int, ...] = ()
    # the very distribution that each token was drawn from; None says that none was (q is one-hot)
    q: tuple[Distribution, ...] | None = field(default=None, compare=False, repr=False)
    origin: DraftOrigin = DraftOrigin.NONE
    copied: int = 0  # n-gram tokens at the end, after those of the draft model


@dataclass(frozen=True, slots=True)
class VerifyOutcome:
    """How many draft tokens were accepted, and the target's own after them: the key of prepared drafts."""

    accepted: int
    bonus: int
