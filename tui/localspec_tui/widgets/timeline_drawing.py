"""Draw an answer's rounds in rows of characters; every meaning has a shape, colour only repeats it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from textual.content import Content

from localspec.chat.round_words import duration, percent
from localspec.chat.timeline import History, Lanes, Mark, Position, Work

LABELS = 9  # columns of the row names
VALUES = 24  # columns of the figures behind a curve
BLOCKS = " ▁▂▃▄▅▆▇█"
TICK = 10  # columns

# Both halves of a column, the left half, the right half.
_SHAPES = {Work.DRAFT: "█▌▐", Work.AHEAD: "▄▖▗", Work.VERIFY: "█▌▐", Work.WAIT: "╌╌╌", Work.IDLE: "   "}
_RESTS = {Work.IDLE, Work.WAIT}
_WORK_STYLES = {
    Work.DRAFT: "$warning",
    Work.AHEAD: "$success",
    Work.VERIFY: "$primary",
    Work.WAIT: "$foreground-muted",
    Work.IDLE: "",
}
_MARKS = {
    Mark.HIT: ("●", "$text-success bold"),
    Mark.MISS: ("○", "$text-warning bold"),
    Mark.NGRAM: ("◆", "$text-accent bold"),
    Mark.PLAIN: ("·", "$foreground-muted"),
}
_LEGEND = (
    ("●", "$text-success bold", "prepared ahead"),
    ("○", "$text-warning bold", "just in time"),
    ("◆", "$text-accent bold", "repetition"),
    ("·", "$foreground-muted", "no draft"),
    ("▄", "$success", "hidden"),
    ("█", "$warning", "waited for"),
)


@dataclass(frozen=True, slots=True)
class View:
    """Which stretch of an answer is shown, and which round is picked."""

    start_s: float
    scale_s: float
    picked: int | None = None


def draft_rows(halves: Sequence[Work], tall: int) -> list[Content]:
    """Return the lane of the draft model: what is hidden is half as high and rests on the target's work."""
    if tall == 1:
        return [label("draft") + _lane(halves)]
    upper = [Work.IDLE if work is Work.AHEAD else work for work in halves]
    return [label("") + _lane(upper), label("draft") + _lane(halves, Work.DRAFT)]


def verify_rows(halves: Sequence[Work], tall: int) -> list[Content]:
    """Return the lane of the target."""
    line = _lane(halves)
    below = _lane([Work.IDLE if work is Work.WAIT else work for work in halves])
    return [label("verify") + line, *[label("") + below] * (tall - 1)]


def _lane(halves: Sequence[Work], ahead: Work = Work.AHEAD) -> Content:
    """Return a lane, two halves to a column; work ahead of time takes the shape of `ahead`."""
    pairs = zip(halves[::2], halves[1::2], strict=True)
    cells = [_cell(left, right, ahead) for left, right in pairs]
    runs = groupby(cells, lambda cell: cell[1])
    return Content.assemble(*(("".join(shape for shape, _ in run), style) for style, run in runs))


def _cell(left: Work, right: Work, ahead: Work) -> tuple[str, str]:
    """Return the character of a column and its style: work hides waiting, and the left half's the right's."""
    works_left, works_right = left not in _RESTS, right not in _RESTS
    work = left if works_left else right
    if work in _RESTS:
        work = Work.WAIT if Work.WAIT in {left, right} else Work.IDLE
    half = 0 if works_left == works_right else 1 if works_left else 2
    return _SHAPES[ahead if work is Work.AHEAD else work][half], _WORK_STYLES[work]


def mark_row(lanes: Lanes, width: int, picked: int | None) -> Content:
    """Return one mark for each round, the picked one reversed."""
    parts: list[str | tuple[str, str]] = []
    column = 0
    for placed in lanes.marks:
        shape, style = _MARKS[placed.mark]
        parts += [
            " " * (placed.column - column),
            (shape, f"{style} reverse" if placed.round == picked else style),
        ]
        column = placed.column + 1
    return Content.assemble(*parts, " " * (width - column))


def ruler(view: View, width: int) -> Content:
    """Return the times under the lanes."""
    first = round(view.start_s / view.scale_s)
    row = [" "] * width
    step = 2 * TICK
    for column in range(-first % step, width, step):
        text = f"╵{duration(view.scale_s * (first + column)) if first + column else '0'}"
        if column + len(text) <= width:
            row[column : column + len(text)] = text
    return Content("".join(row)).stylize("$foreground-muted")


def curve(values: Sequence[float], rows: int) -> list[str]:
    """Return a curve above zero in so many rows of eighths, the upper row first."""
    top = max(values, default=0.0)
    levels = [round(8 * rows * value / top) if top else 0 for value in values]
    levels = [max(1, level) if value > 0 else 0 for level, value in zip(levels, values, strict=True)]
    return [
        "".join(BLOCKS[max(0, min(8, level - 8 * row))] for level in levels) for row in reversed(range(rows))
    ]


def curve_rows(history: History, name: str, width: int, rows: int) -> list[Content]:
    """Return a curve over the whole answer with its present and mean values."""
    plot = max(1, width - LABELS - VALUES)
    figure, values = (
        (history.speed, history.speeds(plot)) if name == "tok/s" else (history.length, history.lengths(plot))
    )
    tail = f"  {_figure(figure(history.recent()))} now  {_figure(figure())} mean" if len(history) else ""
    lines = [Content.styled(line, "$primary") for line in curve(values, rows)]
    return [
        label(name if row == rows - 1 else "") + line + (Content(tail) if row == rows - 1 else Content(""))
        for row, line in enumerate(lines)
    ]


def _figure(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def extent(history: History, view: View, width: int) -> Content:
    """Return which part of the curves the lanes show."""
    plot = max(1, width - LABELS - VALUES)
    rounds = max(1, len(history))
    shown_s = view.scale_s * max(1, width - LABELS)
    first = history.round_at(view.start_s) * plot // rounds
    last = max(first + 1, -(-(history.round_at(view.start_s + shown_s) + 1) * plot // rounds))
    return Content.assemble(
        ("─" * first, "$foreground-muted"),
        ("━" * (min(plot, last) - first), "$primary bold"),
        ("─" * (plot - last), "$foreground-muted"),
        ("  shown above", "$foreground-muted"),
    )


def position_rows(history: History, width: int, *, each: bool) -> list[Content]:
    """Return acceptance by position: a row for each, or as many as fit in one."""
    positions = history.by_position()
    if not positions:
        return [label("accepted") + Content("no drafts to judge").stylize("$foreground-muted")]
    if each:
        return [_position(number, positions[number], width) for number in range(len(positions))]
    row = label("accepted")
    for number, position in enumerate(positions, 1):
        part = Content.assemble(
            (f"{number} ", "$foreground-muted"),
            _bar(position.share, 5),
            f" {percent(position.accepted, position.judged)}   ",
        )
        if row.cell_length + part.cell_length - 3 > width:
            break
        row += part
    return [row]


def _position(index: int, position: Position, width: int) -> Content:
    return Content.assemble(
        label("" if index else "accepted"),
        (f"{index + 1} ", "$foreground-muted"),
        _bar(position.share, max(1, min(40, width - LABELS - VALUES))),
        f" {percent(position.accepted, position.judged)}",
        (f" of {position.judged:,}", "$foreground-muted"),
    )


def _bar(share: float, width: int) -> Content:
    filled = round(share * width)
    return Content.assemble(("█" * filled, "$primary"), ("░" * (width - filled), "$foreground-muted"))


def legend(width: int) -> Content:
    """Return what the shapes mean, as far as whole entries fit."""
    row = Content("")
    for shape, style, words in _LEGEND:
        entry = Content.assemble((shape, style), (f" {words}", "$foreground-muted"))
        if row.cell_length + 2 + entry.cell_length > width:
            break
        row = row + "  " + entry if row else entry
    return row


def label(text: str) -> Content:
    """Return the name of a row."""
    return Content(f"{text:<{LABELS}}").stylize("$foreground-muted")
