"""The output of a benchmark: Markdown for users, CSV and JSON for programs, and a chart of the speeds."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import isnan, nan
from typing import TYPE_CHECKING

from localspec.app.answer_json import Json
from localspec.app.comparison import BenchRequest
from localspec.benchmark.harness import Run
from localspec.benchmark.statistics import Interval
from localspec.tuning.words import figure
from localspec.units import memory

if TYPE_CHECKING:
    from localspec.benchmark.figures import Row, SpeedTable


UNKNOWN = "-"
_INTERVALS = ("tokens_per_s", "against", "whole_against")


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of the figures; `machine` is in words, `complete` False for a stopped run."""

    target: str
    draft: str | None
    machine: str
    command: str
    complete: bool


def markdown(table: SpeedTable, request: BenchRequest, conditions: Conditions) -> Iterator[str]:
    """Yield the lines of a table for each task, then the conditions."""
    for task in dict.fromkeys(row.task for row in table.rows):
        yield f"### {' '.join(task.split())}"
        yield ""
        yield f"| {' | '.join(name for name, _ in _COLUMNS)} |"
        yield f"|{'|'.join(['---'] + ['---:'] * (len(_COLUMNS) - 1))}|"
        for row in table.rows:
            if row.task == task:
                yield f"| {' | '.join(cell(row) for _, cell in _COLUMNS)} |"
        yield ""
    yield f"{models_words(conditions)}; {_asked(request)}. {conditions.machine}."
    if table.comparable and table.drift.disturbed:
        yield (
            f"The machine changed its pace in {_prompts(len(table.drift.disturbed))}, at worst by "
            f"{table.drift.worst:.0%}; the comparisons leave those out."
        )
    if not conditions.complete:
        yield "Stopped before the end."
    yield f"`{conditions.command}`"


def models_words(conditions: Conditions) -> str:
    """Return the names of the models."""
    return conditions.target if conditions.draft is None else f"{conditions.target} + {conditions.draft}"


def _asked(request: BenchRequest) -> str:
    times = f", {request.repetitions} times each" if request.repetitions > 1 else ""
    how = f"at most {request.max_tokens} tokens, temperature {request.sampling.temperature:g}"
    return f"{_prompts(len(request.prompts))}{times}, {how}"


def _prompts(number: int) -> str:
    return f"{number} prompt{'s' * (number != 1)}"


def times(ratio: float) -> str:
    """Return a speed-up in words."""
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:.3g}"


def _with_interval(found: Interval | None, say: Callable[[float], str]) -> str:
    if found is None:
        return UNKNOWN
    if isnan(found.low):
        return say(found.value)
    return f"{say(found.value)} ({say(found.low)}-{say(found.high)})"


def _known(value: float | None, say: Callable[[float], str]) -> str:
    return UNKNOWN if value is None else say(value)


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.{0 if seconds >= 0.1 else 2}f}"


_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("", lambda row: row.contender),
    ("tokens/s", lambda row: _with_interval(row.tokens_per_s, figure)),
    ("x plain", lambda row: _with_interval(row.against, times)),
    ("x plain, whole", lambda row: _with_interval(row.whole_against, times)),
    ("TTFT ms", lambda row: _milliseconds(row.first_token_s)),
    ("prompt tokens/s", lambda row: _known(row.prompt_tokens_per_s, figure)),
    ("tokens/round", lambda row: _known(row.tokens_per_round, "{:.2f}".format)),
    ("accepted", lambda row: _known(row.acceptance, "{:.0%}".format)),
    ("hits", lambda row: _known(row.hit_rate, "{:.0%}".format)),
    ("wait ms", lambda row: _known(row.wait_s, _milliseconds)),
    ("Python ms", lambda row: _known(row.python_s, _milliseconds)),
    ("of bound", lambda row: _known(row.of_bound, "{:.0%}".format)),
    ("memory", lambda row: _known(row.memory_peak, memory)),
)


def comma_separated(table: SpeedTable) -> str:
    """Return the rows as CSV, with intervals in separate columns; unknown values are empty."""
    flat = [dict(_flat(row)) for row in table.rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(row: Row) -> Iterator[tuple[str, object]]:
    for name, value in asdict(row).items():
        if name in _INTERVALS:
            for end in ("value", "low", "high"):
                found = value[end] if value else nan
                yield name if end == "value" else f"{name}_{end}", None if isnan(found) else found
        elif name == "accepted_at":
            yield name, " ".join(f"{share:.4g}" for share in value)
        else:
            yield name, value


def whole(table: SpeedTable, request: BenchRequest, conditions: Conditions) -> Json:
    """Return everything as it is written to JSON."""
    return {
        **asdict(conditions),
        "prompts": len(request.prompts),
        "runs": request.repetitions,
        "max_tokens": request.max_tokens,
        "sampling": asdict(request.sampling),
        "comparable": table.comparable,
        "reason": table.reason or None,
        "drift": asdict(table.drift),
        "rows": [asdict(row) for row in table.rows],
    }


def line(run: Run) -> Json:
    """Return a run as it is written to a line of JSON."""
    names = ("contender", "task", "prompt", "repetition")
    speed = {"tokens_per_s": run.summary.tokens_per_s}
    return {name: getattr(run, name) for name in names} | speed | asdict(run.summary)


# pixels
_ROW = 24
_NAMES = 180
_BARS = 370
_WIDTH = 800
_STYLE = """
:root { --card: #fff; --ink: #222; --plain: #b9c2cc; --bar: #3b7dd8 }
@media (prefers-color-scheme: dark) {
  :root { --card: #16181c; --ink: #ddd; --plain: #555c66; --bar: #6aa5f5 }
}
svg { background: var(--card); font: 13px system-ui, sans-serif } text { fill: var(--ink) }
.bar { fill: var(--bar) } .plain { fill: var(--plain) } .whisker { stroke: var(--ink) }
"""


def picture(table: SpeedTable, title: str, below: str) -> str:
    """Return an SVG file of bars with their intervals: the first contender of each task is pale."""
    from xml.etree.ElementTree import Element, SubElement, tostring

    tasks = dict.fromkeys(row.task for row in table.rows)
    fastest = max(row.tokens_per_s.value for row in table.rows)
    # An interval that says nothing does not flatten all bars.
    ends = [row.tokens_per_s.high for row in table.rows if not isnan(row.tokens_per_s.high)]
    longest = min(2 * fastest, max([fastest, *ends]))
    scale = _BARS / longest
    height = _ROW * (len(table.rows) + len(tasks) + 3)
    drawing = Element("svg", xmlns="http://www.w3.org/2000/svg", width=f"{_WIDTH}", height=f"{height}")
    SubElement(drawing, "style").text = _STYLE
    line = 0

    def write(x: float, text: str) -> None:
        nonlocal line
        SubElement(drawing, "text", x=f"{x}", y=f"{_ROW * line - 7}").text = text

    for text in (title, below):
        line += 1
        write(20, text)
    for task in tasks:
        line += 1
        write(20, task)
        for place, row in enumerate(row for row in table.rows if row.task == task):
            line += 1
            speed = row.tokens_per_s
            middle = f"{_ROW * line - 12}"
            write(40, row.contender)
            write(_NAMES + _BARS + 14, _in_words(row))
            size = {"width": f"{scale * speed.value:.2f}", "height": f"{_ROW - 8}"}
            kind = "bar" if place else "bar plain"
            SubElement(drawing, "rect", size, x=f"{_NAMES}", y=f"{_ROW * line - 20}", **{"class": kind})
            if speed.low < speed.high:
                low, high = (_NAMES + scale * min(end, longest) for end in (speed.low, speed.high))
                whisker = {"class": "whisker", "x1": f"{low:.1f}", "x2": f"{high:.1f}"}
                SubElement(drawing, "line", whisker, y1=middle, y2=middle)
    return tostring(drawing, encoding="unicode")


def _in_words(row: Row) -> str:
    against = "" if row.against is None else f", \u00d7{_with_interval(row.against, times)}"
    return f"{figure(row.tokens_per_s.value)} tokens/s{against}"
