"""What the figures of the report draw beside what the tuner found: fits, means, nearest cells, agreement."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from statistics import correlation, median

import numpy as np

from localspec.tuning.events import DraftCalibration, RankCurve
from localspec.tuning.report.data import LandscapeCell
from localspec.tuning.report.svg import Mark, Point, finite
from localspec.types import EngineSettings

_MOST_ACCEPTED = 8  # numbers of accepted tokens that are told one by one


def lowest(calibration: DraftCalibration) -> Mark | None:
    """Return the mark at the draft temperature that fits best, None where none can be drawn."""
    kept = sorted(finite(calibration.divergence))
    if not kept:
        return None
    best = calibration.draft_temperature
    height = np.interp(best, [x for x, _ in kept], [y for _, y in kept])
    return Mark(best, float(height), f"lowest at {best:.2f}", lift=52)


def told_ranks(ranks: RankCurve) -> list[tuple[int, int, tuple[float, ...]]]:
    """Return what is told one by one: numbers of accepted tokens, how often they were seen, and hit rates."""
    seen = zip(range(_MOST_ACCEPTED + 1), ranks.counts, ranks.hits, strict=False)
    return [each for each in seen if each[1] > 0]


def mean_hits(ranks: RankCurve) -> tuple[Point, ...]:
    """Return the hit rate by fan-out over all numbers of accepted tokens, weighted by what was seen."""
    points = []
    for rank in range(max((len(hits) for hits in ranks.hits), default=0)):
        told = [(n, h[rank]) for n, h in zip(ranks.counts, ranks.hits, strict=False) if rank < len(h)]
        seen = [(n, share) for n, share in told if n > 0 and isfinite(share)]
        if seen:
            points.append((rank + 1.0, sum(n * share for n, share in seen) / sum(n for n, _ in seen)))
    return tuple(points)


def power_law(ranks: RankCurve, mean: Sequence[Point]) -> list[Point]:
    """Return the fitted hit rates as far as there are means."""
    steps = [mean[-1][0] ** (step / 24) for step in range(25)]
    return [(x, max(0.0, 1 - ranks.scale * x**-ranks.exponent)) for x in steps]


def nearest(cells: Sequence[LandscapeCell], settings: EngineSettings) -> tuple[LandscapeCell | None, bool]:
    """Return the cell closest to settings with a draft model, and whether it is exactly theirs."""
    length, budget = settings.draft_length, settings.fan_out_budget if settings.mode == "ssd" else 0
    some = [cell for cell in cells if (cell.budget > 0) == (budget > 0) and settings.mode in {"sd", "ssd"}]
    found = min(some, key=lambda c: (abs(c.draft_length - length), abs(c.budget - budget)), default=None)
    return found, found is not None and (found.draft_length, found.budget) == (length, budget)


def best_so_far(trials: Sequence[Point], last: int) -> tuple[Point, ...]:
    """Return the corners of the line that rises with every better trial."""
    corners: list[Point] = []
    for at, rate in trials:
        if not corners or rate > corners[-1][1]:
            corners += [(at, corners[-1][1] if corners else rate), (at, rate)]
    return (*corners, (float(last), corners[-1][1])) if corners else ()


def agreement(points: Sequence[Point]) -> str:
    """Return how well predictions agree with what was measured."""
    points = [point for point in points if point[1] > 0]
    if not points:
        return ""
    errors = [abs(predicted / measured - 1) for predicted, measured in points]
    said = f"{len(points)} settings: median error {median(errors):.1%}, largest {max(errors):.1%}"
    ranks = [_order(side) for side in zip(*points, strict=True)]
    if len(points) < 5 or any(len(set(each)) == 1 for each in ranks):
        return said + "."
    return f"{said}, rank correlation {correlation(*ranks):.2f}."


def _order(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]
