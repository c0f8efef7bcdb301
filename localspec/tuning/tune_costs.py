"""The stage that measures what calls and rounds cost, or finds that what was measured before still holds."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

from localspec.evidence import CallCosts, Costs, CostWish
from localspec.interface import TunableModels
from localspec.tuning.costs import fit_overheads, keep_costs, measure, recall_costs
from localspec.types import Request

HOLDS = 1.1  # a target token that takes this many times as long, or as short, was measured on another day
CHECK_S = 0.5
CALLS_SHARE = 0.6  # of the time; the rest is for whole rounds
STEPS = 5  # calls alone and together at two depths, and rounds


def costs_of(
    models: TunableModels, path: Path, key: str, requests: Sequence[Request], budget_s: float
) -> Generator[str, None, Costs]:
    """Return the costs of a pair, measured where none are kept that still hold; yield what was just done."""
    kept = recall_costs(path, key)
    if kept is not None and _still_holds(models, kept.calls[0]):
        yield "measured before, and still true"
        return kept
    calls: list[CallCosts] = []
    for each in measure(models, budget_s=CALLS_SHARE * budget_s):
        calls.append(each)
        yield f"{'both at work' if each.together else 'one at a time'}, {each.depth} tokens in the cache"
    overheads = fit_overheads(models, calls, requests, (1.0 - CALLS_SHARE) * budget_s)
    costs = Costs(tuple(calls), overheads)
    keep_costs(path, key, costs)
    yield "whole rounds in every mode"
    return costs


def _still_holds(models: TunableModels, calls: CallCosts) -> bool:
    wish = CostWish(calls.depth, together=calls.together, verify_sizes=(1,), step_widths=(), budget_s=CHECK_S)
    now, before = dict(models.measure_costs(wish).verify), dict(calls.verify)
    return 1 / HOLDS <= now[1] / before[1] <= HOLDS
