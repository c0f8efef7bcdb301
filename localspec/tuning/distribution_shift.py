"""How far another cache type moves the target's distribution: two targets read the same recorded answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from localspec.benchmark.exactness import FULL, answer_rows
from localspec.decoding.measurements import CANDIDATES, TraceSegment
from localspec.decoding.sampling import distribution
from localspec.tuning.events import DistributionShift
from localspec.types.candidates import FullRow, Ids, top_entries

if TYPE_CHECKING:
    from localspec.inference.runtime import Runtime

_HIGH = 0.99  # quantile


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """The tokens of a prompt and of its answer."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """What a target thinks before each of an answer's n tokens, at temperature 1, of m candidates."""

    best: Ids  # (n,), the most likely tokens
    ids: Ids  # (n, m)
    probs: NDArray[np.float64]  # (n, m)


def recorded_answer(segment: TraceSegment) -> RecordedAnswer:
    """Return the tokens of a traced answer."""
    return RecordedAnswer(segment.prompt, tuple(segment.tokens.tolist()))


def read_answer(runtime: Runtime, answer: RecordedAnswer, candidates: Ids | None = None) -> ReadAnswer:
    """Read an answer and note the target's most likely tokens, or given candidates, with probabilities."""
    best = list[int]()
    ids = list[Ids]()
    probs = list[NDArray[np.float64]]()
    for place, row in answer_rows(runtime, answer.prompt, answer.tokens):
        of_place = top_entries(row, CANDIDATES)[0] if candidates is None else candidates[place]
        best.append(int(row.argmax()))
        ids.append(of_place)
        probs.append(distribution(FullRow(row), FULL, ()).probs[of_place])
    return ReadAnswer(np.array(best), np.stack(ids), np.stack(probs))


def shift(before: Sequence[ReadAnswer], after: Sequence[ReadAnswer]) -> DistributionShift:
    """Return the distance between two targets' distributions; all tokens but candidates count as one."""
    moved = list[NDArray[np.float64]]()
    changed = list[NDArray[np.bool_]]()
    for first, second in zip(before, after, strict=True):
        p = _with_rest(first.probs)
        q = _with_rest(second.probs)
        moved.append(np.sum(p * np.log(p / q), axis=1).clip(min=0.0))  # what is below 0 is rounding
        changed.append(first.best != second.best)
    every = np.concatenate(moved)
    return DistributionShift(
        tokens=len(every),
        mean=float(every.mean()),
        high=float(np.quantile(every, _HIGH)),
        changed=float(np.concatenate(changed).mean()),
    )


def _with_rest(probs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return probabilities above 0, with that of all other tokens behind them."""
    rest = 1.0 - probs.sum(axis=1, keepdims=True)
    found: NDArray[np.float64] = np.maximum(np.hstack((probs, rest)), np.finfo(np.float32).tiny)
    return found
