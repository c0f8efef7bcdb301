"""The speeds of a benchmark as bars with their intervals, in an SVG file that needs nothing else."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.cli.bench.output import times
from localspec.tuning.report.svg import Axis, rendered
from localspec.tuning.words import figure

if TYPE_CHECKING:
    from localspec.benchmark.figures import Row, SpeedTable

WIDTH = 800.0
_BARS = 180.0, 550.0  # from where to where they reach


def picture(table: SpeedTable, title: str, below: str) -> str:
    """Return the drawing: the first contender of each task pale, with a dashed line where its bar ends."""
    fastest = max(row.tokens_per_s.value for row in table.rows)
    # An interval that says nothing does not flatten all bars.
    ends = [row.tokens_per_s.high for row in table.rows if not isnan(row.tokens_per_s.high)]
    return rendered(
        Path(__file__).with_name("plot.svg.j2"),
        title=title,
        below=below,
        width=WIDTH,
        x=Axis("tokens per second", zero=True).scale([min(2 * fastest, max([fastest, *ends]))], *_BARS),
        tasks=list(dict.fromkeys(row.task for row in table.rows)),
        rows=table.rows,
        words=_words,
    )


def _words(row: Row) -> str:
    speed = f"{figure(row.tokens_per_s.value)} tokens/s"
    if row.against is None:
        return speed
    low, high = row.against.low, row.against.high
    ends = "" if isnan(low) else f" ({times(low)}-{times(high)})"
    return f"{speed}, ×{times(row.against.value)}{ends}"
