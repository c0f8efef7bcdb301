"""The line at the top and the line at the bottom; figures drop out whole, only a sentence is shortened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from time import monotonic
from typing import Literal

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.reactive import reactive
from textual.style import Style
from textual.widget import Widget

from localspec.chat.figures import Figures
from localspec.chat.figures import in_words as figure_words
from localspec.errors import UserError
from localspec.types.models import DeviceMemory
from localspec.units import MODE_NAMES, UNMEASURED
from localspec_tui.widgets.explained import ExplainedWidget, explained
from localspec_tui.widgets.markdown.blocks import clean

GAP = 2
BAR = 5  # columns of the context meter
LITTLE = "▏"  # in it, where it is not empty and less than half a column full
LOADING_BAR = 12
FILLING, FULL = 0.80, 0.95
SPARE = 8  # ranks from here take what the others leave, a reason in full included
LAST = 99
_MEANING = "meaning"
ASKED_FOR = "asked for"  # goes without saying
SHORTEST_NOTE = 20  # columns of a reason that are worth showing
READING_S, CHARACTERS_PER_S = 4.0, 25  # to notice that something is said, and to read it

Side = Literal["left", "right"]
Topic = Literal["", "answer", "downloads", "models", "queue", "quitting"]
"""What a message is about, as long as it may be over before the message is replaced."""


@dataclass(frozen=True, slots=True)
class StatusPart:
    """A part of the line: the lower its rank, the longer it stays when space is short.

    `meaning` is its tooltip, after that of its last glossary term.

    It may be shortened to `least` columns; with None it is shown whole or not at all.
    Ranks below zero get all their space before later ranks get any.
    """

    text: str
    meaning: str
    rank: int
    style: str = ""
    side: Side = "left"
    least: int | None = None

    @property
    def width(self) -> int:
        """Return the columns of the whole text."""
        return cell_len(self.text)

    @property
    def explanation(self) -> str:
        """Return the tooltip; a shortened sentence is in it in full."""
        words = [meaning for _, meaning in explained(self.text)] if self.least is None else []
        return "\n".join(filter(None, (*words[-1:], self.meaning)))

    def within(self, columns: int) -> Content:
        """Return the text in `width` columns, with its tooltip."""
        style = Style.from_meta({_MEANING: self.explanation})
        return Content.styled(shortened(self.text, columns), self.style).stylize(style)


def speed_parts(figures: Figures, reason: str = "") -> tuple[StatusPart, ...]:
    """Return the figures of an answer, without those that are not known; `reason` is that of its mode."""
    words, mode = figure_words(figures), figures.mode
    is_auto = reason and reason != ASKED_FOR and not reason.startswith("profile ")
    if is_auto and mode:
        is_fastest = mode == MODE_NAMES["off"] and reason != UNMEASURED
        mode = f"auto: {mode} is fastest here" if is_fastest else f"auto: {mode}"
    why = f"This one: {reason}" if reason else ""
    parts = [StatusPart(mode, why, 0, "bold")] if mode else []
    if figures.thinking:
        parts.append(StatusPart(figures.thinking, _THINKING, 1))
    parts += [StatusPart(words[name], "", rank, style) for name, rank, style in _RANKS if name in words]
    if figures.note:
        note = one_line(figures.note)
        parts.append(StatusPart(note, note, 4, "$foreground-muted italic", least=SHORTEST_NOTE))
    return tuple(parts)


_THINKING = "Tokens of thinking so far, and how many there may be; /thinking N changes that"
_RANKS = (
    ("acceptance", 5, ""),
    ("tokens_per_s", 1, ""),
    ("ratio", 2, "bold"),
    ("accepted_length", 7, ""),
    ("hit_rate", 6, ""),
)


def choice_parts(route: str, reason: str) -> tuple[StatusPart, ...]:
    """Return the profile that `auto` chose, and the reason of the decoding mode if there is space."""
    parts = [StatusPart(one_line(route), _ROUTE, 4)] if route else []
    if reason and reason != ASKED_FOR:
        why = one_line(reason)
        parts.append(
            StatusPart(why, f"{_REASON}: {why}", LAST, "$foreground-muted italic", least=SHORTEST_NOTE)
        )
    return tuple(parts)


_ROUTE = "The profile that fits your message; /profile NAME stays with one, /profile auto chooses again"
_REASON = "Why it is decoded this way"


def context_part(used: int, size: int, *, estimated: bool, unread: int = 0) -> StatusPart:
    """Return the context meter; its lighter part has yet to be read, before the answer or by idle models."""
    share = min(1.0, used / size)
    filled = round(BAR * share)
    light = min(filled, ceil(filled * unread / used)) if used else 0
    begun = LITTLE if used and not filled else ""
    bar = begun + "▓" * (filled - light) + "▒" * light + "░" * (BAR - filled - len(begun))
    about = "~" if estimated else ""
    text, style = f"context {about}{thousands(used)}/{thousands(size)} {bar}", ""
    meaning = f"This chat uses {'about ' if estimated else ''}{used:,} of {size:,} tokens"
    meaning += f", of which the models are reading the last {unread:,}" if unread else ""
    if share >= FULL:
        text, style = f"{text} {'too long' if used >= size else 'nearly full'}", "$text-error bold"
        meaning += "; /room leaves out earlier exchanges"
    elif share >= FILLING:
        text, style = f"{text} filling", "$text-warning"
    return StatusPart(text, meaning, 3, style, "right")


def memory_parts(memory: Sequence[DeviceMemory]) -> tuple[StatusPart, ...]:
    """Return the memory of each device."""
    return tuple(
        StatusPart(
            f"{device.device} {device.used / 2**30:.1f}/{device.total / 2**30:.0f} GiB",
            f"Memory in use on {device.device}: {device.used:,} of {device.total:,} bytes",
            SPARE + number,
            "$foreground-muted",
            "right",
        )
        for number, device in enumerate(memory)
        if device.total > 0
    )


def said_part(text: str) -> StatusPart:
    """Return a sentence that comes before all figures but the context meter."""
    text = one_line(text)
    return StatusPart(text, text, -1, "bold", least=1)


def loading_part(fraction: float) -> StatusPart:
    """Return the progress of loading the models."""
    fraction = max(0.0, min(1.0, fraction))
    filled = int(LOADING_BAR * fraction)
    bar = "█" * filled + "░" * (LOADING_BAR - filled)
    text = f"Loading the models {bar} {fraction:4.0%}  Esc cancels"
    return StatusPart(text, "You can write meanwhile", -1, "bold", least=SHORTEST_NOTE)


def one_line(text: str) -> str:
    """Return a text without line breaks and control characters."""
    return " ".join(clean(text).split())


def error_line(error: BaseException) -> str:
    """Return an error as one line, with what to do about it."""
    if isinstance(error, UserError) and error.hint:
        return f"{error.message}{'' if error.message.endswith('?') else ';'} {error.hint}"
    return " ".join(str(error).split()) or type(error).__name__


def thousands(tokens: int) -> str:
    """Return a number of tokens in steps of 1024, as contexts are sized."""
    if tokens < 1000:
        return str(tokens)
    return f"{tokens / 1024:.1f}".removesuffix(".0") + "k"


def lay_out(width: int, parts: Sequence[StatusPart]) -> Content:
    """Return a row of the parts that fit, in order, those on the right aligned right."""
    columns: dict[int, int] = {}

    def room() -> int:
        return width - sum(taken + GAP for taken in columns.values())

    by_rank = sorted(range(len(parts)), key=lambda index: parts[index].rank)
    for spare in (False, True):
        for index in by_rank:
            part = parts[index]
            wanted = part.width if part.least is None else min(part.least, part.width)
            if part.rank < 0:
                wanted = max(wanted, min(part.width, room()))
            if (part.rank >= SPARE) is spare and 0 < wanted <= room():
                columns[index] = wanted
        for index, least in list(columns.items()):
            columns[index] += min(room() + GAP, parts[index].width - least)
    left, right = (
        Content(" " * GAP).join(
            [parts[index].within(columns[index]) for index in sorted(columns) if parts[index].side == side]
        )
        for side in ("left", "right")
    )
    return left.pad_right(width - left.cell_length - right.cell_length) + right if right else left


def shortened(text: str, columns: int) -> str:
    """Shorten a text to `width` columns."""
    if cell_len(text) <= columns:
        return text
    while text and cell_len(text) > columns - 1:
        text = text[:-1]
    return f"{text.rstrip()}…" if columns > 0 else ""


MAX_ROWS = 3  # of what is said


class StatusLine(ExplainedWidget):
    """One row of figures with tooltips.

    A message replaces them; one that is longer than the row is shown in rows above them.
    """

    figures = reactive(Figures(""))  # of an answer
    route = reactive("")  # by which `auto` came to its profile, if it did
    reason = reactive("")  # why the answer is decoded as it is
    meter: reactive[tuple[StatusPart, ...]] = reactive(())  # how full the context is, once that is known
    memory: reactive[tuple[DeviceMemory, ...]] = reactive(())
    loaded: reactive[float | None] = reactive(None)  # share of the models; None when they are or will not be
    said = reactive("")  # at present
    _read_at = 0.0  # when the user will have read it
    _is_error = False
    _about: Topic = ""

    def say(self, text: str, *, is_error: bool = False, about: Topic = "") -> None:
        """Say something in place of the figures until it is replaced or over; an empty text clears it."""
        self.said, self._is_error, self._about = text, is_error, about
        self._read_at = monotonic() + (READING_S + len(text) / CHARACTERS_PER_S if text else 0)

    @property
    def is_read(self) -> bool:
        """Return whether the message has been shown for long enough."""
        return monotonic() >= self._read_at

    def show_transient(self, text: str, *, about: Topic = "") -> None:
        """Show a short-lived message, or clear it, unless another message is still being read."""
        if self.is_read:
            self.said, self._is_error, self._about = text, False, about

    def over(self, about: Topic) -> None:
        """Clear what is said about something that is over, read or not."""
        if self._about == about:
            self.say("")

    def clear_error(self) -> None:
        """Clear an error: something has succeeded."""
        if self._is_error:
            self.say("")

    def _fit(self) -> None:
        rows = len(self._sentence(self.content_size.width)) + 1
        self.refresh(layout=rows != self.content_size.height)

    _watch_said = _watch_meter = _watch_loaded = _fit

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the rows of figures and of what is said above them."""
        return len(self._sentence(width)) + 1

    def render(self) -> Content:
        """Return the parts that fit, each in its style."""
        sentence = [line.stylize("bold") for line in self._sentence(self.content_size.width)]
        return Content("\n").join([*sentence, lay_out(self.content_size.width, self._parts())])

    def meaning_at(self, event: events.MouseMove) -> str:
        """Return the tooltip of the figure under the pointer."""
        return str(event.style.meta.get(_MEANING, ""))

    def _sentence(self, width: int) -> Sequence[Content]:
        """Return the lines of a message that is too long to be next to the meter."""
        said = said_part(self.said)
        room = width - sum(meter.width + GAP for meter in self.meter)
        is_shown = width > 0  # a line that is not laid out has nowhere to wrap
        if self.loaded is not None or said.width <= room or not is_shown:
            return ()
        lines = Content(said.text).wrap(width)
        if len(lines) <= MAX_ROWS:
            return lines
        return (*lines[: MAX_ROWS - 1], Content("…") + lines[-1][1:])  # the end says what can be done

    def _parts(self) -> list[StatusPart]:
        said = [] if self.loaded is None else [loading_part(self.loaded)]
        if not said and self.said.strip() and not self._sentence(self.content_size.width):
            said = [said_part(self.said)]
        # the meter stays next to the message, however long that is
        meter = [replace(meter, rank=-2) if said else meter for meter in self.meter]
        answer = (*speed_parts(self.figures, self.reason), *choice_parts(self.route, self.reason))
        return [*said, *answer, *meter, *memory_parts(self.memory)]


class FigureRow(ExplainedWidget):
    """The figures under an answer in one row, two blanks apart; those that do not fit are omitted."""

    text = reactive("")

    def render(self) -> Content:
        """Return the figures that fit: the time to the first token goes before the gain of speculation."""
        items = self.text.split("  ")
        ranks = (SPARE if item.startswith("first token after") else rank for rank, item in enumerate(items))
        parts = [StatusPart(item, "", rank) for rank, item in zip(ranks, items, strict=True)]
        return lay_out(self.content_size.width, parts)


MIN_TITLE = 12  # columns of a title next to long model names


class TitleBar(Widget):
    """One row: the chat's title on the left, profile, mode and models on the right."""

    chat_title = reactive("")
    profile = reactive("")
    mode = reactive("")
    models = reactive("")
    fetching = reactive("")
    elsewhere = reactive("")  # how many other chats are being answered, or have a new answer

    def render(self) -> Content:
        """Return the parts that fit, cutting the title first, then the models; a click opens their choice."""
        room, title = self.size.width - 2, Content(self.chat_title or "New chat").stylize("bold")
        named = [(self.elsewhere, "toggle_sidebar"), (self.fetching, "command('model')")]
        named += [(self.profile, "command('profile')"), (self.mode, "command('settings')")]
        named.append((self.models, "command('model')"))
        right = Content(" · ").join(
            Content.styled(text, Style.from_meta({"@click": f"screen.{action}"}))
            for text, action in named
            if text
        )
        most = max(1, room - min(MIN_TITLE, title.cell_length) - 2)
        right = right.truncate(most, ellipsis=True).stylize("dim")
        left = title.truncate(max(1, room - right.cell_length - 2), ellipsis=True)
        return left + Content(" " * max(1, room - left.cell_length - right.cell_length)) + right
