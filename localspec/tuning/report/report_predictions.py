"""What the report shows of the simulator: predicted against measured tokens per second."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from localspec.tuning.report.data import Prediction, ReportInput
from localspec.tuning.report.figures import Data, Figure, colours, gallery
from localspec.tuning.report.markup import Markup, tag
from localspec.tuning.report.scales import Point, fixed
from localspec.tuning.report.svg import Axis, Chart, Series, line_chart
from localspec.tuning.report.texts import agreement, brief, interval, mode_name
from localspec.types import Mode

_BAND = 0.08  # how far a prediction may be off and still be called good
_LOOKS: dict[Mode, str] = {"ssd": "a", "sd": "b", "ngram": "c", "off": "muted"}


def prediction_section(given: ReportInput) -> Markup:
    """Return how well the simulator's predictions agree with real runs."""
    pairs = _pairs(given)
    title = "Predicted against measured"
    said = agreement(pairs)
    clouds = tuple(_cloud(pairs, mode) for mode in _LOOKS if any(p.settings.mode == mode for p in pairs))
    line = _identity(pairs)
    axes = Axis("simulated tokens/s"), Axis("measured tokens/s")
    chart = Chart("scatter", title, said, *axes, (line, *clouds), band=_band(line.points), square=True)
    figure = Figure(
        title,
        "simulated and measured",
        f"{said} Shaded: within {_BAND:.0%}.",
        line_chart(chart) if said else None,
        "nothing was both simulated and run.",
        _data(pairs),
        colours((*clouds, line)),
    )
    return tag("section", tag("h2", "Can the simulation be trusted?"), gallery([figure]), id="predictions")


def _pairs(given: ReportInput) -> tuple[Prediction, ...]:
    contenders = (
        Prediction(task.result.task, each.settings, each.predicted, each.rate)
        for task in given.tasks
        for each in task.result.contenders
        if each.predicted is not None
    )
    return (*contenders, *given.predictions)


def _identity(pairs: Sequence[Prediction]) -> Series:
    ends = [end for pair in pairs for end in (pair.predicted, pair.measured.value) if isfinite(end)]
    points = ((min(ends), min(ends)), (max(ends), max(ends))) if ends else ()
    return Series("prediction = measurement", points, "muted dashed", dots=False)


def _band(ends: Sequence[Point]) -> tuple[Point, ...]:
    above = [(at, at * (1 + _BAND)) for at, _ in ends]
    below = [(at, at * (1 - _BAND)) for at, _ in ends]
    return (*above, *reversed(below))


def _cloud(pairs: Sequence[Prediction], mode: Mode) -> Series:
    own = [pair for pair in pairs if pair.settings.mode == mode]
    points = tuple((pair.predicted, pair.measured.value) for pair in own)
    whiskers = tuple((pair.predicted, pair.measured.low, pair.measured.high) for pair in own)
    return Series(mode_name(mode), points, f"{_LOOKS[mode]} cross", line=False, whiskers=whiskers)


def _data(pairs: Sequence[Prediction]) -> Data:
    rows = (
        (
            f"{pair.task}: {brief(pair.settings)}",
            fixed(pair.predicted),
            fixed(pair.measured.value),
            interval(pair.measured),
        )
        for pair in pairs
    )
    return Data(("settings", "simulated", "measured", "95%"), tuple(rows))
