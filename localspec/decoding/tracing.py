"""Decode an answer plainly, and write down what both models thought before each of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.drafters.drafter import NoDrafter
from localspec.decoding.loop import DecodeParams, Decoder, Round
from localspec.decoding.measurements import TraceSegment
from localspec.decoding.model import LanguageModel, Rows
from localspec.decoding.policy import AcceptanceCalibration, CostCurve, LatencyModel, SpeculationPolicy
from localspec.decoding.sampling import Floats, Ids, distribution, probability, top_candidates
from localspec.decoding.verify import Uniforms
from localspec.types import Distribution, Draft, EngineSettings, VerifyOutcome

READ_TOGETHER = 64  # tokens whose rows of draft logits are held at once
MOST_WAITING = 2_000_000  # probabilities of the target that wait for the draft model to read as far

_Number = TypeVar("_Number", bound=np.generic)


class Tracer:
    """A target and at most one draft model with empty caches, for one trace."""

    def __init__(self, target: LanguageModel, draft: LanguageModel | None, candidates: int) -> None:
        """Take the models, and how many of each one's candidates to write down."""
        self._target = _Watched(target)
        self._ideas = _TargetIdeas(candidates)
        self._draft = None if draft is None else _DraftIdeas(draft, target.vocabulary_size, candidates)

    def trace(self, prompt: Sequence[int], params: DecodeParams, seed: int | None) -> TraceSegment:
        """Return the answer that plain decoding gives with this seed.

        Its time is that of plain decoding after the first token, without what tracing adds. The draft
        model reads along afterwards, or now and then where the target's distributions are long.
        """
        text, decode_s = list(prompt), 0.0
        waiting, size = list[Distribution](), 0
        random = np.random.default_rng(np.random.SeedSequence(seed).spawn(2)[0])  # as in `Engine.rounds`
        with closing(self._target.rounds(prompt, NoDrafter(), _no_policy(), params, random)) as rounds:
            for event in rounds:
                if not isinstance(event, Round):
                    continue
                decode_s += event.stats.seconds if len(text) > len(prompt) else 0.0
                p = distribution(self._target.row, params.sampling, text)
                self._ideas.add(p, event.tokens[0])
                text += event.tokens
                waiting.append(p)
                size += len(p.probs)
                if self._draft is not None and size > MOST_WAITING:
                    self._draft.follow(text, waiting)
                    waiting, size = [], 0
        if self._draft is not None:
            self._draft.follow(text, waiting)
        return self._segment(text, len(prompt), decode_s, ended=text[-1] in params.end_tokens)

    def _segment(self, text: list[int], begin: int, decode_s: float, *, ended: bool) -> TraceSegment:
        target, draft = self._ideas, self._draft
        none = np.empty((len(text) - begin, 0))
        return TraceSegment(
            prompt=tuple(text[:begin]),
            tokens=np.array(text[begin:], np.int32),
            target_ids=np.stack(target.ids).astype(np.int32),
            target_probs=np.stack(target.probs).astype(np.float32),
            target_of_token=np.array(target.of_token, np.float32),
            draft_ids=np.concatenate([none] if draft is None else draft.ids).astype(np.int32),
            draft_logits=np.concatenate([none] if draft is None else draft.logits).astype(np.float32),
            target_of_draft=np.concatenate([none] if draft is None else draft.of_target).astype(np.float32),
            decode_s=decode_s,
            ended=ended,
        )


class _Watched(Decoder):
    """A decoder that shows what the last token was chosen from, until it goes on."""

    row: NDArray[np.float32]

    def _judge(
        self, draft: Draft, rows: Rows, text: list[int], params: DecodeParams, random: Uniforms
    ) -> VerifyOutcome:
        self.row = rows[0]
        return super()._judge(draft, rows, text, params, random)


class _TargetIdeas:
    """The target's candidates for each token."""

    def __init__(self, candidates: int) -> None:
        self._candidates = candidates
        self.ids: list[Ids] = []
        self.probs: list[Floats] = []
        self.of_token: list[float] = []

    def add(self, p: Distribution, token: int) -> None:
        """Write down what the next token was drawn from, and which it became."""
        count, ids, probs = self._candidates, p.ids, p.probs
        if ids is None:
            ids = top_candidates(p.probs[None].astype(np.float32), count)[0][0]
            probs = p.probs[ids]
        self.ids.append(_widened(ids[:count], count, -1))
        self.probs.append(_widened(probs[:count], count, 0.0))
        self.of_token.append(probability(p, token))


class _DraftIdeas:
    """The draft model's candidates for each token of a text that another model writes."""

    def __init__(self, model: LanguageModel, vocabulary: int, candidates: int) -> None:
        """Take the model; its ids from `vocabulary` on, which the target lacks, are left out."""
        self._model = model
        self._vocabulary = vocabulary
        self._candidates = candidates
        self.ids: list[Ids] = []
        self.logits: list[NDArray[np.float32]] = []
        self.of_target: list[Floats] = []

    def follow(self, text: Sequence[int], drawn_from: Sequence[Distribution]) -> None:
        """Read on to before the end of a text, whose last tokens the target drew from its distributions."""
        for first in range(0, len(drawn_from), READ_TOGETHER):
            block = drawn_from[first : first + READ_TOGETHER]
            end = len(text) - len(drawn_from) + first + len(block)
            ids, logits = top_candidates(self._rows(text[: end - 1], len(block)), self._candidates)
            chances = [_probabilities(p, row) for p, row in zip(block, ids, strict=True)]
            self.ids.append(_widened(ids, self._candidates, -1))
            self.logits.append(_widened(logits - logits[:, :1], self._candidates, -np.inf))
            self.of_target.append(_widened(np.stack(chances), self._candidates, 0.0))

    def _rows(self, text: Sequence[int], count: int) -> Rows:
        """Return the logits after each of the last `count` tokens; the cache holds a text's beginning."""
        model = self._model
        known = model.vocabulary_size - 1  # a target may have a few ids more, to fill up its matrices
        tokens = [min(token, known) for token in text[model.length() :]]
        if len(tokens) > count:
            model.evaluate(tokens[:-count], 0)
        return model.evaluate(tokens[-count:], count)[:, : self._vocabulary]


def _no_policy() -> SpeculationPolicy:
    """Return stopping rules for decoding that knows no drafts."""
    free = LatencyModel(CostCurve({1: 1.0}), CostCurve({1: 1.0}))
    return SpeculationPolicy(free, AcceptanceCalibration(), EngineSettings(mode="off"), deterministic=True)


def _probabilities(p: Distribution, ids: Ids) -> Floats:
    """Return the probabilities of some tokens, 0 outside the support."""
    if p.ids is None:
        return p.probs[ids]
    order = p.ids.argsort()
    places = order[p.ids.searchsorted(ids, sorter=order).clip(max=len(order) - 1)]
    return np.where(p.ids[places] == ids, p.probs[places], 0.0)


def _widened(values: NDArray[_Number], width: int, filler: float) -> NDArray[_Number]:
    """Return an array whose last axis is filled up to a width."""
    missing = width - values.shape[-1]
    if not missing:
        return values
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)], constant_values=filler)
