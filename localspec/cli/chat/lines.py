"""Where the lines of a chat come from: a terminal, or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from localspec.cli.shared.console import decode_utf8, is_terminal, say
from localspec.errors import UserError

_FENCE = '"""'


class LineReader(Protocol):
    """A source of lines."""

    @property
    def interactive(self) -> bool:
        """Tell whether somebody types the lines."""
        ...

    def line(self, prompt: str) -> str:
        """Return the next line without its end; raises EOFError after the last."""
        ...


class TerminalLines:
    """Lines that somebody types, with history and editing where the system offers them."""

    interactive = True

    def line(self, prompt: str) -> str:
        """Ask for a line."""
        if not is_terminal(sys.stdout):  # the answers go to a file, where a prompt has no place
            sys.stderr.write(prompt)
            sys.stderr.flush()
            prompt = ""
        try:
            text = input(prompt)
            text.encode("utf-8")
        except UnicodeError:
            raise UserError("the line is not valid text", "write it in the terminal's encoding") from None
        return text


class PipedLines:
    """Lines of a pipe or a file."""

    interactive = False

    def __init__(self) -> None:
        self._offset = 0

    def line(self, prompt: str) -> str:
        """Read a line."""
        data = sys.stdin.buffer.readline()
        if not data:
            raise EOFError
        text = decode_utf8(data, self._offset)
        self._offset += len(data)
        return text.rstrip("\r\n")


@contextmanager
def line_reader() -> Iterator[LineReader]:
    """Yield the lines of standard input, whatever it is."""
    if not is_terminal(sys.stdin):
        yield PipedLines()
        return
    try:
        import readline  # not on Windows, whose terminals edit lines themselves
    except ImportError:
        pass
    else:
        readline.parse_and_bind("set enable-bracketed-paste on")
    yield TerminalLines()


@dataclass(frozen=True, slots=True)
class Entry:
    """What somebody has said at once; a block is never a command."""

    text: str
    is_block: bool = False


def read_entry(reader: LineReader) -> Entry:
    """Return the next entry: a line, several that end in a backslash, or a block between triple quotes."""
    line = reader.line("> ")
    if line.lstrip().startswith(_FENCE):
        return Entry(_block(reader, line.lstrip().removeprefix(_FENCE)), is_block=True)
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        try:
            lines.append(reader.line(". "))
        except EOFError:
            break
    return Entry("\n".join(lines))


def _block(reader: LineReader, first: str) -> str:
    lines = [first]
    while not lines[-1].rstrip().endswith(_FENCE):
        try:
            lines.append(reader.line(". "))
        except EOFError:
            say(f"note: the {_FENCE} block was not closed")
            return "\n".join(lines).strip("\n")
    lines[-1] = lines[-1].rstrip().removesuffix(_FENCE)
    return "\n".join(lines).strip("\n")
