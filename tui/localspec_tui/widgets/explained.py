"""Figures with tooltips from the glossary."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from textual import events
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from localspec import chat

GLOSSARY = Path(chat.__file__).with_name("glossary.toml")


@cache
def glossary() -> dict[str, str]:
    """Return the words of the screen that not everybody knows, and what they mean."""
    words: dict[str, str] = tomllib.loads(GLOSSARY.read_text(encoding="utf-8"))
    return words


@cache
def _pattern() -> re.Pattern[str]:
    """Return a pattern that finds the terms in a text, the longest first, also at the start of a sentence."""
    longest = sorted(glossary(), key=len, reverse=True)
    found = "|".join(_spelt(word) for word in longest)
    return re.compile(rf"(?:{found})(?=s?(?!\w))")


def _spelt(term: str) -> str:
    """Return a pattern of a term; one that begins with a sign may follow a number, as in `1.9× plain`."""
    start = r"(?<!\w)" if term[0].isalnum() else ""
    return f"{start}[{term[0]}{term[0].upper()}]{re.escape(term[1:])}"


def explained(text: str) -> Iterator[tuple[range, str]]:
    """Yield the places of such words in a text, with what they mean."""
    words = glossary()
    for found in _pattern().finditer(text):
        word = found[0] if found[0] in words else found[0][0].lower() + found[0][1:]
        yield range(*found.span()), f"{found[0]}: {words[word]}"


class ExplainedWidget(Widget):
    """A widget with tooltips for the terms of its text."""

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Explain what is under the pointer."""
        meaning = self.meaning_at(event)
        tooltip = Content(meaning) if meaning else None
        if tooltip != self.tooltip:
            self.tooltip = tooltip

    def meaning_at(self, event: events.MouseMove) -> str:
        """Return the meaning of the term under the pointer, empty without one."""
        offset = event.get_content_offset(self)
        if offset is None:
            return ""
        row = self.render_line(offset.y).text
        return next((meaning for place, meaning in explained(row) if offset.x in place), "")


class ExplainedText(Static, ExplainedWidget):
    """A text with figures; the first base gives its style."""
