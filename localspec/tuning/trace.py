"""Trace answers: what both models think before each token of plain decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import repeat
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.drafters.drafter import Drafter, failing
from localspec.decoding.loop import Decoder
from localspec.decoding.measurements import CANDIDATES, TraceSegment
from localspec.decoding.model import LanguageModel
from localspec.decoding.rounds import DecodeParams, Round
from localspec.decoding.sampling import Floats, distribution, probabilities, probability
from localspec.decoding.verify import Uniforms, judge, random_streams
from localspec.types.candidates import Candidates, Ids, Logits, Rows, top_candidates, top_entries
from localspec.types.drafts import Distribution, Draft, VerifyOutcome
from localspec.types.request import Request

if TYPE_CHECKING:
    from localspec.inference.runtime import Runtime

READ_TOGETHER = 64  # tokens whose rows of draft logits are in memory at once
MAX_WAITING = 2_000_000  # probabilities of the target that wait for the draft model to read as far

_Number = TypeVar("_Number", bound=np.generic)


def trace(runtime: Runtime, request: Request) -> TraceSegment:
    """Decode one answer plainly and return what both models thought before each token.

    The settings of the request are ignored. Raises `ContextFullError`, and `Cancelled` after `cancel`.
    """
    with runtime.models_alone(together=False) as models:
        params, prompt = runtime.plain_params(request)
        return Tracer(*models, CANDIDATES).trace(prompt, params, request.seed)


class Tracer:
    """A target and at most one draft model with empty caches, for one trace."""

    _row: Candidates  # of the last token, until decoding continues

    def __init__(self, target: LanguageModel, draft: LanguageModel | None, candidates: int) -> None:
        """Take the models, and how many of each one's candidates to write down."""
        self._decoder = Decoder(target, self._noted)
        self._context = target.context_size
        self._vocabulary = target.vocabulary_size
        self._draft = draft
        self._candidates = candidates

    def trace(self, prompt: Sequence[int], params: DecodeParams, seed: int | None) -> TraceSegment:
        """Return the answer that plain decoding gives with this seed.

        Its time is that of plain decoding after the first token, without what tracing adds. The draft
        model reads along afterwards, or now and then where the target's distributions are long.
        """
        self._decoder.model.choose(None)
        if self._draft is None:
            return self._traced(prompt, params, seed)
        self._draft.choose(None)
        self._draft.follow(on=True, kept=self._context)  # a head reads nothing before it is asked
        try:
            return self._traced(prompt, params, seed)
        finally:
            self._draft.follow(on=False)

    def _traced(self, prompt: Sequence[int], params: DecodeParams, seed: int | None) -> TraceSegment:
        text = list(prompt)
        decode_s = 0.0
        of_target = list[tuple[Ids, Floats, float]]()
        of_draft = list[tuple[Ids, Logits, Floats]]()
        waiting = list[Distribution]()
        size = 0
        random, _ = random_streams(seed, 0, 0)
        with closing(self._decoder.rounds(prompt, Drafter(), None, params, random)) as rounds:
            for event in rounds:
                if not isinstance(event, Round):
                    continue
                decode_s += event.stats.seconds if len(text) > len(prompt) else 0.0
                p = distribution(self._row, params.sampling, text[params.answer_start :])
                of_target.append((*self._best(p), probability(p, event.tokens[0])))
                text += event.tokens
                waiting.append(p)
                size += len(p.probs)
                if self._draft is not None and size > MAX_WAITING:
                    of_draft += self._read_along(self._draft, text, waiting)
                    waiting = []
                    size = 0
        if self._draft is not None:
            of_draft += self._read_along(self._draft, text, waiting)
        target_ids, target_probs, of_token = zip(*of_target, strict=True)
        none = np.empty((len(of_target), 0))
        read = map(np.concatenate, zip(*of_draft, strict=True)) if of_draft else repeat(none, 3)
        draft_ids, draft_logits, target_of_draft = read
        return TraceSegment(
            prompt=tuple(prompt),
            tokens=np.array(text[len(prompt) :], np.int32),
            target_ids=np.stack(target_ids).astype(np.int32),
            target_probs=np.stack(target_probs).astype(np.float32),
            target_of_token=np.array(of_token, np.float32),
            draft_ids=draft_ids.astype(np.int32),
            draft_logits=draft_logits.astype(np.float32),
            target_of_draft=target_of_draft.astype(np.float32),
            decode_s=decode_s,
            ended=text[-1] in params.end_tokens,
        )

    def _noted(
        self, draft: Draft, rows: Rows, text: list[int], params: DecodeParams, random: Uniforms
    ) -> VerifyOutcome:
        self._row = rows[0]
        return judge(draft, rows, text, params, random)

    def _best(self, p: Distribution) -> tuple[Ids, Floats]:
        count = self._candidates
        ids = p.ids
        probs = p.probs
        if ids is None:
            ids = top_entries(p.probs.astype(np.float32), count)[0]
            probs = p.probs[ids]
        return _widened(ids[:count], count, -1), _widened(probs[:count], count, 0.0)

    def _read_along(
        self, draft: LanguageModel, text: Sequence[int], drawn_from: Sequence[Distribution]
    ) -> Iterator[tuple[Ids, Logits, Floats]]:
        """Yield the draft's candidates with logits, and the target's probabilities, several rows at a time.

        They are for the last tokens of the text, which the target sampled from its distributions; the draft
        model's cache contains a prefix of the text.
        """
        known = draft.vocabulary_size - 1  # a target may have a few ids more, to fill up its matrices
        for first in range(0, len(drawn_from), READ_TOGETHER):
            block = drawn_from[first : first + READ_TOGETHER]
            end = len(text) - len(drawn_from) + first + len(block) - 1
            tokens = [min(token, known) for token in text[draft.length() : end]]
            with failing(draft.name):
                if len(tokens) > len(block):
                    draft.evaluate(tokens[: -len(block)], 0)
                rows = draft.evaluate(tokens[-len(block) :], len(block)).logits[:, : self._vocabulary]
                ids, logits = top_candidates(rows, self._candidates)
            chances = [probabilities(p, row) for p, row in zip(block, ids, strict=True)]
            yield (
                _widened(ids, self._candidates, -1),
                _widened(logits - logits[:, :1], self._candidates, -np.inf),
                _widened(np.stack(chances), self._candidates, 0.0),
            )


def _widened(values: NDArray[_Number], width: int, filler: float) -> NDArray[_Number]:
    """Pad the last axis of an array to a width."""
    missing = width - values.shape[-1]
    if not missing:
        return values
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)], constant_values=filler)
