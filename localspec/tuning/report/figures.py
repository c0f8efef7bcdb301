"""The figures of the report: their headings, their drawings, and the same values as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite, nan
from statistics import correlation, median
from typing import Literal

import numpy as np
from markupsafe import Markup

from localspec.decoding.measurements import CallCosts, Costs
from localspec.tuning.events import DraftCalibration, RankCurve
from localspec.tuning.report.data import LandscapeCell, ReportInput, TaskReport
from localspec.tuning.report.svg import (
    Axis,
    Chart,
    Mark,
    Point,
    Series,
    drawn,
    finite,
    line_chart,
)
from localspec.tuning.words import (
    SETTINGS,
    UNKNOWN,
    brief,
    fixed,
    low_to_high,
    milliseconds,
    mode_name,
    percent,
)
from localspec.types import EngineSettings, Mode

_NO_TRACES = "no texts were recorded with a draft model."
_NO_CHOICE = "only one was tried; a target that takes its best token leaves nothing to calibrate."
_NO_STUDY = "nothing was searched in simulation."
_MOST_DRAWN = 1500  # trials
_MOST_ACCEPTED = 8  # numbers of accepted tokens that are told one by one
_BAND = 0.08  # how far a prediction may be off and still be called good
_LOOKS: dict[Mode, str] = {"ssd": "a", "sd": "b", "ngram": "c", "off": "muted"}


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing with its heading, its values and what its colours mean; without one, `missing` says why."""

    title: str
    source: Literal["measured", "from recorded texts", "simulated", "simulated and measured"]
    says: str
    drawing: Markup | None
    missing: str
    head: tuple[str, ...]
    rows: Iterable[tuple[str, ...]]
    key: str = ""


def task_figures(task: TaskReport) -> Iterator[Figure]:
    """Yield the figures of a task, also those that have nothing to show."""
    name, settings = task.result.task, task.result.settings
    calibration = task.result.calibration
    yield _acceptance(name, calibration.acceptance if calibration else (), settings)
    yield _divergence(name, calibration)
    yield _ranks(name, calibration.ranks if calibration else RankCurve((), (), nan, nan))
    yield _hit_rates(name, task.hit_rates, settings)
    yield _landscape(name, task.landscape, settings)
    yield _history(name, task.history)
    yield _importance(name, task.importance)


def _acceptance(name: str, shares: tuple[float, ...], settings: EngineSettings) -> Figure:
    used = settings.draft_length if settings.mode in {"sd", "ssd"} else 0
    title = "Acceptance by position"
    says = "How often the target accepts a draft token that it judges, by its position in the draft."
    if 0 < used < len(shares):
        says += " Pale: beyond the chosen draft length."
    rows = [(str(at), percent(share)) for at, share in enumerate(shares, start=1)]
    kept = [(at, share) for at, share in enumerate(shares, start=1) if isfinite(share)]
    place = {"key": f"{name}-acceptance", "title": title, "count": len(shares)}
    drawing = drawn("columns", **place, shares=kept, used=used) if kept else None
    return Figure(title, "from recorded texts", says, drawing, _NO_TRACES, ("position", "accepted"), rows)


def _divergence(name: str, calibration: DraftCalibration | None) -> Figure:
    points = calibration.divergence if calibration else ()
    title = "Draft temperature"
    mark = None
    if calibration and (kept := sorted(finite(points))):
        best = calibration.draft_temperature
        height = np.interp(best, [x for x, _ in kept], [y for _, y in kept])
        mark = Mark(best, float(height), f"lowest at {best:.2f}", lift=52)
    says = (
        "How far the draft model's distribution is from the target's, by the draft temperature: "
        "0 is the same, 1 has nothing in common."
    )
    series = (Series("distance", points, "a"),)
    axes = Axis("draft temperature", doubling=True), Axis("total variation distance")
    chart = Chart(f"{name}-divergence", title, mark.text if mark else "", *axes, series, mark)
    rows = [(f"{at:.2f}", fixed(distance, 4)) for at, distance in points]
    drawing = line_chart(chart) if len(points) > 1 else None
    missing = _NO_CHOICE if points else _NO_TRACES
    head = ("draft temperature", "distance")
    return Figure(title, "from recorded texts", says, drawing, missing, head, rows)


def _ranks(name: str, ranks: RankCurve) -> Figure:
    title = "Hit rate against fan-out"
    mean = _mean_hits(ranks)
    pairs = enumerate(islice(zip(ranks.counts, ranks.hits, strict=False), _MOST_ACCEPTED + 1))
    seen = [(accepted, count, hits) for accepted, (count, hits) in pairs if count > 0]
    series = [
        Series(f"after {accepted} accepted", tuple(enumerate(hits, 1)), "muted thin", dots=False)
        for accepted, _, hits in seen
    ]
    key = []
    if mean and isfinite(ranks.scale) and isfinite(ranks.exponent):
        steps = [mean[-1][0] ** (step / 24) for step in range(25)]
        fit = tuple((x, max(0.0, 1 - ranks.scale * x**-ranks.exponent)) for x in steps)
        key.append(Series("power law", fit, "b dashed", dots=False))
    key.append(Series("seen", mean, "a", line=False))
    says = Markup(
        "How often the bonus token is among the draft model's first F other choices: pale, after 0, 1, 2 ... "
        "accepted tokens; the fitted miss rate is {:.3f} × F<sup>−{:.2f}</sup>."
    ).format(ranks.scale, ranks.exponent)
    axes = Axis("prepared bonus tokens F", doubling=True), Axis("hit rate", percent=True)
    told = ", ".join(f"F {x:g}: {percent(y)}" for x, y in mean)
    drawing = line_chart(Chart(f"{name}-ranks", title, told, *axes, (*series, *key))) if mean else None
    head = ("F", "all", *(f"after {accepted} accepted (of {count:,})" for accepted, count, _ in seen))
    rows = [
        (f"{x:.0f}", percent(share, 1), *(_share(hits, int(x) - 1) for _, _, hits in seen))
        for x, share in mean
    ]
    return Figure(
        title, "from recorded texts", says, drawing, _NO_TRACES, head, rows, drawn("legend", series=key)
    )


def _mean_hits(ranks: RankCurve) -> tuple[Point, ...]:
    """Return the hit rate by fan-out over all numbers of accepted tokens, weighted by what was seen."""
    points = []
    for rank in range(max((len(hits) for hits in ranks.hits), default=0)):
        told = [(n, h[rank]) for n, h in zip(ranks.counts, ranks.hits, strict=False) if rank < len(h)]
        seen = [(n, share) for n, share in told if n > 0 and isfinite(share)]
        if seen:
            points.append((rank + 1.0, sum(n * share for n, share in seen) / sum(n for n, _ in seen)))
    return tuple(points)


def _share(hits: tuple[float, ...], rank: int) -> str:
    return percent(hits[rank], 1) if rank < len(hits) else UNKNOWN


def _hit_rates(name: str, rates: tuple[Point, ...], settings: EngineSettings) -> Figure:
    title = "Hit rate against budget"
    points = tuple(sorted(rates))
    near = [p for p in points if p[0] == settings.fan_out_budget and settings.mode == "ssd"]
    mark = Mark(*near[0], f"chosen: {percent(near[0][1])}") if near else None
    says = "Rounds whose draft was prepared in time, by how many outcomes were prepared in all."
    axes = Axis("fan-out budget", doubling=True), Axis("hit rate", percent=True, zero=True)
    rows = [(f"{budget:g}", percent(share)) for budget, share in points]
    told = ", ".join(f"{budget}: {share}" for budget, share in rows)
    chart = Chart(f"{name}-hits", title, told, *axes, (Series("hit rate", points, "a"),), mark)
    return Figure(title, "simulated", says, line_chart(chart), _NO_STUDY, ("budget", "hit rate"), rows)


def _landscape(name: str, landscape: tuple[LandscapeCell, ...], settings: EngineSettings) -> Figure:
    title = "Draft length × budget"
    says = "The best tokens/s of any settings with this draft length K and fan-out budget."
    cells = [cell for cell in landscape if isfinite(cell.tokens_per_s)]
    wanted = settings.draft_length, settings.fan_out_budget if settings.mode == "ssd" else 0
    ring = _nearest(cells, wanted) if settings.mode in {"sd", "ssd"} else None
    if ring is not None:
        exact = (ring.draft_length, ring.budget) == wanted
        says += f" Ring: the chosen settings{'' if exact else ' (the nearest cell)'}."
    drawing, key = None, Markup("")
    if cells:
        speeds = [cell.tokens_per_s for cell in cells]
        ends = {"low": min(speeds), "high": max(speeds)}
        drawing = drawn("heatmap", key=f"{name}-landscape", title=title, cells=cells, ring=ring, **ends)
        key = drawn("ramp", **ends)
    rates = {(cell.draft_length, cell.budget): cell.tokens_per_s for cell in landscape}
    lengths, budgets = sorted({k for k, _ in rates}), sorted({b for _, b in rates})
    head = ("budget", *(f"K {k}" for k in lengths))
    rows = [(str(b), *(fixed(rates.get((k, b))) for k in lengths)) for b in budgets]
    return Figure(title, "simulated", says, drawing, _NO_STUDY, head, rows, key)


def _nearest(cells: Sequence[LandscapeCell], wanted: tuple[int, int]) -> LandscapeCell | None:
    """Return the cell closest to a draft length and a budget, with a budget only if one is wanted."""
    length, budget = wanted
    some = [cell for cell in cells if (cell.budget > 0) == (budget > 0)]
    return min(some, key=lambda c: (abs(c.draft_length - length), abs(c.budget - budget)), default=None)


def _history(name: str, history: tuple[float | None, ...]) -> Figure:
    title = "The search"
    trials = finite((at, nan if rate is None else rate) for at, rate in enumerate(history, 1))
    best = _best_so_far(trials, len(history))
    nth = len(trials) // _MOST_DRAWN + 1
    lost = len(history) - len(trials)
    says = f"Tokens/s of {len(history):,} trials, and the best so far."
    says += f" {lost:,} failed or were given up." if lost else ""
    says += f" One of {nth} is drawn." if nth > 1 else ""
    series = (
        Series("a trial", trials[::nth], "muted", line=False),
        Series("best so far", best, "a", dots=False),
    )
    told = f"best {fixed(best[-1][1])} tokens/s" if best else ""
    chart = Chart(f"{name}-history", title, told, Axis("trial", tight=True), Axis("tokens/s"), series)
    rows = [(f"{at:.0f}", fixed(rate)) for at, rate in dict.fromkeys(best[::2])]
    key = drawn("legend", series=series)
    head = ("trial", "best so far")
    return Figure(title, "simulated", says, line_chart(chart), _NO_STUDY, head, rows, key)


def _best_so_far(trials: tuple[Point, ...], last: int) -> tuple[Point, ...]:
    """Return the corners of the line that rises with every better trial."""
    corners: list[Point] = []
    for at, rate in trials:
        if not corners or rate > corners[-1][1]:
            corners += [(at, corners[-1][1] if corners else rate), (at, rate)]
    return (*corners, (float(last), corners[-1][1])) if corners else ()


def _importance(name: str, importance: tuple[tuple[str, float], ...]) -> Figure:
    title = "What mattered"
    says = "The share of each parameter in how much the trials differed."
    shares = [(SETTINGS.get(each, each.replace("_", " ")), share) for each, share in importance]
    kept = sorted((each for each in shares if isfinite(each[1])), key=lambda each: -each[1])
    drawing = drawn("share_bars", key=f"{name}-importance", title=title, shares=kept) if kept else None
    rows = [(parameter, percent(share, 1)) for parameter, share in shares]
    return Figure(title, "simulated", says, drawing, _NO_STUDY, ("parameter", "share"), rows)


def cost_figures(costs: Costs | None, has_draft: bool) -> Iterator[Figure]:
    """Yield the cost curves of both models."""
    calls = sorted(costs.calls, key=lambda each: (each.together, each.depth)) if costs else []
    missing = "costs were not measured."
    yield _cost_figure(
        ("verify", "Target: verifying m tokens in one call", "tokens in the call"),
        [(each, dict(each.verify)) for each in calls],
        ("The flatter the curve, the cheaper it is to check guesses.", missing),
    )
    yield _cost_figure(
        ("step", "Draft model: one step of N branches", "branches in the call"),
        [(each, dict(each.step)) for each in calls],
        (
            "A flat curve means that preparing more outcomes costs little.",
            missing if has_draft else "there was no draft model.",
        ),
    )


def _cost_figure(
    names: tuple[str, str, str],
    curves: Sequence[tuple[CallCosts, dict[int, float]]],
    words: tuple[str, str],
) -> Figure:
    key, title, sizes = names
    told = [(calls, curve) for calls, curve in curves if curve]
    shallow = min((calls.depth for calls, _ in curves), default=0)
    series = tuple(
        Series(
            f"{'together' if calls.together else 'alone'} at {calls.depth:,} tokens",
            tuple((size, 1000 * seconds) for size, seconds in sorted(curve.items())),
            ("b" if calls.together else "a") + ("" if calls.depth == shallow else " dashed"),
        )
        for calls, curve in told
    )
    axes = Axis(sizes, doubling=key == "step", tight=True), Axis("ms per call", zero=True, unit=" ms")
    chart = Chart(key, title, "; ".join(map(_ends, series)), *axes, series)
    rows = [
        (str(size), *(milliseconds(curve.get(size, nan)) for _, curve in told))
        for size in sorted({size for _, curve in told for size in curve})
    ]
    head = (sizes, *(each.name for each in series))
    legend = drawn("legend", series=series)
    return Figure(title, "measured", words[0], line_chart(chart), words[1], head, rows, legend)


def _ends(each: Series) -> str:
    (first, low), (last, high) = each.points[0], each.points[-1]
    return f"{each.name}: {fixed(low, 2)} ms for {first:g}, {fixed(high, 2)} ms for {last:g}"


def prediction_figure(given: ReportInput) -> Figure:
    """Return how well the simulator's predictions agree with real runs."""
    pairs = [
        (task.result.task, each.settings, each.predicted, each.rate)
        for task in given.tasks
        for each in task.result.contenders
        if each.predicted is not None
    ]
    title = "Predicted against measured"
    points = finite((predicted, rate.value) for _, _, predicted, rate in pairs)
    said = _agreement([point for point in points if point[1] > 0])
    clouds = []
    for mode, look in _LOOKS.items():
        if own := [(predicted, rate) for _, settings, predicted, rate in pairs if settings.mode == mode]:
            dots = tuple((predicted, rate.value) for predicted, rate in own)
            whiskers = tuple((predicted, rate.low, rate.high) for predicted, rate in own)
            clouds.append(Series(mode_name(mode), dots, f"{look} cross", line=False, whiskers=whiskers))
    values = [value for point in points for value in point]
    ends = [min(values), max(values)] if values else []
    line = Series("prediction = measurement", tuple((x, x) for x in ends), "muted dashed", dots=False)
    band = [(x, x * (1 + _BAND)) for x in ends] + [(x, x * (1 - _BAND)) for x in reversed(ends)]
    axes = Axis("simulated tokens/s"), Axis("measured tokens/s")
    chart = Chart("scatter", title, said, *axes, (line, *clouds), band=tuple(band), square=True)
    rows = [
        (f"{task}: {brief(settings)}", fixed(predicted), fixed(rate.value), low_to_high(rate))
        for task, settings, predicted, rate in pairs
    ]
    return Figure(
        title,
        "simulated and measured",
        f"{said} Shaded: within {_BAND:.0%}.",
        line_chart(chart) if said else None,
        "nothing was both simulated and run.",
        ("settings", "simulated", "measured", "95%"),
        rows,
        drawn("legend", series=[*clouds, line]),
    )


def _agreement(points: Sequence[Point]) -> str:
    """Return how well predictions agree with what was measured."""
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
