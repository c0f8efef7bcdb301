"""What a terminal sends: whatever bytes come, typed or pasted, none of them ends the program."""

from __future__ import annotations

import os
import re
import selectors
import signal
import sys
import termios
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any

from textual import events
from textual._parser import Parser
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from localspec.safe_text import safe_text
from localspec_tui.cell_widths import PROBE, MarksMeasured

_REST_S = 0.1  # without a byte: the input is complete
_WHOLE_S = 1.0  # for the rest of a sequence over a slow connection
_LONGEST = 32  # characters of a sequence; Textual takes longer ones for keys
_SEQUENCE = re.compile(
    r"\x1b(?:\[M[^\x1b]{3}|\[<[-0-9;]*[Mm]|\[\[[A-E]|\[(?![M<])[ -?]*[@-~]|O[0-9;]*[A-~]"  # mouse, keys
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\)|[P_][^\x1b]*\x1b\\)"  # strings
)
_BEGUN = re.compile(
    r"\x1b(?:\[M[^\x1b]{0,2}|\[<[-0-9;]*|\[(?![M<])[ -?]*|\](?:[0-9][^\x07\x1b]*)?(?:\x1b\Z)?"
    r"|(?:P[0-9>!$+=]|_G)[^\x1b]*(?:\x1b\Z)?)"
)
_MAYBE_TYPED = re.compile(r"\x1b[^\x1b]?")
_NOT_TYPED = re.compile(r"\x1b\[(?:[<?][0-9]|[0-9]+(?:(?:;[0-9:]*)+(?:[~tuA-HP-S]|\Z)|[~tu]))")
_TEXT = re.compile(r"[^\x1b]+")
_PLAIN = r"(?=[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*\Z)"
_LINE = re.compile(_PLAIN + r".*?\S.*?[\r\n]", re.DOTALL)
_LINES = re.compile(_LINE.pattern + r".*?\S", re.DOTALL)
_PROBE_ROW = 2  # terminals use the answer for row 1 for F3 with Shift, Alt or Ctrl, too
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_LEAVING_S = 3.0  # for a screen that is to leave; then it is left where it is
_OFF = "".join(f"\x1b[?{mode}l" for mode in (1000, 1003, 1015, 1006, 1016, 1004, 2004, 2048))
_GIVEN_BACK = f"\x1b\\{_OFF}\x1b[?7h\x1b[<u\x1b[?1049l\x1b[?25h".encode()


def end_by(number: int) -> None:
    """End the program by a signal, which its parent can see."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


class InputParser(XTermParser):
    """Textual's parser for keys, except that pasted input is text, and a sequence in pieces is one.

    Textual waits 0.1 s for the rest of any sequence, and then takes it for keys. Here that limit only
    applies to input that a user may have typed: Escape, and Alt with a character other than the two
    brackets.
    """

    def __init__(self, debug: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(debug)
        self._clock = clock
        self._pasted: list[str] = []  # from the start of a paste on
        self._lines = ""  # text with a return: typed, or the beginning of a paste without brackets
        self._begun = ""  # of a sequence that is not typed
        self._typed_s = self._begun_s = 0.0
        self._maybe_typed = ""  # a sequence that Textual has, or has taken for keys

    def feed(self, data: str) -> Iterable[Message]:
        """Yield what is typed; of a paste only `tick` knows that it is whole."""
        if not self._pasted:
            typed, start, data = (self._taken_up(data) + data).partition(BRACKETED_PASTE_START)
            yield from self._heard(typed)
            if not start:
                return
            yield from self._decided()
        self._pasted.append(data)

    def tick(self) -> Iterable[Message]:
        """Yield what is meant by what came, because nothing more comes."""
        yield from super().tick()
        yield from self._decided()
        if self._begun and self._clock() - self._begun_s >= _WHOLE_S:
            self._begun = ""
        if self._pasted:
            # the last end is the terminal's: earlier ones were pasted, and text after them is not typed
            text, end, typed = "".join(self._pasted).rpartition(BRACKETED_PASTE_END)
            if end:
                self._pasted.clear()
                yield _paste(text)
                yield from self.feed(typed)

    def _taken_up(self, data: str) -> str:
        """Return the beginning of a sequence that `data` continues with."""
        begun = self._begun
        self._begun = ""
        maybe = self._maybe_typed
        self._maybe_typed = ""
        if begun:
            return begun
        if maybe and self._timeout_time is not None:
            Parser.__init__(self)
            return maybe
        # already taken for keys, but such a rest is not typed, and never comes at once
        is_late = self._clock() - self._typed_s < _WHOLE_S and len(data) > 1
        return maybe if is_late and _NOT_TYPED.match(maybe + data) else ""

    def _heard(self, data: str) -> Iterable[Message]:
        """Yield what keys, sequences and text mean, in their order."""
        place = 0
        while place < len(data):
            if found := _SEQUENCE.match(data, place):
                yield from self._decided()
                yield from self._sequence(found[0])
            elif found := _BEGUN.match(data, place):  # and dropped where something else follows
                if found.end() == len(data):
                    self._begun = found[0]
                    self._begun_s = self._clock()
            elif found := _TEXT.match(data, place):
                yield from self._text(found[0])
            elif found := _MAYBE_TYPED.match(data, place):
                yield from self._decided()
                yield from self._typed(found[0])
                self._maybe_typed = found[0]
                self._typed_s = self._clock()
            place = found.end() if found else len(data)

    def _sequence(self, sequence: str) -> Iterable[Message]:
        """Yield the events of a whole sequence; one that Textual does not know is not a key."""
        if sequence[1] in "[O" and len(sequence) <= _LONGEST:
            yield from self._typed(sequence)
            if self._timeout_time is not None:  # it waits for more of it
                Parser.__init__(self)

    def _text(self, text: str) -> Iterable[Message]:
        """Yield what is typed; text with a return in one piece may be the beginning of a paste."""
        lines = self._lines + text
        if _LINE.match(lines) and (len(text) > 1 or not self._lines):
            self._lines = lines
        else:
            yield from self._decided()
            yield from self._typed(text)

    def _decided(self) -> Iterable[Message]:
        """Yield the events of a return after text: typed, unless text follows it."""
        lines = self._lines
        self._lines = ""
        if _LINES.match(lines):
            yield _paste(lines)
        elif lines:
            yield from self._typed(lines)

    def _typed(self, text: str) -> Iterable[Message]:
        try:
            yield from super().feed(text)
        except (ValueError, OverflowError):  # a sequence with a number that no key has
            Parser.__init__(self)  # the incomplete input is not a key


def _paste(text: str) -> events.Paste:
    return events.Paste(safe_text(text.replace("\r\n", "\n").replace("\r", "\n")))


class TerminalDriver(LinuxDriver):
    """Textual's driver, but it draws on standard output, and restores the terminal before a signal ends it.

    Bytes that are not UTF-8 become unknown characters, and do not end the program.
    """

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._file = sys.__stdout__  # standard error may be a log
        self._has_terminal = False
        self._is_ending = False
        for number in _ENDS:
            if signal.getsignal(number) is signal.SIG_DFL:  # else nohup, for one, wants it ignored
                signal.signal(number, self._end)

    def start_application_mode(self) -> None:
        """Take the terminal."""
        self._has_terminal = True
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self.write(f"\x1b7\x1b[{_PROBE_ROW};1H{PROBE}\x1b[6n\x1b[2K\x1b8")  # where is the cursor after it?

    def process_message(self, message: Message) -> None:
        """Hear where the cursor is after a spacing mark, and pass other events on."""
        if isinstance(message, events.CursorPosition):
            if message.y == _PROBE_ROW - 1 and message.x in (1, 2):
                super().process_message(MarksMeasured(message.x == 2))
            return
        super().process_message(message)

    def stop_application_mode(self) -> None:
        """Give the terminal back."""
        if self._mouse_pixels:
            self.write("\x1b[?1016l")  # which Textual leaves
        super().stop_application_mode()
        self._has_terminal = False

    def close(self) -> None:
        """Leave what ends the program to the system again."""
        super().close()
        if not self._is_ending:
            for number in _ENDS:
                if signal.getsignal(number) == self._end:
                    signal.signal(number, signal.SIG_DFL)

    def _end(self, number: int, _frame: FrameType | None) -> None:
        """End the program in order; without a terminal to restore, the signal ends it now."""
        if not self._has_terminal or not os.isatty(self.fileno):
            end_by(number)
        if not self._is_ending:
            self._is_ending = True
            signal.signal(signal.SIGALRM, lambda *_: self._give_up(number))
            signal.setitimer(signal.ITIMER_REAL, _LEAVING_S)
            self._loop.call_soon_threadsafe(self._app.exit, 128 + number)

    def _give_up(self, number: int) -> None:
        """Give the terminal back in one go, as the screen does not leave, and end."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # if the output is not read
        signal.alarm(1)
        if self._has_terminal:
            with suppress(OSError, termios.error):
                os.write(self.fileno, _GIVEN_BACK)
                if self.attrs_before is not None:
                    termios.tcsetattr(self.fileno, termios.TCSANOW, self.attrs_before)
        end_by(number)

    def run_input_thread(self) -> None:
        """Read until the terminal is closed; then the program gets a hangup, as a shell does."""
        parser = InputParser(self._debug)
        decode = getincrementaldecoder("utf-8")("replace").decode
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                came = self._read() if selector.select(_REST_S) else None
                if came == b"":
                    os.kill(os.getpid(), signal.SIGHUP)
                    os.kill(os.getpid(), signal.SIGTERM)  # under nohup: this screen is no longer visible
                    return
                text = decode(came or b"")
                for event in parser.feed(text) if text else parser.tick():
                    self.process_message(event)

    def _read(self) -> bytes:
        try:
            return os.read(self.fileno, 2**16)
        except OSError:  # of a terminal that has been closed
            return b""
