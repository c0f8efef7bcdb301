"""The line at the top and the line at the bottom; figures drop out whole, only a sentence is shortened."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.reactive import reactive
from textual.style import Style

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
FILLING = 0.80
FULL = 0.95
SPARE = 8  # ranks from here take what the others leave, a reason in full included
LAST = 99
_MEANING = "meaning"
ASKED_FOR = "asked for"  # goes without saying
SHORTEST_NOTE = 20  # columns of a reason that are worth showing

Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class StatusPart:
    """A part of the line: the lower its rank, the longer it stays when space is short.

    `meaning` is its tooltip, after that of its last glossary term.

    It may be shortened to `least` columns; with None it is shown whole or not at all. `brief` stands for the
    text where all of it would leave no room for another figure.
    Ranks below zero get all their space before later ranks get any.
    """

    text: str
    meaning: str
    rank: int
    style: str = ""
    side: Side = "left"
    least: int | None = None
    brief: str = ""

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
    words = figure_words(figures)
    mode = figures.mode
    brief = ""
    is_auto = reason and reason != ASKED_FOR and not reason.startswith("profile ")
    if is_auto and mode:
        brief = f"auto: {mode}"
        is_fastest = mode == MODE_NAMES["off"] and reason != UNMEASURED
        mode = f"{brief} is fastest here" if is_fastest else brief
    why = f"Reason: {reason}" if reason else ""
    parts = [StatusPart(mode, why, 0, "bold", brief=brief)] if mode else []
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
_REASON = "Why this decoding mode was chosen"


def context_part(used: int, size: int, *, estimated: bool, unread: int = 0, tools: int = 0) -> StatusPart:
    """Return the context meter, with the tokens of tools.

    Its lighter part has yet to be read, before the answer or by idle models.
    """
    share = min(1.0, used / size)
    filled = round(BAR * share)
    light = min(filled, ceil(filled * unread / used)) if used else 0
    begun = LITTLE if used and not filled else ""
    bar = begun + "▓" * (filled - light) + "▒" * light + "░" * (BAR - filled - len(begun))
    about = "~" if estimated else ""
    of_tools = f" (tools {thousands(tools)})" * bool(tools)
    text = f"context {about}{thousands(used)}/{thousands(size)}{of_tools} {bar}"
    style = ""
    meaning = f"This chat uses {'about ' if estimated else ''}{used:,} of {size:,} tokens"
    meaning += f", of which {tools:,} are the tools that the model may call" if tools else ""
    meaning += f", of which the models are reading the last {unread:,}" if unread else ""
    if share >= FULL:
        text = f"{text} {'too long' if used >= size else 'nearly full'}"
        style = "$text-error bold"
        meaning += "; /room leaves out earlier exchanges"
    elif share >= FILLING:
        text = f"{text} filling"
        style = "$text-warning"
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


def loading_part(fraction: float) -> StatusPart:
    """Return the progress of loading the models."""
    fraction = max(0.0, min(1.0, fraction))
    filled = int(LOADING_BAR * fraction)
    bar = "█" * filled + "░" * (LOADING_BAR - filled)
    text = f"Loading the models {bar} {fraction:4.0%}  Esc cancels"
    return StatusPart(text, "You can already write", -1, "bold", least=SHORTEST_NOTE)


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
    figures = [part for part in parts if part.rank < SPARE and part.least is None]
    if sum(part.width + GAP for part in figures) > width + GAP:
        parts = [replace(part, text=part.brief or part.text) for part in parts]
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


class StatusLine(ExplainedWidget):
    """One row of figures with tooltips; while the models are loading, how far that is."""

    figures = reactive(Figures(""))  # of an answer
    route = reactive("")  # by which `auto` came to its profile, if it did
    reason = reactive("")  # why the answer is decoded as it is
    meter: reactive[tuple[StatusPart, ...]] = reactive(())  # how full the context is, once that is known
    memory: reactive[tuple[DeviceMemory, ...]] = reactive(())
    loaded: reactive[float | None] = reactive(None)  # share of the models; None when they are or will not be
    is_last = reactive(True)  # of those side by side: it has what holds for all chats

    def render(self) -> Content:
        """Return the parts that fit, each in its style."""
        return lay_out(self.content_size.width, self._parts())

    def meaning_at(self, event: events.MouseMove) -> str:
        """Return the tooltip of the figure under the pointer."""
        return str(event.style.meta.get(_MEANING, ""))

    def _parts(self) -> list[StatusPart]:
        loading = [] if self.loaded is None else [loading_part(self.loaded)]
        answer = (*speed_parts(self.figures, self.reason), *choice_parts(self.route, self.reason))
        memory = memory_parts(self.memory) if self.is_last else ()
        return [*loading, *answer, *self.meter, *memory]


class FigureRow(ExplainedWidget):
    """The figures under an answer in one row, two blanks apart; those that do not fit are omitted."""

    text = reactive("")

    def render(self) -> Content:
        """Return the figures that fit: the time to the first token goes before the gain of speculation."""
        items = self.text.split("  ")
        ranks = (SPARE if item.startswith("first token after") else rank for rank, item in enumerate(items))
        parts = [StatusPart(item, "", rank) for rank, item in zip(ranks, items, strict=True)]
        return lay_out(self.content_size.width, parts)


MIN_TITLE = 12  # columns of a title next to a long model name
_VARIANT = re.compile(r"[-_ .](?:instruct|chat|it|gguf|i?q\d|bf16|f16|f32|mxfp4)(?![a-z]).*", re.IGNORECASE)


def short_name(model: str) -> str:
    """Return the name of a model without its variant: Qwen3 14B for Qwen3-14B-Instruct-Q4_K_M."""
    return _VARIANT.sub("", model) or model


_CLOSE = Content("  ") + Content.styled(
    "×",
    Style.from_meta(
        {"@click": "screen.command('beside')", _MEANING: "Close this pane; the chat stays in the list"}
    ),
)


class TitleBar(ExplainedWidget):
    """One row: the chat's title on the left; on the right the model, and what is not chosen by itself."""

    chat_title = reactive("")
    profile = reactive("")  # unless it is chosen by itself,
    mode = reactive("")  # likewise
    target = reactive("")
    draft = reactive("")
    fetching = reactive("")
    elsewhere = reactive("")  # how many other chats are being answered, or have a new answer
    is_last = reactive(True)  # of those side by side: it has what holds for all chats
    can_close = reactive(False)  # where there are two

    @property
    def models(self) -> str:
        """The names of both models."""
        return " + ".join(filter(None, (self.target, self.draft)))

    def render(self) -> Content:
        """Return the parts that fit, cutting the title first, then the model; a click opens their choice."""
        room = self.content_size.width
        title = Content(self.chat_title or "New chat").stylize("bold")
        right = Content(" · ").join([part.stylize("$text-muted") for part in self._parts()])
        right += _CLOSE if self.can_close else ""
        most = max(1, room - min(MIN_TITLE, title.cell_length) - 2)
        right = right.truncate(most, ellipsis=True)
        left = title.truncate(max(1, room - right.cell_length - 2), ellipsis=True)
        return left + Content(" " * max(1, room - left.cell_length - right.cell_length)) + right

    def meaning_at(self, event: events.MouseMove) -> str:
        """Return the tooltip of the part under the pointer."""
        return str(event.style.meta.get(_MEANING, ""))

    def _parts(self) -> Iterator[Content]:
        model = f"Target model: {self.target}\nDraft model: {self.draft or 'none'}\nF8 lists others"
        for text, action, meaning, is_own in (
            (self.elsewhere, "toggle_sidebar", "Answers in other chats; Ctrl+B lists the chats", False),
            (self.fetching, "command('model')", "Models being downloaded", False),
            (self.profile, "command('profile')", "Profile; F5 takes the next one", True),
            (self.mode, "command('settings')", "Decoding mode; F6 takes the next one", True),
            (short_name(self.target), "command('model')", model, False),
        ):
            if text and (is_own or self.is_last):
                style = Style.from_meta({"@click": f"screen.{action}", _MEANING: meaning})
                yield Content.styled(text, style)
