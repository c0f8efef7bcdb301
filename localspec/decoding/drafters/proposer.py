"""Ask a draft model and choose: the proposals that drafts are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, inf
from typing import NamedTuple, Protocol

import numpy as np

from localspec.decoding.constraint import TokenRules
from localspec.decoding.model import LanguageModel
from localspec.decoding.sampling import draft_distribution, draw, one_point, penalises
from localspec.decoding.verify import BufferedUniforms
from localspec.types.candidates import Candidates, FullRows, Rows
from localspec.types.drafts import Distribution, TokenMask
from localspec.types.request import EngineSettings, Sampling

CANDIDATES = 16  # a draft distribution over this many tokens loses almost nothing (prototype: top 12 to 16)
GUESSES = 12  # bonus tokens worth considering at one position

Guesses = tuple[tuple[int, float], ...]
Histories = Sequence[Sequence[int]]


class Proposal(NamedTuple):  # a frozen dataclass takes twice as long to make
    """A draft token, and the draft model's distribution before it.

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
        """Return the draft model's chance for the token, 0 where it is not among its drafts."""
        return next((weight for token, weight in self.guesses if token == self.token), 0.0)


class Proposer(Protocol):
    """The port between drafters and a draft model: asks it and chooses tokens, so that no logits leave it."""

    @property
    def deterministic(self) -> bool:
        """Whether tokens are chosen without chance."""

    @property
    def needs_history(self) -> bool:
        """Whether proposals depend on the text before them, which `histories` then have."""

    @property
    def leaps(self) -> bool:
        """Whether tokens that must follow are proposed without asking the model for each."""

    def after(
        self, model: LanguageModel, tokens: Sequence[int], count: int = 1, histories: Histories | None = None
    ) -> list[Proposal]:
        """Append tokens to sequence 0 and return a proposal after each of the last `count` of them."""

    def step(
        self,
        model: LanguageModel,
        tokens: Sequence[int],
        sequences: Sequence[int],
        histories: Histories | None = None,
    ) -> list[Proposal]:
        """Append `tokens[i]` to `sequences[i]` in one pass and return a proposal after each."""

    def forced(self, text: Sequence[int]) -> list[Proposal]:
        """Return the tokens that must follow a text."""

    def unjudged(self, proposals: Sequence[Proposal], start: int) -> Proposal:
        """Return the proposal after those that are sent to the target; it is not verified.

        `proposals` are those that are not sent; the first of them is at position `start` of the text.
        """


class RowProposer:
    """Chooses from rows of logits, as drafts will be judged: the best for greedy and `match`, else from q."""

    leaps = False

    def __init__(
        self,
        sampling: Sampling,
        settings: EngineSettings,
        random: np.random.Generator,
        vocabulary: int | None = None,
        rules: TokenRules | None = None,
        answer_start: int = 0,
    ) -> None:
        """Take how the target chooses; ids from `vocabulary` on, if given, are never proposed.

        With `needs_history` proposals depend on the text before them beyond the logits.
        """
        self._rules = rules
        self._has_bias = rules is not None and bool(rules.bias)
        self._vocabulary = vocabulary
        self.deterministic = sampling.is_greedy or settings.acceptance == "match"
        self._penalised = penalises(sampling)
        self.needs_history = self._penalised or rules is not None
        # A greedy target has no temperature: the draft model's plain softmax ranks its tokens.
        plain = replace(sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        self._sampling = plain if sampling.is_greedy else sampling
        self._window = sampling.penalty_window
        self._answer_start = answer_start
        self._sharpness = 1.0 / self._sampling.temperature
        self._has_guesses = settings.mode == "ssd"
        self._settings = settings
        self._random = BufferedUniforms(random)

    def after(
        self, model: LanguageModel, tokens: Sequence[int], count: int = 1, histories: Histories | None = None
    ) -> list[Proposal]:
        """Append tokens to sequence 0 and return a proposal after each of the last `count` of them."""
        return self.propose(model.evaluate(tokens, count), histories)

    def step(
        self,
        model: LanguageModel,
        tokens: Sequence[int],
        sequences: Sequence[int],
        histories: Histories | None = None,
    ) -> list[Proposal]:
        """Append `tokens[i]` to `sequences[i]` in one pass and return a proposal after each."""
        return self.propose(model.step(tokens, sequences), histories)

    def unjudged(self, proposals: Sequence[Proposal], start: int) -> Proposal:
        """Return the first proposal as it is."""
        return proposals[0]

    @property
    def candidates(self) -> int | None:
        """Return the number of a row's candidates that proposals are made of, None for all logits.

        Lazy rules make do with those that a device chooses, of which there are a few more.
        """
        is_free = self._rules is None or self._rules.are_lazy
        return CANDIDATES if is_free and self._vocabulary is None else None

    def propose(self, rows: Rows, histories: Histories | None = None) -> list[Proposal]:
        """Return one proposal for each row; `histories` are needed with penalties and rules only."""
        if self._vocabulary is not None:
            rows = FullRows(rows.logits[:, : self._vocabulary])
        if self.needs_history:
            seen = histories or [()] * len(rows)
            return [self._after(row, text) for row, text in zip(rows, seen, strict=True)]
        return [self._free(row) for row in rows]

    def _free(self, row: Candidates) -> Proposal:
        """Return a proposal of a row alone."""
        if self._has_guesses:
            return self._of(*row.top(CANDIDATES))
        if self.deterministic:
            return Proposal(*row.lead(self._sharpness), (), None)
        return self._drawn(*row.top(CANDIDATES), ())

    def _of(self, ids: list[int], logits: list[float]) -> Proposal:
        """Return a proposal of a row's best tokens, with their chances."""
        best = logits[0]
        sharpness = self._sharpness
        weights = [exp((value - best) * sharpness) for value in logits]
        share = 1.0 / sum(weights)
        guesses = tuple(zip(ids, [weight * share for weight in weights[:GUESSES]], strict=False))
        if self.deterministic:
            return Proposal(ids[0], share, guesses, None)
        return self._drawn(ids, logits, guesses)

    def _drawn(self, ids: list[int], logits: list[float], guesses: Guesses) -> Proposal:
        q = draft_distribution(ids, logits, self._sampling, self._settings, ())
        return Proposal(draw(q, self._random.random()), q.probs.item(0), guesses, q)

    def forced(self, text: Sequence[int]) -> list[Proposal]:
        """Return the tokens that must follow a text."""
        tokens = () if self._rules is None else self._rules.forced(text)
        drawn = not self.deterministic
        return [
            Proposal(token, 1.0, ((token, 1.0),), one_point(token) if drawn else None) for token in tokens
        ]

    def _after(self, row: Candidates, text: Sequence[int]) -> Proposal:
        """Return a token drawn from q, or its best; with penalties the best tokens of q are the drafts."""
        mask = None if self._rules is None else self._rules.mask(text)
        if mask is None and not (self._penalised or self._has_bias):
            return self._free(row)
        ids, logits = self._allowed(row, mask)
        if not self._penalised:
            return self._of(ids, logits)
        history = text[max(self._answer_start, len(text) - self._window) :]
        q = draft_distribution(ids, logits, self._sampling, self._settings, history)
        assert q.ids is not None
        guesses = tuple(zip(q.ids[:GUESSES].tolist(), q.probs[:GUESSES].tolist(), strict=True))
        if self.deterministic:
            return Proposal(*guesses[0], guesses, None)
        return Proposal(draw(q, self._random.random()), guesses[0][1], guesses, q)

    def _allowed(self, row: Candidates, mask: TokenMask | None) -> tuple[list[int], list[float]]:
        """Return the best tokens that a mask allows.

        Where the draft model gives none of them a chance (it may know few tokens), they are all the same to
        it; where it does not even have them in its vocabulary, its best of all is refused.
        """
        if self._rules is not None:
            row = self._rules.biased(row)
        ids, logits = row.top(CANDIDATES) if mask is None else row.among(mask, CANDIDATES)
        if not ids:
            return row.top(CANDIDATES)
        return ids, [0.0] * len(logits) if logits[0] == -inf else logits
