"""What the calls of a pair cost on this machine: measured, and kept until something changes."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import get_args

from localspec.decoding.measurements import CallCosts, CostRequest, Costs, Overhead
from localspec.errors import EngineError, UserError
from localspec.inference.interface import TunableModels
from localspec.storage.json_file import JsonFile
from localspec.tuning.opened import Opened
from localspec.tuning.overheads import fit_overheads
from localspec.types import Mode, Request

__all__ = ["fit_overheads", "keep_costs", "measure", "recall_costs"]

DEPTHS = (64, 1536)
BUDGET_S = 16.0
READING_SHARE = 0.25  # of the budget, for a long text to measure behind
MOST_DRIFT = 1.1  # beyond it something else was at work on the machine
SCHEMA = 1


def measure(
    models: TunableModels,
    *,
    depths: Sequence[int] = DEPTHS,
    budget_s: float = BUDGET_S,
    opened: Opened | None = None,
) -> Iterator[CallCosts]:
    """Yield the costs of calls, alone and with both models at work, with little and with much in the caches.

    Where the speed of the machine drifts, a measurement is repeated once, and the steadier one counts.
    A slow model is spared the reading of long texts. Raises `UserError` if tokens cannot be taken back.
    With `opened` models, those that crash while both are at work go on alone.
    """
    ways = (False,) if models.draft is None else (False, True)
    share_s = budget_s / len(ways) / len(depths)
    most, before = models.target.context * 3 // 4, 0
    for asked in depths:
        depth = min(asked, most)
        if depth < 2 * before:
            return
        for together in ways:
            try:
                found = _steady(models, CostRequest(depth, together, budget_s=share_s))
            except EngineError as error:
                if opened is None or not together:
                    raise
                models, ways = opened.without("ssd", error), (False,)
                break
            yield found
        before = depth
        most = min(most, int(READING_SHARE * budget_s / _seconds_per_token(found)))


def _steady(models: TunableModels, wish: CostRequest) -> CallCosts:
    found = models.measure_costs(wish)
    if _unsteadiness(found) <= log(MOST_DRIFT):
        return found
    return min(found, models.measure_costs(wish), key=_unsteadiness)


def _seconds_per_token(calls: CallCosts) -> float:
    """Return what a token of a prompt takes at most."""
    return min(seconds / size for size, seconds in calls.verify)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Costs, and the name of everything that they depend on."""

    key: str
    calls: tuple[CallCosts, ...]
    overheads: tuple[Overhead, ...]
    left_out: tuple[tuple[Mode, str], ...] = ()


def keep_costs(path: Path, key: str, costs: Costs) -> None:
    """Write costs down; `key` names everything that they depend on. Raises `StoreError`."""
    _file(path).write(_Kept(key, costs.calls, costs.overheads, costs.left_out))


def recall_costs(path: Path, key: str) -> Costs | None:
    """Return the costs that were kept under this key; None if there are none or they are damaged."""
    kept = _file(path).read()
    return None if kept is None or kept.key != key else Costs(kept.calls, kept.overheads, kept.left_out)


def _file(path: Path) -> JsonFile[_Kept]:
    return JsonFile(path, _Kept, SCHEMA, is_sound=_is_sound)


def _is_sound(kept: _Kept) -> bool:
    calls = kept.calls
    times = [seconds for each in calls for _, seconds in (*each.verify, *each.step)]
    others = [each.spread for each in calls]
    for each in kept.overheads:
        others += each.round_s, each.token_s, each.verify, each.step, each.handoff_s
    return (
        bool(calls)
        and all(each.verify for each in calls)
        and min(*times, *(each.drift for each in calls)) > 0
        and min(others) >= 0
    )


def _unsteadiness(calls: CallCosts) -> float:
    return abs(log(calls.drift))


HOLDS = 1.1  # a target token that takes this many times as long, or as short, was measured on another day
CHECK_S = 0.5
CALLS_SHARE = 0.6  # of the time; the rest is for whole rounds

Step = tuple[str, int]
"""What was just done, and how many steps there are."""


def steps_of(models: TunableModels) -> int:
    """Return how many steps there are at most: calls alone and together at every depth, and rounds."""
    return len(DEPTHS) * (1 if models.draft is None else 2) + 1


def can_rewind(models: TunableModels) -> bool:
    """Tell whether tokens can be taken back, which everything but plain decoding needs."""
    try:
        _time_tokens(models, 1, together=False, budget_s=0.0)
    except UserError:
        return False
    return True


def costs_of(
    opened: Opened, path: Path, key: str, requests: Sequence[Request], budget_s: float
) -> Generator[Step, None, Costs]:
    """Return the costs of a pair, measured where none are kept that still hold; yield what was just done.

    Modes that crash are left out, and all where tokens cannot be taken back.
    """
    kept, steps = recall_costs(path, key), steps_of(opened.models)
    if kept is not None and not kept.left_out and _still_holds(opened.models, kept.calls[0]):
        yield "measured before, and still true", steps
        return kept
    calls: list[CallCosts] = []
    try:
        for each in measure(opened.models, budget_s=CALLS_SHARE * budget_s, opened=opened):
            calls.append(each)
            words = "both at work" if each.together else "one at a time"
            yield f"{words}, {each.depth} tokens in the cache", steps
    except UserError as error:
        yield error.message, steps
        drafting: tuple[Mode, ...] = get_args(Mode)[1:]
        return Costs((), left_out=tuple((mode, error.message) for mode in drafting))
    overheads = fit_overheads(opened.models, calls, requests, (1.0 - CALLS_SHARE) * budget_s, opened)
    costs = Costs(tuple(calls), overheads, tuple(opened.left_out.items()))
    keep_costs(path, key, costs)
    missing = [f"{mode} left out: {reason}" for mode, reason in costs.left_out]
    yield "; ".join(missing) or "whole rounds in every mode", len(calls) + 1 + len(missing)
    return costs


def _still_holds(models: TunableModels, calls: CallCosts) -> bool:
    found = _time_tokens(models, calls.depth, together=calls.together, budget_s=CHECK_S)
    now, before = dict(found.verify), dict(calls.verify)
    return 1 / HOLDS <= now[1] / before[1] <= HOLDS


def _time_tokens(models: TunableModels, depth: int, *, together: bool, budget_s: float) -> CallCosts:
    """Time the target's calls of one token."""
    return models.measure_costs(
        CostRequest(depth, together, verify_sizes=(1,), step_widths=(), budget_s=budget_s)
    )
