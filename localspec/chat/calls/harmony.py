"""Calls in OpenAI's harmony format: a header names the tool, and its message is the arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from localspec.chat.calls.json_call import JsonCalls
from localspec.chat.calls.pieces import CallCounter, Piece, Reading
from localspec.chat.calls.source import IncomingText
from localspec.chat.calls.typed import Parameters
from localspec.chat.thinking import HARMONY_MARKS, without_marks
from localspec.thinking_tags import Stretch

_RECIPIENT = re.compile(r"\bto=(\S+)")


class CallsInChannels:
    """Text, thinking and calls apart, from the stretches of an answer."""

    def __init__(self, tools: Mapping[str, Parameters]) -> None:
        """Read nothing yet."""
        self._tools = tools
        self._counter = CallCounter()
        self._source = IncomingText()
        self._call: Reading[None] | None = None  # whose message has begun
        self._is_in_arguments = False

    def is_in_arguments(self) -> bool:
        """Return whether arguments are incomplete, of which anything may be a part."""
        return self._is_in_arguments

    def feed(self, stretches: Iterable[Stretch], *, more: bool, is_cut: bool = False) -> Iterator[Piece]:
        """Yield the parts that are certain now; without `more` the answer is complete, or was cut."""
        for kind, text in stretches:
            if kind == "tag":
                if "<|" in text:  # a header, and not white space around thinking
                    yield from self._ended(is_cut=False)
                    self._begin(text)
            elif self._call is not None:
                self._source.add(text, more=True)
                yield from self._read()
            elif text:
                yield Piece("thinking" if kind == "thinking" else "text", text)
        if not more:
            yield from self._ended(is_cut=is_cut)

    def _begin(self, header: str) -> None:
        found = _RECIPIENT.search(without_marks(header))
        self._source = IncomingText()
        calls = JsonCalls(self._source, self._tools, self._counter, HARMONY_MARKS)
        name = calls.offered(found[1]) if found else None
        self._call = None if name is None else self._message(calls, name)

    def _message(self, calls: JsonCalls, name: str) -> Reading[None]:
        yield self._counter.begun(name)
        yield from self._source.blank()
        self._is_in_arguments = yield from self._source.starts("{")
        yield from calls.arguments(name)
        self._is_in_arguments = False
        text, _ = yield from self._source.until("<|")
        if text.strip():
            yield Piece("text", text)

    def _ended(self, *, is_cut: bool) -> Iterator[Piece]:
        self._source.add("", more=False, is_cut=is_cut)
        yield from self._read()
        self._call = None
        self._is_in_arguments = False

    def _read(self) -> Iterator[Piece]:
        for piece in self._call or ():
            if piece is None:
                return
            yield piece
