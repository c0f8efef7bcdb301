"""An answer as it comes: its thinking, its text, and the calls of tools in it.

Nothing is lost: what only looks like a call comes through as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from localspec.chat.calls.calls_in_text import CallsInText
from localspec.chat.calls.form import ToolFormat
from localspec.chat.calls.harmony import CallsInChannels
from localspec.chat.calls.pieces import Piece
from localspec.chat.calls.typed import Parameters, parsed
from localspec.chat.markdown import code_blocks
from localspec.chat.thinking import ThinkingReader
from localspec.thinking_tags import Stretch, ThinkingTags, tags_of
from localspec.types.events import ThinkingOpened
from localspec.types.request import ToolCall

_HEADER_BEGUN = re.compile(r"(?:<\|start\|>[^<]*)?(?:<\|channel\|>[^<]*(?:<\|constrain\|>[^<]*)?)?| to=\S*")
"""A header that was cut before its message."""


class AnswerReader:
    """An answer as it comes: thinking, text and calls of these tools apart."""

    def __init__(
        self,
        form: ToolFormat | None = None,
        tools: Sequence[str] = (),
        *,
        is_bare: bool = False,
        takes_unknown: bool = False,
        made: Sequence[ToolCall] | None = None,
    ) -> None:
        """Without tools there are no calls; a bare completion is all text.

        Where it `takes_unknown` names, an answer that is nothing but the JSON of a call is one. Unless `made`
        is None, so is the only call that its blocks of code show, if it is none of those made.
        """
        self._form = form
        self._tools = tools
        self._made = made
        self._said = ""
        self._has_called = False
        self._has_channels = form is not None and form.kind == "harmony"
        self._calls: CallsInText | None = None
        self._channels: CallsInChannels | None = None
        if form is not None and tools and self._has_channels:
            self._channels = CallsInChannels(_parameters(tools))
        elif form is not None and tools:
            self._calls = CallsInText(form, _parameters(tools), takes_unknown=takes_unknown)
        self._thinking = None if is_bare else self._reader()
        self._thought: Literal["not", "now", "before"] = "not"

    def _reader(self, opened: ThinkingTags | None = None) -> ThinkingReader:
        if self._channels is not None:
            return ThinkingReader(opened, has_channels=True, keeps_marks=self._channels.is_in_arguments)
        if self._calls is None:
            return ThinkingReader(opened, has_channels=self._has_channels)
        return ThinkingReader(opened, looks_later=False, keeps_marks=self._calls.is_in_call)

    @property
    def answers_directly(self) -> bool:
        """Whether the model said in the form of a call that it answers without one."""
        return self._calls is not None and self._calls.answers_directly

    def open(self, opened: ThinkingOpened) -> None:
        """Take note, before any text, that the prompt has opened the thinking."""
        self._thinking = self._reader(tags_of(opened.opening))

    def feed(self, text: str, *, more: bool = True, is_cut: bool = False) -> Iterator[Piece]:
        """Yield the parts that are certain now; `more` if the answer continues, else it may be cut."""
        for piece in self._parts(text, more=more, is_cut=is_cut):
            if piece.kind == "thinking":
                between = "\n\n" if self._thought == "before" else ""
                self._thought = "now"
                yield Piece("thinking", between + piece.text)
                continue
            if self._thought == "now":
                self._thought = "before"
            self._has_called = self._has_called or piece.kind == "call"
            if self._made is not None and piece.kind == "text":
                self._said += piece.text
            if piece.text or piece.kind == "call":
                yield piece
        if self._made is not None and not (more or is_cut or self._has_called):
            yield from self._call_in_code(self._made)

    def _call_in_code(self, made: Sequence[ToolCall]) -> tuple[Piece, ...]:
        """Return the only call that the answer's blocks of JSON show; nothing if it was made before."""
        form = self._form if self._form is not None and self._form.kind == "json" else ToolFormat("json")
        found = list[tuple[Piece, ...]]()
        for block in code_blocks(self._said):
            found += _calls_of(AnswerReader(form, self._tools).feed(block.code, more=False))
        if len(found) != 1:
            return ()
        (pieces,) = found
        arguments = parsed("".join(piece.text for piece in pieces))
        is_new = all((call.name, parsed(call.arguments)) != (pieces[0].name, arguments) for call in made)
        return pieces if is_new else ()

    def _parts(self, text: str, *, more: bool, is_cut: bool) -> Iterator[Piece]:
        parted: Iterable[Stretch] = [("answer", text)]
        if self._thinking is not None:
            parted = self._thinking.feed(text, more=more)
        if is_cut and (self._channels or self._calls):
            parted = (each for each in parted if not _HEADER_BEGUN.fullmatch(each[1]))
        if self._channels is not None:
            yield from self._channels.feed(parted, more=more, is_cut=is_cut)
            return
        for kind, part in parted:
            if kind == "thinking":
                yield Piece("thinking", part)
            elif kind == "answer":
                yield from self._answer(part)
        if self._calls is not None and not more:
            yield from self._calls.feed("", more=False, is_cut=is_cut)

    def _answer(self, text: str) -> Iterator[Piece]:
        if self._calls is not None:
            yield from self._calls.feed(text, more=True)
        else:
            yield Piece("text", text)


def _calls_of(pieces: Iterable[Piece]) -> list[tuple[Piece, ...]]:
    """Return the pieces of each call."""
    found = list[tuple[Piece, ...]]()
    for piece in pieces:
        if piece.kind == "call" and piece.id:
            found.append((piece,))
        elif piece.kind == "call":
            found[-1] = (*found[-1], piece)
    return found


def _parameters(tools: Sequence[str]) -> dict[str, Parameters]:
    """Return the parameters of each tool by its name."""
    functions = [json.loads(tool)["function"] for tool in tools]
    return {each["name"]: Parameters(each.get("parameters")) for each in functions}
