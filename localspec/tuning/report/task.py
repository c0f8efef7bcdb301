"""What the report shows of one task: figures of the draft model as a guesser, and of the search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import isfinite, nan

from localspec.tuning.events import DraftCalibration, RankCurve
from localspec.tuning.report.data import LandscapeCell, TaskReport
from localspec.tuning.report.figures import Data, Figure, colours
from localspec.tuning.report.markup import join, tag, text
from localspec.tuning.report.scales import UNKNOWN, Point, finite, fixed, percent
from localspec.tuning.report.svg import (
    Axis,
    Cell,
    Chart,
    Mark,
    Series,
    colour_key,
    columns,
    heatmap,
    line_chart,
    share_bars,
)
from localspec.tuning.report.texts import parameter_name
from localspec.types import EngineSettings

_NO_TRACES = "no texts were recorded with a draft model."
_NO_CHOICE = "only one was tried; a target that takes its best token leaves nothing to calibrate."
_NO_STUDY = "nothing was searched in simulation."
_MOST_DRAWN = 1500  # trials
_MOST_ACCEPTED = 8  # numbers of accepted tokens that are told one by one


def task_figures(task: TaskReport) -> Iterator[Figure]:
    """Yield the figures of a task, also those that have nothing to show."""
    name, settings = task.result.task, task.result.settings
    calibration = task.result.calibration
    yield _acceptance(name, calibration, settings)
    yield _divergence(name, calibration)
    yield _ranks(name, calibration.ranks if calibration else None)
    yield _hit_rates(name, task, settings)
    yield _landscape(name, task, settings)
    yield _history(name, task)
    yield _importance(name, task)


def _acceptance(name: str, calibration: DraftCalibration | None, settings: EngineSettings) -> Figure:
    shares = calibration.acceptance if calibration else ()
    used = settings.draft_length if settings.mode in {"sd", "ssd"} else 0
    title = "Acceptance by position"
    says = "How often the target accepts a draft token that it judges, by its position in the draft." + (
        " Pale: beyond the chosen draft length." if 0 < used < len(shares) else ""
    )
    rows = tuple((str(at), percent(share)) for at, share in enumerate(shares, start=1))
    bars = columns(f"{name}-acceptance", title, shares, used)
    return Figure(title, "from recorded texts", says, bars, _NO_TRACES, Data(("position", "accepted"), rows))


def _divergence(name: str, calibration: DraftCalibration | None) -> Figure:
    points = calibration.divergence if calibration else ()
    title = "Draft temperature"
    mark = None
    if calibration and (kept := [p for p in points if isfinite(p[1])]):
        best = calibration.draft_temperature
        mark = Mark(best, _between(kept, best), f"lowest at {best:.2f}", lift=52)
    says = (
        "How far the draft model's distribution is from the target's, by the draft temperature: "
        "0 is the same, 1 has nothing in common."
    )
    series = (Series("distance", points, "a"),)
    axes = Axis("draft temperature", doubling=True), Axis("total variation distance")
    chart = Chart(f"{name}-divergence", title, mark.text if mark else "", *axes, series, mark)
    rows = tuple((f"{at:.2f}", fixed(distance, 4)) for at, distance in points)
    data = Data(("draft temperature", "distance"), rows)
    drawing = line_chart(chart) if len(points) > 1 else None
    missing = _NO_CHOICE if points else _NO_TRACES
    return Figure(title, "from recorded texts", says, drawing, missing, data)


def _between(points: Sequence[Point], at: float) -> float:
    """Return the height of a line through points."""
    left = max((p for p in points if p[0] <= at), default=min(points))
    right = min((p for p in points if p[0] >= at), default=max(points))
    share = (at - left[0]) / (right[0] - left[0]) if right[0] != left[0] else 0.0
    return left[1] + share * (right[1] - left[1])


def _ranks(name: str, ranks: RankCurve | None) -> Figure:
    title = "Hit rate against fan-out"
    drawing, key, data = None, "", Data((), ())
    says = text(
        "How often the bonus token is among the draft model's first F other choices: pale, after 0, 1, 2 ... "
        "accepted tokens"
    )
    if ranks is not None and (mean := _mean_hits(ranks)):
        series = tuple(_rank_series(ranks, mean))
        power = tag("sup", f"−{ranks.exponent:.2f}")
        says = join([says, f"; the fitted miss rate is {ranks.scale:.3f} × F", power, "."])
        axes = Axis("prepared bonus tokens F", doubling=True), Axis("hit rate", percent=True)
        told = ", ".join(f"F {x:g}: {percent(y)}" for x, y in mean)
        drawing = line_chart(Chart(f"{name}-ranks", title, told, *axes, series))
        key = colours(tuple(each for each in series if "thin" not in each.look))
        data = _rank_data(ranks, mean)
    return Figure(title, "from recorded texts", says, drawing, _NO_TRACES, data, key)


def _mean_hits(ranks: RankCurve) -> tuple[Point, ...]:
    """Return the hit rate by fan-out over all numbers of accepted tokens, weighted by what was seen."""
    points = []
    for rank in range(max((len(hits) for hits in ranks.hits), default=0)):
        told = [(n, h[rank]) for n, h in zip(ranks.counts, ranks.hits, strict=False) if rank < len(h)]
        seen = [(n, share) for n, share in told if n > 0 and isfinite(share)]
        if seen:
            points.append((rank + 1.0, sum(n * share for n, share in seen) / sum(n for n, _ in seen)))
    return tuple(points)


def _rank_series(ranks: RankCurve, mean: tuple[Point, ...]) -> Iterator[Series]:
    for accepted, _, hits in _seen(ranks):
        curve = tuple((rank + 1.0, share) for rank, share in enumerate(hits))
        yield Series(f"after {accepted} accepted", curve, "muted thin", dots=False)
    last = mean[-1][0]
    steps = [last ** (step / 24) for step in range(25)]
    if isfinite(ranks.scale) and isfinite(ranks.exponent):
        fit = tuple((x, max(0.0, 1 - ranks.scale * x**-ranks.exponent)) for x in steps)
        yield Series("power law", fit, "b dashed", dots=False)
    yield Series("seen", mean, "a", line=False)


def _seen(ranks: RankCurve) -> Iterator[tuple[int, int, tuple[float, ...]]]:
    pairs = zip(ranks.counts, ranks.hits, strict=False)
    for accepted, (count, hits) in enumerate(islice(pairs, _MOST_ACCEPTED + 1)):
        if count > 0:
            yield accepted, count, hits


def _rank_data(ranks: RankCurve, mean: tuple[Point, ...]) -> Data:
    kept = tuple(_seen(ranks))
    head = ("F", "all", *(f"after {accepted} accepted (of {count:,})" for accepted, count, _ in kept))
    rows = (
        (f"{x:.0f}", f"{share:.1%}", *(_share(hits, int(x) - 1) for _, _, hits in kept)) for x, share in mean
    )
    return Data(head, tuple(rows))


def _share(hits: tuple[float, ...], rank: int) -> str:
    return f"{hits[rank]:.1%}" if rank < len(hits) and isfinite(hits[rank]) else UNKNOWN


def _hit_rates(name: str, task: TaskReport, settings: EngineSettings) -> Figure:
    title = "Hit rate against budget"
    points = tuple((float(budget), share) for budget, share in sorted(task.hit_rates))
    near = [p for p in points if p[0] == settings.fan_out_budget and settings.mode == "ssd"]
    mark = Mark(*near[0], f"chosen: {percent(near[0][1])}") if near else None
    says = "Rounds whose draft was prepared in time, by how many outcomes were prepared in all."
    axes = Axis("fan-out budget", doubling=True), Axis("hit rate", percent=True, zero=True)
    told = ", ".join(f"{budget:g}: {percent(share)}" for budget, share in points)
    chart = Chart(f"{name}-hits", title, told, *axes, (Series("hit rate", points, "a"),), mark)
    rows = tuple((f"{budget:g}", percent(share)) for budget, share in points)
    data = Data(("budget", "hit rate"), rows)
    return Figure(title, "simulated", says, line_chart(chart), _NO_STUDY, data)


def _landscape(name: str, task: TaskReport, settings: EngineSettings) -> Figure:
    title = "Draft length × budget"
    cells = [Cell(each.draft_length, each.budget, each.tokens_per_s) for each in task.landscape]
    cells = [cell for cell in cells if isfinite(cell.value)]
    ring = _nearest(cells, settings)
    says = "The best tokens/s of any settings with this draft length K and fan-out budget."
    if ring is not None:
        exact = (ring.x, ring.y) == (settings.draft_length, _budget(settings))
        says += f" Ring: the chosen settings{'' if exact else ' (the nearest cell)'}."
    drawing = heatmap(f"{name}-landscape", (title, "draft length K", "fan-out budget"), cells, ring)
    data = _landscape_data(task.landscape)
    key = colour_key(cells) if cells else ""
    return Figure(title, "simulated", says, drawing, _NO_STUDY, data, key)


def _budget(settings: EngineSettings) -> int:
    return settings.fan_out_budget if settings.mode == "ssd" else 0


def _nearest(cells: list[Cell], settings: EngineSettings) -> Cell | None:
    if settings.mode not in {"sd", "ssd"}:
        return None
    wanted = settings.draft_length, _budget(settings)
    some = [cell for cell in cells if (cell.y > 0) == (wanted[1] > 0)]
    return min(some, key=lambda c: (abs(c.x - wanted[0]), abs(c.y - wanted[1])), default=None)


def _landscape_data(cells: tuple[LandscapeCell, ...]) -> Data:
    rates = {(cell.draft_length, cell.budget): cell.tokens_per_s for cell in cells}
    lengths, budgets = sorted({k for k, _ in rates}), sorted({b for _, b in rates})
    rows = ((str(b), *(fixed(rates.get((k, b), nan)) for k in lengths)) for b in budgets)
    return Data(("budget", *(f"K {k}" for k in lengths)), tuple(rows))


def _history(name: str, task: TaskReport) -> Figure:
    title = "The search"
    trials = finite((at, nan if rate is None else rate) for at, rate in enumerate(task.history, 1))
    best = _best_so_far(trials, len(task.history))
    nth = len(trials) // _MOST_DRAWN + 1
    thinned = trials[::nth]
    lost = len(task.history) - len(trials)
    says = f"Tokens/s of {len(task.history):,} trials, and the best so far."
    says += f" {lost:,} failed or were given up." if lost else ""
    says += f" One of {nth} is drawn." if nth > 1 else ""
    series = (Series("a trial", thinned, "muted", line=False), Series("best so far", best, "a", dots=False))
    axes = Axis("trial", tight=True), Axis("tokens/s")
    steps = tuple(dict.fromkeys(best[::2]))
    told = f"best {fixed(best[-1][1])} tokens/s" if best else ""
    drawing = line_chart(Chart(f"{name}-history", title, told, *axes, series))
    data = Data(("trial", "best so far"), tuple((f"{at:.0f}", fixed(rate)) for at, rate in steps))
    return Figure(title, "simulated", says, drawing, _NO_STUDY, data, colours(series))


def _best_so_far(trials: tuple[Point, ...], last: int) -> tuple[Point, ...]:
    """Return the corners of the line that rises with every better trial."""
    corners: list[Point] = []
    for at, rate in trials:
        if not corners or rate > corners[-1][1]:
            corners += [(at, corners[-1][1] if corners else rate), (at, rate)]
    return (*corners, (float(last), corners[-1][1])) if corners else ()


def _importance(name: str, task: TaskReport) -> Figure:
    title = "What mattered"
    shares = [(parameter_name(parameter), share) for parameter, share in task.importance]
    says = "The share of each parameter in how much the trials differed."
    rows = tuple((parameter, f"{share:.1%}") for parameter, share in shares)
    bars = share_bars(f"{name}-importance", title, shares)
    return Figure(title, "simulated", says, bars, _NO_STUDY, Data(("parameter", "share"), rows))
