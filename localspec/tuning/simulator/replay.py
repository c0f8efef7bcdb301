"""The draft model's proposals at each position of a traced answer, for any settings; pure.

The emitted text is distributed as the target's own, whatever was drafted, so a simulation stays on the
traced answer. Given the token x there, a draft token sampled from q was x and was accepted with probability
min(1, q(x) / p(x)); else it was sampled from normalise(max(q - p, 0)) and x is the bonus token. A
deterministic draft is accepted where it equals x.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log
from random import Random

import numpy as np

from localspec.decoding.drafters.proposer import CANDIDATES, GUESSES, Proposal
from localspec.decoding.measurements import Trace, TraceSegment
from localspec.decoding.sampling import Floats, penalised_candidates, penalises, saguaro_top
from localspec.types.candidates import Ids, columns
from localspec.types.request import EngineSettings, Sampling

USUAL_MULTIPLE = 64  # of vocabulary sizes, which a trace does not have
BEST_LOGIT = 15.0  # typical; a trace does not have it, and repetition penalties depend on it


@dataclass(frozen=True, slots=True)
class Shape:
    """The settings that decide how draft tokens are chosen."""

    deterministic: bool
    guesses: bool  # whether other likely tokens are needed
    draft_temperature: float = 1.0
    saguaro_c: float = 1.0
    saguaro_top: int = 1

    @classmethod
    def of(cls, sampling: Sampling, settings: EngineSettings) -> Shape:
        """Return the shape, which many settings share."""
        shape = cls(sampling.is_greedy or settings.acceptance == "match", settings.mode == "ssd")
        if shape.deterministic and not penalises(sampling):
            return shape
        return replace(
            shape,
            draft_temperature=settings.draft_temperature,
            saguaro_c=settings.saguaro_c,
            saguaro_top=saguaro_top(settings) if settings.saguaro_c != 1 else 1,
        )


@dataclass(frozen=True, slots=True)
class Script:
    """The proposals at each position of an answer.

    `judged` has the proposals that the target verifies; `unjudged` has independent samples from p and q,
    for the bonus token after a fully accepted draft. `astray` models the draft model after a wrong token of
    its own: it is as confident as after a right one, so these are proposals from positions after such a
    token.
    """

    judged: tuple[Proposal, ...]
    unjudged: tuple[Proposal, ...]
    astray: tuple[Proposal, ...]

    @property
    def deterministic(self) -> bool:
        """Return whether proposals are chosen without chance."""
        return self.judged is self.unjudged

    def at(self, place: int) -> Proposal:
        """Return the proposal at a place, or where its complement says that the model is astray."""
        last = len(self.judged) - 1
        return self.judged[min(place, last)] if place >= 0 else self.astray[min(~place, last)]


class Replay:
    """A traced answer with random numbers for each place, the same for all settings."""

    def __init__(self, segment: TraceSegment, sampling: Sampling, vocabulary: int, seed: int) -> None:
        self.segment = segment
        self.prompt = list(segment.prompt)
        self.tokens: list[int] = segment.tokens.tolist()
        # A greedy target has no temperature: see `Proposer`.
        plain = replace(sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        self._sampling = plain if sampling.is_greedy else sampling
        self._penalised = penalises(sampling)
        self._vocabulary = vocabulary
        self._seed = seed
        self._uniforms = np.random.default_rng(seed).random((3, len(self.tokens)))

    def script(self, shape: Shape) -> Script:
        """Return the proposals of all positions, as a `Proposer` would make them."""
        judged, unjudged = self._proposed(shape)
        return Script(judged, unjudged, self._astray(judged))

    def _astray(self, judged: Sequence[Proposal]) -> tuple[Proposal, ...]:
        """Return runs of proposals that follow right ones, from anywhere in the answer."""
        random = Random(self._seed)
        tokens = self.tokens
        right = [proposal.token == token for proposal, token in zip(judged, tokens, strict=True)]
        after = [place for place in range(1, len(tokens)) if right[place - 1]] or range(len(tokens))
        place = random.choice(after)
        found = []
        for _ in tokens:
            found.append(judged[place])
            goes_on = right[place] and place + 1 < len(tokens)
            place = place + 1 if goes_on else random.choice(after)
        return tuple(found)

    def _proposed(self, shape: Shape) -> tuple[tuple[Proposal, ...], tuple[Proposal, ...]]:
        """Return the proposals that are judged, and those that are not."""
        if shape.deterministic and not shape.guesses and not self._penalised:
            proposals = _proposals(self.segment.draft_ids[:, 0].tolist(), self._shares().tolist())
            return proposals, proposals
        ids, logits = self._candidates
        temperature = self._sampling.temperature
        chances = expected = _normalised(np.exp(logits / temperature))
        if self._penalised or not shape.deterministic:
            chances = drawn_from(truncated(logits, self._sampling), temperature, shape)
        guesses = _guesses(ids, chances if self._penalised else expected) if shape.guesses else ()
        best = ids[:, 0].tolist()
        confidences = chances[:, 0].tolist()
        if shape.deterministic:
            proposals = _proposals(best, confidences, guesses)
            return proposals, proposals
        judged = self._judged(ids, chances).tolist()
        drawn = _drawn(ids, chances, self._uniforms[2]).tolist()
        return _proposals(judged, confidences, guesses), _proposals(drawn, confidences, guesses)

    @cached_property
    def _candidates(self) -> tuple[Ids, Floats]:
        return candidates(self.segment, self._sampling)

    def _judged(self, ids: Ids, chances: Floats) -> Ids:
        """Return the draft tokens that the target judged before it emitted the traced ones."""
        tokens = self.segment.tokens.astype(np.int64)
        mine = np.where(ids == tokens[:, None], chances, 0.0).sum(axis=1)
        accepted = self._uniforms[0] * self.segment.target_of_token < mine
        rest = np.maximum(chances - target_of(self.segment, ids), 0.0)
        possible = np.where(rest.sum(axis=1, keepdims=True) > 0, rest, chances)
        return np.where(accepted, tokens, _drawn(ids, possible, self._uniforms[1]))

    def _shares(self) -> Floats:
        """Return the best token's share of the best maxima of a folded row, as `Proposer` estimates it."""
        ids = self.segment.draft_ids.astype(np.int64)
        logits = self.segment.draft_logits
        width = columns(self._vocabulary)
        places = ids % width
        is_first = np.ones(ids.shape, dtype=np.bool_)
        for rank in range(1, ids.shape[1]):
            is_first[:, rank] = (places[:, :rank] != places[:, rank : rank + 1]).all(axis=1)
        judged = is_first & (is_first.cumsum(axis=1) <= CANDIDATES)
        scaled = np.exp(logits.astype(np.float64) / self._sampling.temperature)
        return np.asarray(1.0 / (scaled * judged).sum(axis=1))


def replays(trace: Trace, seed: int = 0) -> tuple[Replay, ...]:
    """Return every traced answer with its own random numbers."""
    known = [int(array.max(initial=0)) for s in trace.segments for array in (s.draft_ids, s.tokens)]
    vocabulary = -(-(max(known, default=0) + 1) // USUAL_MULTIPLE) * USUAL_MULTIPLE
    return tuple(
        Replay(segment, trace.sampling, vocabulary, seed + number)
        for number, segment in enumerate(trace.segments)
    )


def candidates(segment: TraceSegment, sampling: Sampling) -> tuple[Ids, Floats]:
    """Return the draft model's candidates at each place, best first, with their logits after penalties."""
    ids = segment.draft_ids[:, :CANDIDATES].astype(np.int64)
    logits = segment.draft_logits[:, :CANDIDATES].astype(np.float64)
    if penalises(sampling):
        text = [*segment.prompt, *segment.tokens.tolist()]
        for place, count in enumerate((ids >= 0).sum(axis=1).tolist()):
            end = len(segment.prompt) + place
            before = text[max(end - sampling.penalty_window, len(segment.prompt)) : end]
            found = penalised_candidates(
                ids[place, :count], logits[place, :count] + BEST_LOGIT, sampling, before
            )
            ids[place, :count], logits[place, :count] = found
    return ids, logits


def target_of(segment: TraceSegment, ids: Ids) -> Floats:
    """Return the target's probabilities of the candidates, which penalties may have sorted again."""
    known = segment.target_of_draft[:, None, :CANDIDATES].astype(np.float64)
    traced = segment.draft_ids[:, None, :CANDIDATES]
    return np.asarray((known * (ids[:, :, None] == traced)).sum(axis=2))


def truncated(logits: Floats, sampling: Sampling) -> Floats:
    """Cut off what top-k, top-p and min-p do not leave of each row, best first; a greedy target cuts nothing.

    What is cut off becomes -inf.
    """
    if sampling.is_greedy:
        return logits
    places = np.arange(logits.shape[1])
    known = logits - logits[:, :1]
    if sampling.top_k > 0:
        known = np.where(places < sampling.top_k, known, -np.inf)
    kept = np.isfinite(known).sum(axis=1)
    if sampling.top_p < 1:
        masses = np.exp(known).cumsum(axis=1)
        kept = np.minimum(kept, (masses < sampling.top_p * masses[:, -1:]).sum(axis=1) + 1)
    if sampling.min_p > 0:
        kept = np.minimum(kept, (known >= log(sampling.min_p)).sum(axis=1))
    return np.where(places < np.maximum(kept, 1)[:, None], logits, -np.inf)


def drawn_from(logits: Floats, temperature: float, shape: Shape) -> Floats:
    """Return q of every row of truncated logits, as `draft_distribution` does row by row.

    `temperature` is the target's.
    """
    temperature *= shape.draft_temperature
    if temperature <= 0:
        return np.broadcast_to(np.arange(logits.shape[1]) == 0, logits.shape).astype(np.float64)
    chances = np.exp((logits - logits[:, :1]) / temperature)
    if shape.saguaro_c != 1:  # one factor for all tokens would change nothing
        weighted = np.isfinite(logits).sum(axis=1) > shape.saguaro_top
        chances[weighted, : shape.saguaro_top] *= shape.saguaro_c
    return _normalised(chances)


def _normalised(chances: Floats) -> Floats:
    return np.asarray(chances / chances.sum(axis=1, keepdims=True))


def _drawn(ids: Ids, chances: Floats, uniforms: Floats) -> Ids:
    """Return one token of each row, as `sampling.draw` does."""
    cumulative = chances.cumsum(axis=1)
    places = (cumulative <= (uniforms * cumulative[:, -1])[:, None]).sum(axis=1)
    last = chances.shape[1] - 1 - (chances[:, ::-1] > 0).argmax(axis=1)
    return np.asarray(ids[np.arange(len(ids)), np.minimum(places, last)])


def _guesses(ids: Ids, chances: Floats) -> Iterable[tuple[tuple[int, float], ...]]:
    """Return the best tokens of each row with their chances, if there are any."""
    counts = np.minimum((chances > 0).sum(axis=1), GUESSES).tolist()
    rows = zip(ids.tolist(), chances.tolist(), counts, strict=True)
    return [tuple(zip(tokens[:count], weights, strict=False)) for tokens, weights, count in rows]


def _proposals(
    tokens: Sequence[int],
    confidences: Sequence[float],
    guesses: Iterable[tuple[tuple[int, float], ...]] = (),
) -> tuple[Proposal, ...]:
    guessed = list(guesses) or [()] * len(tokens)
    return tuple(
        Proposal(token, confidence, others, None)
        for token, confidence, others in zip(tokens, confidences, guessed, strict=True)
    )
