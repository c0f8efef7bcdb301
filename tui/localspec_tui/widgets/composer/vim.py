"""Vim's keys for a text area: normal and insert mode, with tables of motions and commands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from textual import events
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import TextArea

_FIRST = r"(?<!\w)(?=\w)|(?<![^\w\s])(?=[^\w\s])"  # letter of a word
_LAST = r"(?=\w(?!\w)|[^\w\s](?![^\w\s]))"
_MOTIONS = {  # where to look for the next place: -1 in what is before, 0 from here, 1 in what follows
    "h": (r"^|.", -1),
    "l": (r"$|.", 0),
    "0": (r"^", -1),
    "^": (r"(?=\S)|$", 0),  # from the beginning of the line
    "$": (r"$", 0),
    "w": (_FIRST, 1),
    "b": (_FIRST, -1),
    "e": (_LAST, 1),
    "gg": (r"\A", -1),
    "G": (r"\Z", 0),
}
_INSERTS = {"i": "", "a": "l", "I": "^", "A": "$", "o": "$", "O": "0"}  # after a motion,
_PRESSED = {"j": "down", "k": "up", "u": "ctrl+z", "o": "ctrl+j", "O": "ctrl+j"}  # and these keys
_SHORT = {"x": "dl", "X": "dh", "D": "d$", "C": "c$", "s": "cl", "S": "cc", "Y": "yy"}
_COMMAND = re.compile(
    r"([1-9]\d*)?(?:(?P<operator>[dcy])(?P<motion>[hlwbe0^$G]|gg|(?P=operator))|(?P<alone>[hljkwbe0^$GiaIAoOpPu]|gg))"
)
_BEGUN = re.compile(r"([1-9]\d*)?[dcy]?g?")


def moved(text: str, at: int, motion: str, count: int = 1) -> int:
    """Return the target position of a motion in a text."""
    if not motion:
        return at
    pattern = re.compile(_MOTIONS[motion][0], re.MULTILINE)
    step = _MOTIONS[motion][1]
    at = moved(text, at, "0") if motion == "^" else at
    for _ in range(min(count, len(text))):
        if step < 0:
            at = max((found.start() for found in pattern.finditer(text, 0, at)), default=0)
        else:
            found = pattern.search(text, at + step)
            at = found.end() if found else len(text)
    return at


def _location(text: str, place: int) -> tuple[int, int]:
    return text.count("\n", 0, place), place - text.rfind("\n", 0, place) - 1


class VimArea(TextArea):
    """A text area that takes vim's keys where its mode is not empty."""

    vim_mode: reactive[Literal["", "INSERT", "NORMAL"]] = reactive("")
    _typed = ""  # of a command
    _register = ""  # whole lines if it ends in a line break

    def watch_vim_mode(self) -> None:
        """Mark the mode in the border around this."""
        if isinstance(self.parent, Widget):
            self.parent.border_subtitle = self.vim_mode

    def take_vim(self, event: events.Key) -> Sequence[str] | None:
        """Do what a key means; return the keys to be pressed in its place, None if it is none of vim's."""
        if self.vim_mode == "INSERT" and re.fullmatch(r"alt\+\w", event.key):  # Escape and a letter at once
            self.take_vim(events.Key("escape", None))
            return self.take_vim(events.Key(event.key[-1], event.key[-1]))
        if self.vim_mode != "NORMAL":
            if not self.vim_mode or event.key != "escape":
                return None
            self.vim_mode = "NORMAL"
            self._go_to(moved(self.text, self._at, "h"))
        elif event.key == "ctrl+r":
            return ("ctrl+y",)
        elif event.character is None or not event.is_printable:
            self._typed = ""
            return None
        else:
            self._typed += _SHORT.get(event.character, event.character)
            found = _COMMAND.fullmatch(self._typed)
            if found or not _BEGUN.fullmatch(self._typed):
                self._typed = ""
            if found and found["operator"]:
                self._operate(found["operator"], found["motion"], int(found[1] or 1))
            elif found:
                return self._do(found["alone"], int(found[1] or 1))
        return ()

    @property
    def _at(self) -> int:
        return len(self.get_text_range((0, 0), self.cursor_location))

    def _go_to(self, place: int) -> None:
        """Move the cursor, which is on a letter unless in INSERT mode."""
        if self.vim_mode == "NORMAL" and place == moved(self.text, place, "$"):
            place = moved(self.text, place, "h")
        self.move_cursor(_location(self.text, place))

    def _write(self, begin: int, end: int, new: str, place: int) -> None:
        """Put a text in place of another, as one step of undoing, and move the cursor."""
        start = _location(self.text, begin)
        stop = _location(self.text, end)
        self.history.checkpoint()
        self.replace(new, start, stop, maintain_selection_offset=False)
        self._go_to(place)

    def _do(self, name: str, count: int) -> Sequence[str]:
        text = self.text
        at = self._at
        if name in _MOTIONS:
            self._go_to(moved(text, at, name, count))
        elif name in _INSERTS:
            self.vim_mode = "INSERT"
            count = 1
            self._go_to(moved(text, at, _INSERTS[name]))
        elif name in "pP":
            new = self._register * count
            after = name == "p"
            is_lines = new.endswith("\n")
            place = moved(text, at, ("$" if after else "0") if is_lines else "l" if after else "")
            new = f"\n{new[:-1]}" if is_lines and after else new
            self._write(place, place, new, place + (after if is_lines else max(0, len(new) - 1)))
        return (_PRESSED[name],) * count + ("up",) * (name == "O") if name in _PRESSED else ()

    def _operate(self, operator: str, motion: str, count: int) -> None:
        text = self.text
        at = self._at
        if is_lines := motion == operator:
            begin = moved(text, at, "0")
            end = begin + len("\n".join(text[begin:].split("\n")[:count]))
        else:
            motion = "e" if operator + motion == "cw" else motion
            start = at - 1 if operator + motion == "ce" else at  # a word of one letter is one, too
            begin, end = sorted((at, moved(text, start, motion, count)))
            end = min(end + (motion == "e"), len(text))
            if motion == "w" and "\n" in text[begin:end]:  # the last word of a line
                end = begin + max(1, len(text[begin:end].rstrip()))
        self._register = text[begin:end] + "\n" * is_lines
        if operator == "y":
            self._go_to(at if is_lines else begin)
            return
        self.vim_mode = "INSERT" if operator == "c" else "NORMAL"
        place = begin
        if is_lines and operator == "d":  # with one of the line breaks around
            begin, end = (begin, end + 1) if end < len(text) else (max(0, begin - 1), end)
            place = moved(text[:begin] + text[end:], begin, "^")
        self._write(begin, end, "", place)
