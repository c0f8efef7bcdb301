"""The timeline of an answer: who worked when, what each round came to, and how the speed went."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.reactive import reactive

from localspec.chat.timeline import (
    SMOOTHING,
    Activity,
    History,
    Position,
    TimelineLanes,
    describe_round,
    describe_totals,
    duration,
    percent,
)
from localspec.types.drafts import DraftOrigin
from localspec.types.events import RoundDone
from localspec_tui.widgets.explained import ExplainedWidget

LABELS = 9  # columns of the row names
VALUES = 24  # columns of the figures after a curve
BLOCKS = " ▁▂▃▄▅▆▇█"
TICK = 10  # columns

# The shapes of both halves of a column, of the left half, of the right half; and their style.
_SHAPES = {
    Activity.DRAFT: ("█▌▐", "$warning"),
    Activity.AHEAD: ("▄▖▗", "$success"),
    Activity.VERIFY: ("█▌▐", "$primary"),
    Activity.WAIT: ("╌╌╌", "$foreground-muted"),
    Activity.IDLE: ("   ", ""),
}
_RESTS = {Activity.IDLE, Activity.WAIT}
_MARKS = {
    DraftOrigin.AHEAD: ("●", "$text-success bold", "prepared ahead"),
    DraftOrigin.FRESH: ("○", "$text-warning bold", "on demand"),
    DraftOrigin.NGRAM: ("◆", "$text-accent bold", "n-gram"),
    DraftOrigin.NONE: ("·", "$foreground-muted", "no draft"),
}
_LEGEND = (*_MARKS.values(), ("▄", "$success", "overlapped"), ("█", "$warning", "waiting"))


def lane_rows(lanes: TimelineLanes, tall: int) -> list[Content]:
    """Return both lanes: overlapped drafting is half as high, on top of the target's work."""
    if tall == 1:
        return [label("draft") + _lane(lanes.draft), label("verify") + _lane(lanes.verify)]
    return [
        label("") + _lane([Activity.IDLE if work is Activity.AHEAD else work for work in lanes.draft]),
        label("draft") + _lane(lanes.draft, Activity.DRAFT),
        label("verify") + _lane(lanes.verify),
        label("") + _lane([Activity.IDLE if work is Activity.WAIT else work for work in lanes.verify]),
    ]


def _lane(halves: Sequence[Activity], ahead: Activity = Activity.AHEAD) -> Content:
    """Return a lane, two halves to a column; work ahead of time takes the shape of `ahead`."""
    pairs = zip(halves[::2], halves[1::2], strict=True)
    cells = [_cell(left, right, ahead) for left, right in pairs]
    runs = groupby(cells, lambda cell: cell[1])
    return Content.assemble(*(("".join(shape for shape, _ in run), style) for style, run in runs))


def _cell(left: Activity, right: Activity, ahead: Activity) -> tuple[str, str]:
    """Return the character of a column and its style: work hides waiting, and the left half's the right's."""
    works_left = left not in _RESTS
    works_right = right not in _RESTS
    work = left if works_left or right is Activity.IDLE else right
    half = 0 if works_left == works_right else 1 if works_left else 2
    return _SHAPES[ahead if work is Activity.AHEAD else work][0][half], _SHAPES[work][1]


def mark_row(lanes: TimelineLanes, width: int, picked: int | None) -> Content:
    """Return one mark for each round, the picked one reversed."""
    cells: list[str | tuple[str, str]] = [" "] * width
    for placed in lanes.marks:
        shape, style, _ = _MARKS[placed.origin]
        cells[placed.column] = (shape, f"{style} reverse" if placed.round == picked else style)
    return Content.assemble(*cells)


def ruler(start_s: float, scale_s: float, width: int) -> Content:
    """Return the times under the lanes."""
    first = round(start_s / scale_s)
    row = [" "] * width
    step = 2 * TICK
    for column in range(-first % step, width, step):
        text = f"╵{duration(scale_s * (first + column)) if first + column else '0'}"
        if column + len(text) <= width:
            row[column : column + len(text)] = text
    return Content("".join(row)).stylize("$foreground-muted")


def curve(values: Sequence[float], rows: int) -> list[str]:
    """Return a curve above zero in `rows` rows of eighths, the upper row first."""
    top = max(values, default=0.0)
    levels = [round(8 * rows * value / top) if top else 0 for value in values]
    levels = [max(1, level) if value > 0 else 0 for level, value in zip(levels, values, strict=True)]
    return [
        "".join(BLOCKS[max(0, min(8, level - 8 * row))] for level in levels) for row in reversed(range(rows))
    ]


def curve_rows(history: History, name: str, width: int, rows: int) -> list[Content]:
    """Return a curve over the whole answer with its present and mean values."""
    plot = max(1, width - LABELS - VALUES)
    figure = history.speed if name == "tokens/s" else history.length
    tail = f"  {_figure(figure(history.recent()))} now  {_figure(figure())} mean"
    *upper, lowest = [Content.styled(line, "$primary") for line in curve(history.course(plot, figure), rows)]
    return [*(label("") + line for line in upper), label(name) + lowest + tail]


def _figure(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def extent(history: History, start_s: float, scale_s: float, width: int) -> Content:
    """Return the part of the curves that the lanes show."""
    plot = max(1, width - LABELS - VALUES)
    rounds = max(1, len(history))
    shown_s = scale_s * max(1, width - LABELS)
    first = history.round_at(start_s) * plot // rounds
    last = max(first + 1, -(-(history.round_at(start_s + shown_s) + 1) * plot // rounds))
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
        return [label("accepted") + Content("no drafts verified yet").stylize("$foreground-muted")]
    if each:
        wide = max(1, min(40, width - LABELS - VALUES))
        return [
            label("accepted" if number == 1 else "")
            + _share(number, position, wide)
            + Content.styled(f" of {position.judged:,}", "$foreground-muted")
            for number, position in enumerate(positions, 1)
        ]
    row = label("accepted")
    for number, position in enumerate(positions, 1):
        part = Content("" if number == 1 else "   ") + _share(number, position, 5)
        if row.cell_length + part.cell_length > width:
            break
        row += part
    return [row]


def _share(number: int, position: Position, width: int) -> Content:
    filled = round(position.share * width)
    return Content.assemble(
        (f"{number} ", "$foreground-muted"),
        ("█" * filled, "$primary"),
        ("░" * (width - filled), "$foreground-muted"),
        f" {percent(position.accepted, position.judged)}",
    )


def legend(width: int) -> Content:
    """Return the legend, with the entries that fit."""
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


WHEEL = 4  # columns
LEGEND_FROM = 8  # rows that leave one for the legend


class Timeline(ExplainedWidget, can_focus=True):
    """Lanes of both models over time, a mark for each round, and curves over the whole answer.

    Follows an answer that is being written until a reader goes back in time.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "walk(-1)", "Earlier round", id="timeline.earlier"),
        Binding("right", "walk(1)", "Later round", id="timeline.later"),
        Binding("pageup", "page(-1)", "Scroll back", show=False, id="timeline.page-back"),
        Binding("pagedown", "page(1)", "Scroll on", show=False, id="timeline.page-on"),
        Binding("home", "pick(0)", "First round", show=False, id="timeline.first"),
        Binding("end", "last", "Follow", id="timeline.follow"),
        Binding("plus,equals_sign", "zoom(-1)", "Closer", key_display="+", id="timeline.closer"),
        Binding("minus", "zoom(1)", "Wider", key_display="-", id="timeline.wider"),
    ]

    _scale_s = reactive(0.0)
    _first = reactive(0)  # column of time at the left edge
    _following = reactive(True)
    _picked: reactive[int | None] = reactive(None)
    _pointed: reactive[int | None] = reactive(None)

    def __init__(self, *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self._history = History()
        self._scale_s = self._history.fitting_scale()
        self._zoomed = False
        self._title = ""
        self._kinds: list[str] = []  # of the rows on the screen

    def show(self, rounds: Sequence[RoundDone], title: str) -> None:
        """Show an answer that is complete."""
        self.clear(title)
        self.add(rounds)

    def clear(self, title: str) -> None:
        """Begin a new answer."""
        self._history = History()
        self._zoomed = False
        self._following = True
        self._first = 0
        self._picked = self._pointed = None
        self._title = title
        self._entitle()
        self.refresh()

    def add(self, rounds: Sequence[RoundDone]) -> None:
        """Append rounds of the answer in progress."""
        if not rounds:
            return
        early = len(self._history) < SMOOTHING  # once the reader has found his way, the scale stays
        self._history.add(rounds)
        if early and not self._zoomed:
            self._scale_s = self._history.fitting_scale()
        self.refresh()

    @property
    def picked(self) -> int | None:
        """Return the selected round, counted from 0; None shows the totals."""
        return self._picked if self._picked is not None else self._pointed

    # Where to look.

    @property
    def _width(self) -> int:
        return max(1, self.content_size.width - LABELS)

    @property
    def _furthest(self) -> int:
        return max(0, math.ceil(self._history.seconds / self._scale_s) - self._width)

    def _left(self) -> int:
        return self._furthest if self._following else min(self._first, self._furthest)

    def _look_at(self, column: int) -> None:
        self._following = column >= self._furthest
        self._first = max(0, min(column, self._furthest))

    def action_pick(self, index: int) -> None:
        """Show the figures of a round, and scroll to it."""
        if not len(self._history):
            return
        self._picked = max(0, min(index, len(self._history) - 1))
        begin = int(self._history.start_s(self._picked) / self._scale_s)
        end = math.ceil(self._history.start_s(self._picked + 1) / self._scale_s)
        left = self._left()
        if begin < left or end > left + self._width:
            self._look_at(begin - self._width // 2)
        elif self._following:  # keep the picture still while it is read
            self._following = False
            self._first = left

    def action_walk(self, step: int) -> None:
        """Pick the round before or after."""
        self.action_pick(len(self._history) - 1 if self._picked is None else self._picked + step)

    def action_last(self) -> None:
        """Show the totals and follow the answer again."""
        self._picked = None
        self._following = True

    def action_page(self, pages: int) -> None:
        """Look a whole picture earlier or later."""
        self._look_at(self._left() + pages * max(1, self._width - 2))

    def action_zoom(self, steps: int) -> None:
        """Show more time in the same space, or less."""
        middle_s = (self._left() + self._width / 2) * self._scale_s
        self._zoomed = True
        self._scale_s = self._history.zoomed(self._scale_s, steps)
        if not self._following:
            self._look_at(int(middle_s / self._scale_s - self._width / 2))

    # The mouse.

    def on_mouse_scroll_up(self, event: events.MouseEvent) -> None:
        """Go back in time."""
        event.stop()
        self._look_at(self._left() - WHEEL)

    def on_mouse_scroll_down(self, event: events.MouseEvent) -> None:
        """Continue in time."""
        event.stop()
        self._look_at(self._left() + WHEEL)

    on_mouse_scroll_left = on_mouse_scroll_up
    on_mouse_scroll_right = on_mouse_scroll_down

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Show the figures of the round under the pointer."""
        self._pointed = self._round_under(event)

    def on_leave(self) -> None:
        """Show the totals, or the picked round, again."""
        self._pointed = None

    def on_click(self, event: events.Click) -> None:
        """Select the round under the pointer; a second click deselects it."""
        index = self._round_under(event)
        if index is not None and index == self._picked:
            self.action_last()
        elif index is not None:
            self.action_pick(index)

    def _round_under(self, event: events.MouseEvent) -> int | None:
        """Return the round at a place: in time on the lanes, in the course of the answer on the curves."""
        offset = event.get_content_offset(self)
        if offset is None or not len(self._history) or offset.y >= len(self._kinds):
            return None
        kind = self._kinds[offset.y]
        column = offset.x - LABELS
        plot = max(1, self._width - VALUES)
        if kind == "lanes" and 0 <= column < self._width:
            at_s = (self._left() + column + 0.5) * self._scale_s
            return self._history.round_at(at_s) if at_s < self._history.seconds else None
        if kind == "curves" and 0 <= column < plot:
            return column * len(self._history) // plot
        return None

    # What it looks like.

    def on_resize(self) -> None:
        """Put the legend into the title if there is no row for it."""
        self._entitle()

    def _entitle(self) -> None:
        width, height = self.content_size
        title = Content(self._title)  # no markup
        shapes = legend(width - title.cell_length - 8) if height < LEGEND_FROM else Content("")
        self.border_title = Content("   ").join([title, shapes]) if shapes else title

    def render(self) -> Content:
        """Return as many rows as fit."""
        width, height = self.content_size
        rows = self._rows(width, height)[:height]
        self._kinds = [kind for kind, _ in rows]
        return Content("\n").join([row for _, row in rows])

    def _rows(self, width: int, height: int) -> list[tuple[str, Content]]:
        history = self._history
        start_s = self._left() * self._scale_s
        scale_s = self._scale_s
        if not len(history):
            text = "No rounds yet: they appear while an answer is written" if history.prompt is None else ""
            return [("", Content(text or "The prompt is read").stylize("dim"))]
        tall = 2 if height >= 11 else 1
        lanes = history.lanes(start_s, scale_s, self._width)
        rows = [("lanes", row) for row in lane_rows(lanes, tall)]
        rows.append(("lanes", label("rounds") + mark_row(lanes, self._width, self.picked)))
        if height >= 9:
            rows.append(("lanes", label("") + ruler(start_s, scale_s, self._width)))
        tail = [("", self._words(width))] + [("", legend(width))] * (height >= LEGEND_FROM)
        room = height - len(rows) - len(tail) - (height >= 12)
        count = len(history.by_position())
        each = 1 < count <= room - 4
        curves = max(1, min(4, (room - (count if each else 1)) // 2))
        for name in ("tokens/s", "length"):
            rows += [("curves", row) for row in curve_rows(history, name, width, curves)]
        if height >= 12:
            rows.append(("curves", label("") + extent(history, start_s, scale_s, width)))
        rows += [("", row) for row in position_rows(history, width, each=each)]
        return rows + tail

    def _words(self, width: int) -> Content:
        """Return the figures of the picked round, else the totals, in whole parts."""
        history = self._history
        picked = self.picked
        text = describe_totals(history) if picked is None else describe_round(history, picked)
        if picked is None and history.prompt is not None:
            text += f", prompt read in {duration(history.prompt.stats.verify_s)}"
        while len(text) > width and ", " in text:
            text = text.rpartition(", ")[0]
        return Content(text).truncate(width, ellipsis=True).stylize("bold" if picked is not None else "")
