"""From rows of draft logits to proposed tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from localspec.engines.model import Rows
from localspec.sampling import draft_distribution, draw, penalises, top_candidates
from localspec.types import Distribution, EngineSettings, Sampling

CANDIDATES = 16  # a draft distribution over so many tokens loses next to nothing (prototype: top 12 to 16)
FOLDS = 16  # of a row of logits, to find its best token and its rivals in one pass
GUESSES = 12  # bonus tokens worth considering at one position

Guesses = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A drafted token, and what the draft model thought before it was chosen.

    `confidence` is the draft model's chance for its best token, `guesses` its best tokens with their
    chances, also those that sampling cuts off: what replaces a rejected token is often one of them. `q` is
    the distribution that the token was drawn from, None if it was chosen without chance.
    """

    token: int
    confidence: float
    guesses: Guesses
    q: Distribution | None

    @property
    def weight(self) -> float:
        """Return the draft model's chance for the token, 0 where it is not among its guesses."""
        return next((weight for token, weight in self.guesses if token == self.token), 0.0)


class Proposer:
    """Choose draft tokens as they will be judged: the best for greedy and `match`, else drawn from q."""

    def __init__(
        self,
        sampling: Sampling,
        settings: EngineSettings,
        random: np.random.Generator,
        vocabulary: int | None = None,
    ) -> None:
        """Take how the target chooses; ids from `vocabulary` on, which it lacks, are never proposed."""
        self._vocabulary = vocabulary
        self.deterministic = sampling.temperature <= 0 or settings.acceptance == "match"
        self._penalised = penalises(sampling)
        # A greedy target has no temperature of its own: the draft's plain softmax ranks the guesses.
        self._sampling = sampling if sampling.temperature > 0 else Sampling(1.0, 0, 1.0, 0.0)
        self._window = sampling.penalty_window
        self._sharpness = np.float32(1.0 / self._sampling.temperature)
        self._guesses = settings.mode == "ssd"
        self._settings = settings
        self._random = random

    @property
    def needs_history(self) -> bool:
        """Tell whether proposals depend on the text before them beyond the logits."""
        return self._penalised

    def propose(self, rows: Rows, histories: Sequence[Sequence[int]] | None = None) -> list[Proposal]:
        """Return one proposal for each row; `histories` are needed with penalties only."""
        rows = rows[:, : self._vocabulary]
        if self.deterministic and not self._guesses and not self._penalised:
            return [self._best(row) for row in rows]
        ids, logits = top_candidates(rows, min(CANDIDATES, rows.shape[1]))
        if self._penalised:
            return [
                self._drawn(ids[row], logits[row], histories[row] if histories else ())
                for row in range(len(ids))
            ]
        guesses = self._guessed(ids, logits)
        if self.deterministic:
            return [Proposal(*known[0], known, None) for known in guesses]
        return [
            replace(self._drawn(ids[row], logits[row], ()), guesses=known)
            for row, known in enumerate(guesses)
        ]

    def _guessed(self, ids: NDArray[np.int64], logits: NDArray[np.float32]) -> list[Guesses]:
        """Return the best tokens of each row with their chances at the target's temperature."""
        scaled = np.exp((logits - logits[:, :1]) * self._sharpness)
        scaled /= scaled.sum(axis=1, keepdims=True)
        rows = zip(ids[:, :GUESSES].tolist(), scaled[:, :GUESSES].tolist(), strict=True)
        return [tuple(zip(tokens, weights, strict=True)) for tokens, weights in rows]

    def _best(self, row: NDArray[np.float32]) -> Proposal:
        """Return the best token alone, where nobody asks what else might follow.

        One pass over the row: it is folded into columns, and their maxima stand for all tokens. The
        confidence is the best token's share of the maxima; calibration makes a chance of it.
        """
        width = len(row) // FOLDS
        end = width * FOLDS
        maxima = np.concatenate((row[:end].reshape(FOLDS, width).max(axis=0), row[end:]))
        column = int(maxima.argmax())
        if column < width:
            token = int(row[column:end:width].argmax()) * width + column
        else:
            token = end + column - width
        share = 1.0 / float(np.exp((maxima - maxima[column]) * self._sharpness).sum())
        return Proposal(token, share, (), None)

    def _drawn(self, ids: NDArray[np.int64], logits: NDArray[np.float32], history: Sequence[int]) -> Proposal:
        """Return a token drawn from q, or its best, with the best tokens of q as guesses."""
        settings = self._settings
        q = draft_distribution(
            ids,
            logits,
            self._sampling,
            draft_temperature=settings.draft_temperature,
            saguaro_c=settings.saguaro_c,
            saguaro_top=max(1, settings.fan_out_budget // (settings.draft_length + 1)) + 1,
            history=history[-self._window :] if self._window else (),
        )
        assert q.ids is not None
        guesses: Guesses = tuple(zip(q.ids[:GUESSES].tolist(), q.probs[:GUESSES].tolist(), strict=True))
        if self.deterministic:
            return Proposal(*guesses[0], guesses, None)
        return Proposal(draw(q, self._random.random()), guesses[0][1], guesses, q)
