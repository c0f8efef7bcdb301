"""Measure what calls cost here and now, without a trace in the caches."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median_low

from localspec.engines.costs import CostCurve, Experience
from localspec.engines.model import LanguageModel

VERIFY_SIZES = (1, 2, 5, 9, 3, 4, 7, 6, 8)  # the sizes that shape the curve come first
FEWEST_SIZES = 3
STEP_WIDTHS = (1, 2, 4, 8, 16)
PREFIX = 32  # tokens of text in the cache while measuring
PASSES = 5
OVERLAP_WIDTH = 4  # branches per draft call while the target verifies


def measure(
    target: LanguageModel, draft: LanguageModel | None, budget_s: float, *, together: bool
) -> Experience:
    """Return the costs of both models, alone or while both work at once.

    Every draft call follows a target call, which has thrown the draft's weights out of the processor's
    caches as it will when decoding. The first sizes are always measured, the others as the budget allows.
    """
    verify: defaultdict[int, list[float]] = defaultdict(list)
    step: defaultdict[int, list[float]] = defaultdict(list)
    with _scratch(target), _scratch(draft):
        _evaluate(target, 1)  # the first call of all builds graphs and touches memory
        if draft is not None and together:
            with _busy(draft, step):
                _fill(verify, target, None, budget_s)
        else:
            _fill(verify, target, draft, budget_s, step)
    curve = {size: median_low(seconds) for size, seconds in verify.items()}
    if draft is None or not step:
        return Experience(CostCurve(curve), CostCurve({1: curve[1]}))
    return Experience(
        CostCurve(curve), CostCurve({width: median_low(seconds) for width, seconds in step.items()})
    )


def _fill(
    verify: defaultdict[int, list[float]],
    target: LanguageModel,
    draft: LanguageModel | None,
    budget_s: float,
    step: defaultdict[int, list[float]] | None = None,
) -> None:
    started = time.perf_counter()
    for number in range(PASSES):
        for index, size in enumerate(VERIFY_SIZES):
            if time.perf_counter() - started > budget_s and (number or index >= FEWEST_SIZES):
                return
            seconds = _evaluate(target, size)
            if size == 1:  # plain decoding repeats one size, whose graph llama.cpp then reuses
                seconds = _evaluate(target, 1)
            verify[size].append(seconds)
            if draft is not None and step is not None:
                width = min(STEP_WIDTHS[index % len(STEP_WIDTHS)], draft.max_sequences)
                step[width].append(_step(draft, width))


def _evaluate(model: LanguageModel, size: int) -> float:
    length, before = model.length(), model.busy_s
    model.evaluate([0] * size, size)
    model.truncate(length)
    return model.busy_s - before


def _step(model: LanguageModel, width: int) -> float:
    """Time one token on each of several sequences; the branches share the trunk's text."""
    end = model.length()
    for sequence in range(1, width):
        model.share(0, sequence, end)
    before = model.busy_s
    model.step([0] * width, range(width))
    seconds = model.busy_s - before
    for sequence in range(width):
        model.truncate(end if sequence == 0 else 0, sequence)
    return seconds


@contextmanager
def _scratch(model: LanguageModel | None) -> Iterator[None]:
    """Lend the end of a model's cache; branches are emptied."""
    if model is None:
        yield
        return
    for sequence in range(1, model.max_sequences):
        model.truncate(0, sequence)
    length = model.length()
    missing = PREFIX - length
    try:
        if missing > 0:
            model.evaluate([0] * missing, 0)
        yield
    finally:
        model.truncate(length)


@contextmanager
def _busy(draft: LanguageModel, step: defaultdict[int, list[float]]) -> Iterator[None]:
    """Keep the draft model working in another thread, as it will while the target verifies."""
    stop = threading.Event()
    widths = [
        width for width in dict.fromkeys((1, OVERLAP_WIDTH, *STEP_WIDTHS)) if width <= draft.max_sequences
    ]
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                for width in widths:
                    step[width].append(_step(draft, width))
        except BaseException as error:  # noqa: BLE001  reported below, in the thread that asked
            failures.append(error)

    thread = threading.Thread(target=work, name="measure", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    for failure in failures:
        raise failure
