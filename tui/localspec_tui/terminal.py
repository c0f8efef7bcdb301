"""What a terminal sends: whatever bytes come, typed or pasted, none of them ends the program."""

from __future__ import annotations

import os
import selectors
import signal
from codecs import getincrementaldecoder
from collections.abc import Iterable

from textual import events
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from localspec.safe_text import safe_text

_REST_S = 0.1  # without a byte: what came is whole


class InputParser(XTermParser):
    """Textual's parser for keys, but what is pasted is text, whatever sequences it holds."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._pasted: list[str] = []  # from the start of a paste on

    def feed(self, data: str) -> Iterable[Message]:
        """Yield what is typed; of a paste only `tick` knows that it is whole."""
        if not self._pasted:
            typed, start, data = data.partition(BRACKETED_PASTE_START)
            if typed:
                yield from self._typed(typed)
            if not start:
                return
        self._pasted.append(data)

    def tick(self) -> Iterable[Message]:
        """Yield what is meant by what came, because nothing more comes."""
        yield from super().tick()
        if self._pasted:
            # the last end is the terminal's own: those before were pasted, and what follows them is not typed
            text, end, typed = "".join(self._pasted).rpartition(BRACKETED_PASTE_END)
            if end:
                self._pasted.clear()
                yield events.Paste(safe_text(text.replace("\r\n", "\n").replace("\r", "\n")))
                yield from self.feed(typed)

    def _typed(self, text: str) -> Iterable[Message]:
        try:
            yield from super().feed(text)
        except (ValueError, OverflowError):  # a sequence with a number that no key has
            XTermParser.__init__(self)  # what it had begun to read is no key


class TerminalDriver(LinuxDriver):
    """Textual's driver, but bytes that are no UTF-8 are characters that nobody knows, not the end."""

    def run_input_thread(self) -> None:
        """Read until the terminal is left, or is no more: then the program is hung up, as a shell is."""
        parser = InputParser(self._debug)
        decode = getincrementaldecoder("utf-8")("replace").decode
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                came = self._read() if selector.select(_REST_S) else None
                if came == b"":
                    os.kill(os.getpid(), signal.SIGHUP)
                    os.kill(os.getpid(), signal.SIGTERM)  # under nohup: nobody can see this screen any more
                    return
                text = decode(came or b"")
                for event in parser.feed(text) if text else parser.tick():
                    self.process_message(event)

    def _read(self) -> bytes:
        try:
            return os.read(self.fileno, 2**16)
        except OSError:  # of a terminal that has been closed
            return b""
