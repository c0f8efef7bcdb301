"""The stage that measures what calls and rounds cost, or finds that what was measured before still holds."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import get_args

from localspec.decoding.measurements import CallCosts, Costs, CostWish
from localspec.errors import UserError
from localspec.inference.interface import TunableModels
from localspec.tuning.costs import DEPTHS, fit_overheads, keep_costs, measure, recall_costs
from localspec.tuning.opened import Opened
from localspec.types import Mode, Request

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
        CostWish(depth, together, verify_sizes=(1,), step_widths=(), budget_s=budget_s)
    )
