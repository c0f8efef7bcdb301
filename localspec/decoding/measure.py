"""Measure a pair: what calls cost here and now."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count, cycle, islice, repeat
from random import Random

from localspec.decoding.drafters.drafter import failing
from localspec.decoding.measurements import CallCosts, ComparedPass, CostRequest
from localspec.decoding.model import LanguageModel
from localspec.decoding.policy import (
    CostCurve,
    LatencyModel,
    is_plausible,
)
from localspec.decoding.text import AnswerEvents, DecodeEvents
from localspec.types.models import PlainRate

VERIFY_SIZES = (1, 2, 5, 9, 3, 13, 4, 7, 6, 8, 11, 10, 12)  # what shapes the curve comes first
MIN_SIZES = 3
MIN_WISHED = 6
STEP_WIDTHS = (1, 2, 4, 8, 16)
PREFIX = 32  # tokens of text in the cache while measuring
MIN_PASSES = 2  # one time alone may be a disturbance
PASSES = 5
MAX_PASSES = 40  # more would not add information
TIMEOUT_S = 5.0  # for a GPU to compile one model's kernels; later ones are not timed
TRIES = 2  # of a measurement with implausible curves
ANCHORS = 9  # calls with one token, at either end of a measurement
MIN_ANCHORS = 3
ANCHOR_SHARE = 0.1  # of the budget
REREAD = 5  # tokens from a saved state to the end of the text, with 1 to 2 accepted draft tokens
COMPARED_SIZES = (1, 2, 3, 5)
COMPARED_DEPTH = 64


@dataclass(frozen=True, slots=True)
class _Passages:
    """Tokens for passes: pieces of a text, each from another place, or unrelated tokens without one."""

    vocabulary_size: int
    text: Sequence[int] = ()
    random: Random = field(default_factory=lambda: Random(0))

    def beginning(self, count: int) -> list[int]:
        """Return tokens to fill a cache with."""
        return list(islice(cycle(self.text), count)) or _unrelated(self.vocabulary_size, count)

    def piece(self, count: int) -> list[int]:
        """Return the tokens of one pass."""
        if not self.text:
            return [self.random.randrange(self.vocabulary_size) for _ in range(count)]
        start = self.random.randrange(len(self.text))
        return list(islice(cycle(self.text), start, start + count))


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
    passages: _Passages | None = None
    verify: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    step: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        most = 0 if self.draft is None else self.draft.max_sequences
        self.widths = [width for width in self.widths if width <= most]

    def warm_up(self, *, on_card: bool) -> None:
        """Make the calls that are not to be timed: a GPU makes its programs at the first of every size."""
        if on_card:
            self.sizes = self._warmed(self.sizes, partial(_evaluate, self.target))
        if on_card and self.draft is not None:
            self.widths = self._warmed(self.widths, partial(_step, self.draft))
        _evaluate(self.target, 1)  # the first call of all builds graphs and touches memory

    def _warmed(self, sizes: Sequence[int], call: Callable[[int], object]) -> Sequence[int]:
        """Return the warmed-up sizes: all, except those that would take too long."""
        ends = time.perf_counter() + TIMEOUT_S
        for done, size in enumerate(sizes):
            if done >= self.fewest and time.perf_counter() > ends:
                return sizes[:done]
            call(size)
        return sizes

    def run(self, *, together: bool) -> None:
        """Time the calls of both models, alternately or at once; repeat if the curves are implausible.

        Alternately, every draft call follows a target call, which evicts the draft's weights from the CPU's
        caches, as in decoding.
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
        widths = repeat((MAX_PASSES, 0)) if draft is None else self._laps(self.widths)
        for (lap, size), (steps_lap, width) in zip(self._laps(self.sizes), widths, strict=False):
            passes = min(lap, steps_lap)
            is_spent = passes >= self.passes or time.perf_counter() > ends
            if passes >= MIN_PASSES and is_spent and enough():
                return
            seconds = _evaluate(self.target, size, self.passages)
            if size == 1:  # plain decoding repeats one size, so llama.cpp reuses its graph
                seconds = _evaluate(self.target, 1, self.passages)
            self.verify[size].append(seconds)
            if draft is not None:
                self.step[width].append(_step(draft, width))

    def _laps(self, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield sizes endlessly, with the number of full cycles: as many sizes as half of the budget allows.

        The first cycle is in their order, later ones are shuffled, so drift favours none.
        """
        late = time.perf_counter() + self.budget_s / MIN_PASSES
        reached = list[int]()
        random = Random(0)
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
        """Keep the draft model busy in another thread, as in decoding while the target verifies.

        The event is set after its first calls.
        """
        from concurrent.futures import ThreadPoolExecutor  # 5 ms

        stop = threading.Event()
        done = threading.Event()

        def work() -> None:
            for lap, width in self._laps(self.widths):
                if lap >= MIN_PASSES:
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

    The first sizes are always measured, the others as the budget allows. What a GPU needs to make its
    programs counts neither as a cost nor in the budget.
    """
    from statistics import median_low  # 3 ms that saved costs do not need

    timer = _CallTimer(target, draft, VERIFY_SIZES, STEP_WIDTHS, MIN_SIZES, PASSES, budget_s)
    with _scratch(target, PREFIX), _scratch_of_draft(draft, PREFIX):
        timer.warm_up(on_card=on_card)
        timer.run(together=together)
    curve = {size: median_low(seconds) for size, seconds in timer.verify.items()}
    steps = {width: median_low(seconds) for width, seconds in timer.step.items()}
    return LatencyModel(CostCurve(curve), CostCurve(steps or {1: curve[1]}))


def make_programs(target: LanguageModel, draft: LanguageModel | None) -> None:
    """Make the calls that `measure` times, untimed: a GPU makes its programs at the first of every size."""
    timer = _CallTimer(target, draft, VERIFY_SIZES, STEP_WIDTHS, MIN_SIZES, PASSES, 0.0)
    with _scratch(target, PREFIX), _scratch_of_draft(draft, PREFIX):
        timer.warm_up(on_card=True)


def time_calls(
    target: LanguageModel, draft: LanguageModel | None, request: CostRequest, *, on_card: bool = False
) -> CallCosts:
    """Return the requested sizes that fit into the caches."""
    from statistics import median, quantiles

    sizes = [size for size in _telling_first(request.verify_sizes) if size < target.context_size // 2]
    widths = _telling_first(request.step_widths)
    budget_s = request.budget_s
    passages = _Passages(target.vocabulary_size, request.text) if request.text else None
    timer = _CallTimer(target, draft, sizes, widths, MIN_WISHED, MAX_PASSES, budget_s, passages)
    together = request.together and draft is not None
    depth = min(request.depth, target.context_size - max(sizes))
    with _scratch(target, depth, passages), _scratch_of_draft(draft, depth):
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


def compare_passes(target: LanguageModel, text: Sequence[int], budget_s: float) -> tuple[ComparedPass, ...]:
    """Time passes of a few sizes over neighbours of a text and over unrelated tokens, alternately."""
    from statistics import median

    neighbours = _Passages(target.vocabulary_size, text)
    unrelated = _Passages(target.vocabulary_size)
    times = defaultdict[int, list[tuple[float, float]]](list)
    with _scratch(target, min(COMPARED_DEPTH, target.context_size // 2), neighbours):
        for size in COMPARED_SIZES:  # untimed: a GPU makes its programs
            _evaluate(target, size, neighbours)
        ends = time.perf_counter() + budget_s
        for lap in range(MAX_PASSES):
            if lap >= PASSES and time.perf_counter() > ends:
                break
            for size in COMPARED_SIZES:
                pair = _evaluate(target, size, neighbours), _evaluate(target, size, unrelated)
                times[size].append(pair)
    return tuple(
        ComparedPass(size, *(median(seconds) for seconds in zip(*pairs, strict=True)))
        for size, pairs in times.items()
    )


def _medians(times: dict[int, list[float]]) -> tuple[tuple[int, float], ...]:
    from statistics import median

    return tuple((size, median(times[size])) for size in sorted(times))


def _telling_first(sizes: Iterable[int]) -> list[int]:
    """Return sizes in an order in which each is the farthest from those before, to show the curve early."""
    rest = sorted(set(sizes))
    order = rest[:2]
    rest = rest[2:]
    while rest:
        order.append(max(rest, key=lambda size: min(abs(size - known) for known in order)))
        rest.remove(order[-1])
    return order


def _anchors(target: LanguageModel, budget_s: float) -> list[float]:
    seconds: list[float] = []
    while len(seconds) < MIN_ANCHORS or (len(seconds) < ANCHORS and sum(seconds) < ANCHOR_SHARE * budget_s):
        seconds.append(_evaluate(target, 1))
    return seconds


def _unrelated(vocabulary_size: int, count: int) -> list[int]:
    """Return different tokens: equal ones would all ask the same experts of a model that has some."""
    return [(index * 7919 + 1) % vocabulary_size for index in range(count)]


def _evaluate(model: LanguageModel, size: int, passages: _Passages | None = None) -> float:
    length = model.length()
    before = model.busy_s
    again = min(size - 1, REREAD) if model.rereads else 0
    tokens = passages.piece(size + again) if passages else _unrelated(model.vocabulary_size, size + again)
    model.evaluate(tokens, size)
    model.truncate(length)
    return model.busy_s - before


def _step(model: LanguageModel, width: int) -> float:
    """Time one token on each of several sequences; the branches share the text of sequence 0."""
    end = model.length()
    for sequence in range(1, width):
        model.share(0, sequence, end)
    before = model.busy_s
    with failing(model.name):
        for row in model.step(_unrelated(model.vocabulary_size, width), range(width)):
            row.best()  # raises an error if the logits are not numbers
    seconds = model.busy_s - before
    for sequence in range(width):
        model.truncate(end if sequence == 0 else 0, sequence)
    return seconds


@contextmanager
def _scratch(model: LanguageModel | None, depth: int, passages: _Passages | None = None) -> Iterator[None]:
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
            passages = passages or _Passages(model.vocabulary_size)
            model.evaluate(passages.beginning(missing), 0)
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
MIN_PLAIN_TOKENS = 4
PLAIN_S = 0.25  # after which the fewest will do
PLAIN_LIMIT_S = 2.0  # after which they are not waited for


def plain_rate(answer: AnswerEvents, rounds: DecodeEvents, depth: int) -> PlainRate | None:
    """Return the speed of plain decoding after `depth` tokens; None if a few take seconds."""
    tally = answer.tally
    with closing(rounds):
        for _ in answer.events(rounds):
            enough = tally.tokens > MIN_PLAIN_TOKENS  # the first warms up
            if tally.decode_s > (PLAIN_S if enough else PLAIN_LIMIT_S):
                break
    if tally.tokens <= MIN_PLAIN_TOKENS:
        return None
    return PlainRate(depth, (tally.tokens - 1) / tally.decode_s)
