"""What the calls of a pair cost on this machine: measured, and kept until something changes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import inf, log
from pathlib import Path
from typing import Any, cast, get_args

from localspec.decoding.measurements import CallCosts, Costs, CostWish, Overhead
from localspec.errors import EngineError
from localspec.inference.interface import TunableModels
from localspec.storage.paths import write_atomically
from localspec.tuning.opened import Opened
from localspec.tuning.overheads import fit_overheads
from localspec.types import Mode

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
                found = _steady(models, CostWish(depth, together, budget_s=share_s))
            except EngineError as error:
                if opened is None or not together:
                    raise
                models, ways = opened.without("ssd", error), (False,)
                break
            yield found
        before = depth
        most = min(most, int(READING_SHARE * budget_s / _seconds_per_token(found)))


def _steady(models: TunableModels, wish: CostWish) -> CallCosts:
    found = models.measure_costs(wish)
    if _unsteadiness(found) <= log(MOST_DRIFT):
        return found
    return min(found, models.measure_costs(wish), key=_unsteadiness)


def _seconds_per_token(calls: CallCosts) -> float:
    """Return what a token of a prompt takes at most."""
    return min(seconds / size for size, seconds in calls.verify)


def keep_costs(path: Path, key: str, costs: Costs) -> None:
    """Write costs down; `key` names everything that they depend on. Raises `StoreError`."""
    value = {"schema": SCHEMA, "key": key, **asdict(costs)}
    write_atomically(path, json.dumps(value, indent=1) + "\n")


def recall_costs(path: Path, key: str) -> Costs | None:
    """Return the costs that were kept under this key; None if there are none or they are damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["schema"] != SCHEMA or value["key"] != key:
            return None
        calls = tuple(_calls(each) for each in value["calls"])
        overheads = tuple(_overhead(each) for each in value["overheads"])
        left_out = tuple((_mode(mode), str(reason)) for mode, reason in value.get("left_out", ()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    usable = calls and all(each.verify for each in calls)
    return Costs(calls, overheads, left_out) if usable else None


def _unsteadiness(calls: CallCosts) -> float:
    return abs(log(calls.drift))


def _calls(value: dict[str, Any]) -> CallCosts:
    return CallCosts(
        depth=int(value["depth"]),
        together=bool(value["together"]),
        verify=_points(value["verify"]),
        step=_points(value["step"]),
        drift=_positive(value["drift"]),
        spread=_finite(value["spread"]),
    )


def _points(value: list[list[Any]]) -> tuple[tuple[int, float], ...]:
    return tuple((int(size), _positive(seconds)) for size, seconds in value)


def _overhead(value: dict[str, Any]) -> Overhead:
    mode = _mode(value.pop("mode"))
    return Overhead(mode, **{name: _finite(number) for name, number in value.items()})


def _mode(value: object) -> Mode:
    if value not in get_args(Mode):
        raise ValueError(f"not a mode: {value!r}")
    return cast(Mode, value)


def _positive(value: object) -> float:
    number = _finite(value)
    if not number:
        raise ValueError("a time of nothing")
    return number


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
        raise ValueError(f"not a time: {value!r}")
    return float(value)
