"""Measure a pair: what calls cost here and now, and what both models think before each token of an answer."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count, repeat
from random import Random
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.drafters.drafter import Drafter, failing
from localspec.decoding.loop import DecodeParams, Decoder, Round
from localspec.decoding.measurements import CallCosts, CostRequest, TraceSegment
from localspec.decoding.model import LanguageModel, Rows
from localspec.decoding.policy import (
    AcceptanceCalibration,
    CostCurve,
    LatencyModel,
    SpeculationPolicy,
    is_plausible,
)
from localspec.decoding.sampling import (
    Floats,
    Ids,
    distribution,
    largest,
    probabilities,
    probability,
    top_candidates,
)
from localspec.decoding.text import AnswerEvents, DecodeEvents
from localspec.decoding.verify import Uniforms, random_streams
from localspec.types.drafts import Distribution, Draft, VerifyOutcome
from localspec.types.models import PlainRate
from localspec.types.request import EngineSettings

VERIFY_SIZES = (1, 2, 5, 9, 3, 13, 4, 7, 6, 8, 11, 10, 12)  # what shapes the curve comes first
FEWEST_SIZES = 3
FEWEST_WISHED = 6
STEP_WIDTHS = (1, 2, 4, 8, 16)
PREFIX = 32  # tokens of text in the cache while measuring
FEWEST_PASSES = 2  # one time alone may be a disturbance
PASSES = 5
MOST_PASSES = 40  # more would tell nothing new
PATIENCE_S = 5.0  # for programs that a card makes for one model; what is not made by then is not timed
TRIES = 2  # of a measurement whose curves make no sense
ANCHORS = 9  # calls with one token, at either end of a measurement
FEWEST_ANCHORS = 3
ANCHOR_SHARE = 0.1  # of the budget
REREAD = 5  # tokens from a kept state to the end of the text, where 1 to 2 of a draft's are accepted


@dataclass(slots=True)
class _CallTimer:
    """Times calls of both models, with sizes or widths in them, the most telling first."""

    target: LanguageModel
    draft: LanguageModel | None
    sizes: Sequence[int]
    widths: Sequence[int]
    fewest: int  # that are always timed
    passes: int
    budget_s: float
    verify: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    step: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        most = 0 if self.draft is None else self.draft.max_sequences
        self.widths = [width for width in self.widths if width <= most]

    def warm_up(self, *, on_card: bool) -> None:
        """Make the calls that are not to be timed: a card makes its programs at the first of every size."""
        if on_card:
            self.sizes = self._warmed(self.sizes, partial(_evaluate, self.target))
        if on_card and self.draft is not None:
            self.widths = self._warmed(self.widths, partial(_step, self.draft))
        _evaluate(self.target, 1)  # the first call of all builds graphs and touches memory

    def _warmed(self, sizes: Sequence[int], call: Callable[[int], object]) -> Sequence[int]:
        """Return the sizes that were called: all that nobody has to wait for, but a few."""
        ends = time.perf_counter() + PATIENCE_S
        for done, size in enumerate(sizes):
            if done >= self.fewest and time.perf_counter() > ends:
                return sizes[:done]
            call(size)
        return sizes

    def run(self, *, together: bool) -> None:
        """Time the calls of both models, in turn or at once; a second time where the curves make no sense.

        In turn, every draft call follows a target call, which has thrown the draft's weights out of the
        processor's caches as it will when decoding.
        """
        draft = self.draft
        for _ in range(TRIES):
            self.verify.clear()
            self.step.clear()
            if draft is None or not self.widths:
                self._fill(None)
            elif together:
                with self._busy(draft) as enough:
                    self._fill(None, enough)
            else:
                self._fill(draft)
            if all(is_plausible(dict(_medians(times))) for times in (self.verify, self.step)):
                return

    def _fill(self, draft: LanguageModel | None, enough: Callable[[], bool] = lambda: True) -> None:
        """Time calls until the budget is spent, but all a few times and until there is `enough` of others."""
        ends = time.perf_counter() + self.budget_s
        widths = repeat((MOST_PASSES, 0)) if draft is None else self._laps(self.widths)
        for (lap, size), (steps_lap, width) in zip(self._laps(self.sizes), widths, strict=False):
            passes = min(lap, steps_lap)
            is_spent = passes >= self.passes or time.perf_counter() > ends
            if passes >= FEWEST_PASSES and is_spent and enough():
                return
            seconds = _evaluate(self.target, size)
            if size == 1:  # plain decoding repeats one size, whose graph llama.cpp then reuses
                seconds = _evaluate(self.target, 1)
            self.verify[size].append(seconds)
            if draft is not None:
                self.step[width].append(_step(draft, width))

    def _laps(self, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield sizes for ever, with how often all were: as many as half of the budget allows, but a few.

        They come first in their order, then in ever another one, so that no drift favours any.
        """
        late, reached, random = time.perf_counter() + self.budget_s / FEWEST_PASSES, list[int](), Random(0)
        for size in sizes:
            if len(reached) >= self.fewest and time.perf_counter() > late:
                break
            reached.append(size)
            yield 0, size
        for lap in count(1):
            yield from ((lap, size) for size in reached)
            random.shuffle(reached)

    @contextmanager
    def _busy(self, draft: LanguageModel) -> Iterator[Callable[[], bool]]:
        """Keep the draft model working in another thread, as it will while the target verifies.

        The value tells whether it has done its first calls.
        """
        from concurrent.futures import ThreadPoolExecutor  # 5 ms

        stop, done = threading.Event(), threading.Event()

        def work() -> None:
            for lap, width in self._laps(self.widths):
                if lap >= FEWEST_PASSES:
                    done.set()
                if stop.is_set():
                    return
                self.step[width].append(_step(draft, width))

        with ThreadPoolExecutor(1, "measure") as pool:
            busy = pool.submit(work)
            try:
                yield lambda: done.is_set() or busy.done()
            finally:
                stop.set()
        busy.result()


def measure(
    target: LanguageModel,
    draft: LanguageModel | None,
    budget_s: float,
    *,
    together: bool,
    on_card: bool = False,
) -> LatencyModel:
    """Return the costs of both models, alone or while both work at once.

    The first sizes are always measured, the others as the budget allows. What a card needs to make its
    programs counts neither as a cost nor in the budget.
    """
    from statistics import median_low  # 3 ms, which costs that were kept do without

    timer = _CallTimer(target, draft, VERIFY_SIZES, STEP_WIDTHS, FEWEST_SIZES, PASSES, budget_s)
    with _scratch(target, PREFIX), _scratch_of_draft(draft, PREFIX):
        timer.warm_up(on_card=on_card)
        timer.run(together=together)
    curve = {size: median_low(seconds) for size, seconds in timer.verify.items()}
    steps = {width: median_low(seconds) for width, seconds in timer.step.items()}
    return LatencyModel(CostCurve(curve), CostCurve(steps or {1: curve[1]}))


def make_programs(target: LanguageModel, draft: LanguageModel | None) -> None:
    """Make the calls that `measure` times, untimed: a card makes its programs at the first of every size."""
    timer = _CallTimer(target, draft, VERIFY_SIZES, STEP_WIDTHS, FEWEST_SIZES, PASSES, 0.0)
    with _scratch(target, PREFIX), _scratch_of_draft(draft, PREFIX):
        timer.warm_up(on_card=True)


def time_calls(
    target: LanguageModel, draft: LanguageModel | None, request: CostRequest, *, on_card: bool = False
) -> CallCosts:
    """Return what was wished for, as far as the caches have room for it."""
    from statistics import median, quantiles

    sizes = [size for size in _telling_first(request.verify_sizes) if size < target.context_size // 2]
    widths, budget_s = _telling_first(request.step_widths), request.budget_s
    timer = _CallTimer(target, draft, sizes, widths, FEWEST_WISHED, MOST_PASSES, budget_s)
    together = request.together and draft is not None
    depth = min(request.depth, target.context_size - max(sizes))
    with _scratch(target, depth), _scratch_of_draft(draft, depth):
        depth = target.length()
        timer.warm_up(on_card=on_card)
        before = _anchors(target, budget_s)
        timer.run(together=together)
        after = _anchors(target, budget_s)
    low, middle, high = quantiles(before + after, n=4)
    return CallCosts(
        depth=depth,
        together=together,
        verify=_medians(timer.verify),
        step=_medians(timer.step),
        drift=median(after) / median(before),
        spread=(high - low) / middle,
    )


def _medians(times: dict[int, list[float]]) -> tuple[tuple[int, float], ...]:
    from statistics import median

    return tuple((size, median(times[size])) for size in sorted(times))


def _telling_first(sizes: Iterable[int]) -> list[int]:
    """Return sizes so that any first few of them show the curve best: each the farthest from those before."""
    rest = sorted(set(sizes))
    order, rest = rest[:2], rest[2:]
    while rest:
        order.append(max(rest, key=lambda size: min(abs(size - known) for known in order)))
        rest.remove(order[-1])
    return order


def _anchors(target: LanguageModel, budget_s: float) -> list[float]:
    seconds: list[float] = []
    while len(seconds) < FEWEST_ANCHORS or (
        len(seconds) < ANCHORS and sum(seconds) < ANCHOR_SHARE * budget_s
    ):
        seconds.append(_evaluate(target, 1))
    return seconds


def _text(model: LanguageModel, count: int) -> list[int]:
    """Return different tokens: equal ones would all ask the same experts of a model that has some."""
    return [(index * 7919 + 1) % model.vocabulary_size for index in range(count)]


def _evaluate(model: LanguageModel, size: int) -> float:
    length, before = model.length(), model.busy_s
    again = min(size - 1, REREAD) if model.rereads else 0
    model.evaluate(_text(model, size + again), size)
    model.truncate(length)
    return model.busy_s - before


def _step(model: LanguageModel, width: int) -> float:
    """Time one token on each of several sequences; the branches share the text of sequence 0."""
    end = model.length()
    for sequence in range(1, width):
        model.share(0, sequence, end)
    before = model.busy_s
    with failing(model.name):
        largest(model.step(_text(model, width), range(width)))
    seconds = model.busy_s - before
    for sequence in range(width):
        model.truncate(end if sequence == 0 else 0, sequence)
    return seconds


@contextmanager
def _scratch(model: LanguageModel | None, depth: int) -> Iterator[None]:
    """Lend the end of a model's cache, filled up to a depth; branches are emptied."""
    if model is None:
        yield
        return
    for sequence in range(1, model.max_sequences):
        model.truncate(0, sequence)
    length = model.length()
    missing = depth - length
    try:
        if missing > 0:
            model.evaluate(_text(model, missing), 0)
        model.checkpoint()
        yield
    finally:
        model.truncate(length)


@contextmanager
def _scratch_of_draft(draft: LanguageModel | None, depth: int) -> Iterator[None]:
    """Lend the end of the draft model's cache; raise `DraftError` if it cannot be filled."""
    with ExitStack() as lent:
        with nullcontext() if draft is None else failing(draft.name):
            lent.enter_context(_scratch(draft, depth))
        yield


PLAIN_TOKENS = 12
FEWEST_PLAIN_TOKENS = 4
PLAIN_S = 0.25  # after which the fewest will do
PLAIN_LIMIT_S = 2.0  # after which they are not waited for


def plain_rate(answer: AnswerEvents, rounds: DecodeEvents, depth: int) -> PlainRate | None:
    """Return how fast plain decoding goes on after `depth` tokens; None if a few take seconds."""
    tally = answer.tally
    with closing(rounds):
        for _ in answer.events(rounds):
            enough = tally.tokens > FEWEST_PLAIN_TOKENS  # the first warms up
            if tally.decode_s > (PLAIN_S if enough else PLAIN_LIMIT_S):
                break
    if tally.tokens <= FEWEST_PLAIN_TOKENS:
        return None
    return PlainRate(depth, (tally.tokens - 1) / tally.decode_s)


READ_TOGETHER = 64  # tokens whose rows of draft logits are held at once
MOST_WAITING = 2_000_000  # probabilities of the target that wait for the draft model to read as far

_Number = TypeVar("_Number", bound=np.generic)


class Tracer(Decoder):
    """A target and at most one draft model with empty caches, for one trace."""

    _row: NDArray[np.float32]  # what the last token was chosen from, until decoding goes on

    def __init__(self, target: LanguageModel, draft: LanguageModel | None, candidates: int) -> None:
        """Take the models, and how many of each one's candidates to write down."""
        super().__init__(target)
        self._vocabulary = target.vocabulary_size
        self._draft = draft
        self._candidates = candidates

    def trace(self, prompt: Sequence[int], params: DecodeParams, seed: int | None) -> TraceSegment:
        """Return the answer that plain decoding gives with this seed.

        Its time is that of plain decoding after the first token, without what tracing adds. The draft
        model reads along afterwards, or now and then where the target's distributions are long.
        """
        if self._draft is None:
            return self._traced(prompt, params, seed)
        self._draft.follow(on=True, kept=self.model.context_size)  # a head reads nothing before it is asked
        try:
            return self._traced(prompt, params, seed)
        finally:
            self._draft.follow(on=False)

    def _traced(self, prompt: Sequence[int], params: DecodeParams, seed: int | None) -> TraceSegment:
        text, decode_s = list(prompt), 0.0
        of_target, of_draft = list[tuple[Ids, Floats, float]](), list[tuple[Ids, Rows, Floats]]()
        waiting, size = list[Distribution](), 0
        random, _ = random_streams(seed, 0, 0)
        with closing(self.rounds(prompt, Drafter(), _no_policy(), params, random)) as rounds:
            for event in rounds:
                if not isinstance(event, Round):
                    continue
                decode_s += event.stats.seconds if len(text) > len(prompt) else 0.0
                p = distribution(self._row, params.sampling, text[params.answer_start :])
                of_target.append((*self._best(p), probability(p, event.tokens[0])))
                text += event.tokens
                waiting.append(p)
                size += len(p.probs)
                if self._draft is not None and size > MOST_WAITING:
                    of_draft += self._read_along(self._draft, text, waiting)
                    waiting, size = [], 0
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

    def _judge(
        self, draft: Draft, rows: Rows, text: list[int], params: DecodeParams, random: Uniforms
    ) -> VerifyOutcome:
        self._row = rows[0]
        return super()._judge(draft, rows, text, params, random)

    def _best(self, p: Distribution) -> tuple[Ids, Floats]:
        count, ids, probs = self._candidates, p.ids, p.probs
        if ids is None:
            ids = top_candidates(p.probs[None].astype(np.float32), count)[0][0]
            probs = p.probs[ids]
        return _widened(ids[:count], count, -1), _widened(probs[:count], count, 0.0)

    def _read_along(
        self, draft: LanguageModel, text: Sequence[int], drawn_from: Sequence[Distribution]
    ) -> Iterator[tuple[Ids, Rows, Floats]]:
        """Yield the draft model's candidates, their logits and the target's probabilities, some rows at once.

        They are for the last tokens of the text, which the target drew from its distributions; the draft
        model's cache holds a beginning of the text.
        """
        known = draft.vocabulary_size - 1  # a target may have a few ids more, to fill up its matrices
        for first in range(0, len(drawn_from), READ_TOGETHER):
            block = drawn_from[first : first + READ_TOGETHER]
            end = len(text) - len(drawn_from) + first + len(block) - 1
            tokens = [min(token, known) for token in text[draft.length() : end]]
            with failing(draft.name):
                if len(tokens) > len(block):
                    draft.evaluate(tokens[: -len(block)], 0)
                rows = draft.evaluate(tokens[-len(block) :], len(block))[:, : self._vocabulary]
                ids, logits = top_candidates(rows, self._candidates)
            chances = [probabilities(p, row) for p, row in zip(block, ids, strict=True)]
            yield (
                _widened(ids, self._candidates, -1),
                _widened(logits - logits[:, :1], self._candidates, -np.inf),
                _widened(np.stack(chances), self._candidates, 0.0),
            )


def _no_policy() -> SpeculationPolicy:
    """Return stopping rules for decoding that knows no drafts."""
    free = LatencyModel(CostCurve({1: 1.0}), CostCurve({1: 1.0}))
    return SpeculationPolicy(free, AcceptanceCalibration(), EngineSettings(mode="off"), deterministic=True)


def _widened(values: NDArray[_Number], width: int, filler: float) -> NDArray[_Number]:
    """Return an array whose last axis is filled up to a width."""
    missing = width - values.shape[-1]
    if not missing:
        return values
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)], constant_values=filler)
