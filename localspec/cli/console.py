"""Terminals, streams and Ctrl+C."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import TextIO

from localspec.errors import UserError
from localspec.types import Provenance, TextDelta

ERASE_LINE = "\r\x1b[K"
_PATIENCE = 2  # an impatient second press means the same as the first
_RESET = "\x1b[0m"
_STYLES = {
    Provenance.TARGET: "",
    Provenance.ACCEPTED: "\x1b[32m",
    Provenance.PREPARED: "\x1b[36m",
    Provenance.BONUS: "\x1b[33m",
}
LEGEND = ", ".join(
    f"{_STYLES[provenance]}{word}{_RESET if _STYLES[provenance] else ''}"
    for provenance, word in (
        (Provenance.TARGET, "target"),
        (Provenance.ACCEPTED, "accepted draft"),
        (Provenance.PREPARED, "prepared draft"),
        (Provenance.BONUS, "bonus"),
    )
)
# Without a terminal's control characters an answer cannot move the cursor or retitle the window.
_CONTROL = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def is_terminal(stream: TextIO | None) -> bool:
    """Tell whether somebody looks at, or types into, a stream."""
    return stream is not None and not stream.closed and stream.isatty()


def colours_unwanted() -> bool:
    """Tell whether NO_COLOR asks for plain text."""
    return bool(os.environ.get("NO_COLOR"))


def say(text: str) -> None:
    """Print a line for the person at the keyboard: to standard error, never among the data."""
    print(text, file=sys.stderr, flush=True)


def show(delta: TextDelta, *, colours: bool) -> None:
    """Write new text of an answer to standard output at once."""
    clean = is_terminal(sys.stdout)
    for piece in delta.pieces:
        text = piece.text.translate(_CONTROL) if clean else piece.text
        style = _STYLES[piece.provenance] if colours else ""
        sys.stdout.write(f"{style}{text}{_RESET}" if style else text)
    sys.stdout.flush()


def read_utf8(stream: TextIO) -> str:
    """Read a stream to its end; raises UserError with the offset of the first byte that is not UTF-8 text."""
    return decode_utf8(stream.buffer.read())


def decode_utf8(data: bytes, offset: int = 0) -> str:
    """Return bytes of standard input, found at `offset`, as text; raises UserError at the first bad one."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        bad = f"byte {data[error.start]:#04x} at offset {offset + error.start}"
        raise UserError(
            f"standard input is not UTF-8 text: {bad}",
            "convert it first, for instance with `iconv -t utf-8`",
        ) from None
    if "\0" in text:
        raise UserError(
            f"standard input is binary: a zero byte at offset {offset + data.index(0)}",
            "only text can be read",
        )
    return text.removeprefix("\ufeff") if offset == 0 else text


@contextmanager
def on_interrupt(action: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl+C call `action`; the third time, should nothing else help, it raises KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    presses = count(1)

    def handle(_number: int, _frame: FrameType | None) -> None:
        if next(presses) > _PATIENCE:
            raise KeyboardInterrupt
        action()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class StatusLine:
    """One line on standard error that is written over and over, if somebody looks at it."""

    def __init__(self) -> None:
        self._visible = False
        self._enabled = is_terminal(sys.stderr)

    def update(self, text: str) -> None:
        """Show `text` in place of what the line said."""
        if self._enabled:
            sys.stderr.write(f"{ERASE_LINE}{text}")
            sys.stderr.flush()
            self._visible = True

    def clear(self) -> None:
        """Take the line away."""
        if self._visible:
            sys.stderr.write(ERASE_LINE)
            sys.stderr.flush()
            self._visible = False
