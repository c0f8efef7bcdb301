"""Separate a model's thinking from its answer, also while it is being written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Literal

from localspec.chat.markdown import FenceScanner
from localspec.thinking_tags import (
    ANY_CASE,
    LONGEST_OPENING,
    OPENING,
    LeadingThinking,
    Stretch,
    StretchKind,
    ThinkingTags,
    begun,
    may_open,
    tags_of,
)

HARMONY_MARKS = tuple(
    f"<|{name}|>" for name in ("start", "channel", "constrain", "message", "end", "call", "return")
)


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """How an answer of several messages is written: each has a header, which ends with one of the marks.

    An answer begins as in `beginning`, after the prompt's part, and while as in `begun`, it may. A header
    with `thinking` is that of thinking, and one with `calls` is itself a part of calls.
    """

    marks: tuple[str, ...]
    end: str
    beginning: re.Pattern[str]
    begun: re.Pattern[str]
    thinking: re.Pattern[str]
    calls: re.Pattern[str] | None = None

    @property
    def mark(self) -> re.Pattern[str]:
        """Any of its marks."""
        return _any_of(self.marks)


@lru_cache(maxsize=8)
def _any_of(texts: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)))


def _beginnings_of(tag: str) -> str:
    """Return an expression for all beginnings of a tag, from none of it to all of it."""
    expression = ""
    for character in reversed(tag):
        expression = f"(?:{re.escape(character)}{expression})?"
    return expression


HARMONY = MessageFormat(
    marks=HARMONY_MARKS,
    end="<|message|>",
    beginning=re.compile(r"<\|channel\|>"),
    begun=re.compile(rf"{_beginnings_of('<|channel|')}\Z"),
    thinking=re.compile(r"\A(?!.*to=functions\.).*analysis", re.DOTALL),
)
"""OpenAI's, of gpt-oss."""
ADDRESSED = MessageFormat(
    marks=("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
    end="<|message|>",
    beginning=re.compile(r"to=[\w.:-]+<\|message\|>"),
    begun=re.compile(r"(?:to?|to=[\w.:-]{0,100}(?:<[|mesag]{0,9})?)?\Z"),
    thinking=re.compile(r"\bto=self\b"),
)
"""Muse Glimmer's, whose headers name who is spoken to."""
SECTIONS = MessageFormat(
    marks=("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
    end="<|sep|>",
    beginning=re.compile(r"<\|open\|>(?:think|response)<\|sep\|>"),
    begun=re.compile(rf"(?:{_beginnings_of('<|open|')}|<\|open\|>\w{{0,8}}(?:<[|sep]{{0,5}})?)\Z"),
    thinking=re.compile(r"<\|open\|>think<\|sep\|>\Z"),
    calls=re.compile(r"<\|open\|>tools<\|sep\|>\Z"),
)
"""Kimi K3's: thinking, response and calls."""
_FORMATS = (HARMONY, ADDRESSED, SECTIONS)


def line_end(text: str, start: int) -> int:
    """Return the start of the next line."""
    return text.find("\n", start) + 1 or len(text)


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of an answer that begins at character `start`; thinking that continues is not `closed`."""

    kind: Literal["thinking", "answer"]
    text: str
    closed: bool = True
    start: int = 0


def split(text: str, *, streaming: bool = False) -> tuple[Part, ...]:
    """Return the parts of an answer, without the tags between them and the blank space around those.

    With `streaming`, more will come: an incomplete tag is held back.
    """
    reader = ThinkingReader()
    stretches = [*reader.feed(text, more=streaming), *reader.unfinished()]
    is_parted = any(kind == "tag" for kind, _ in stretches)
    parts = list[Part]()
    at = 0
    for kind, group in groupby(stretches, itemgetter(0)):
        own = "".join(stretch for _, stretch in group)
        start = at
        at = at + len(own)
        if kind == "answer" and is_parted:
            start += len(own) - len(own.lstrip("\n"))
            own = own.strip("\n")
        if kind != "tag" and own:
            parts.append(Part(kind, own, start=start))
    if reader.is_thinking:
        last = parts.pop() if parts and parts[-1].kind == "thinking" else Part("thinking", "", start=at)
        parts.append(replace(last, closed=False))
    return tuple(parts)


def without_thinking(text: str) -> str:
    """Return the answer alone, as it goes back to the model."""
    parts = split(text)
    if parts == (Part("answer", text),):
        return text  # with every space that it has
    return "\n\n".join(part.text.rstrip() for part in parts if part.kind == "answer")


def thinking_of(text: str) -> str:
    """Return the thinking alone."""
    return "\n\n".join(part.text.strip() for part in split(text) if part.kind == "thinking")


class ThinkingReader:
    """Separates thinking from the answer as the text comes; the one parser of thinking.

    Thinking comes first, as `LeadingThinking` finds it. Further on a tag counts at the start of a line
    outside of code, once its closing tag has come; otherwise the answer only mentions it. An answer of
    several messages is recognised by its beginning. White space around thinking is dropped.
    """

    def __init__(
        self,
        opened: ThinkingTags | None = None,
        *,
        has_channels: bool = False,
        looks_later: bool = True,
        keeps_marks: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start empty; `opened` are the tags of thinking that the prompt has opened.

        With `has_channels`, the text is in the harmony format, whatever it begins with. The marks of messages
        are text while `keeps_marks`. Without `looks_later` everything after the first thinking is the answer.
        """
        self._keeps_marks = keeps_marks
        self._leading = LeadingThinking(opened)
        self._later = LaterThinking() if looks_later else None
        self._trimmed = TrimmedThinking()
        self._channels = _Channels(HARMONY, keeps_marks) if has_channels else None
        if opened is not None and SECTIONS.beginning.match(opened.opening):
            self._channels = _Channels(SECTIONS, keeps_marks, is_opened=True)
        self._beginning: str | None = "" if opened is None else None  # while it may be that of messages

    @property
    def is_thinking(self) -> bool:
        """Return whether the text ends inside thinking."""
        if self._channels is not None:
            return self._channels.thinks
        later = self._later
        return self._leading.tags is not None or (later is not None and later.opening is not None)

    def feed(self, text: str, *, more: bool = True) -> Iterator[Stretch]:
        """Yield the parts that are certain now, in order; `more` if the answer continues."""
        if self._channels is None and self._beginning is not None:
            text = self._beginning = self._beginning + text
            start = text.lstrip()
            if more and any(form.begun.match(start) for form in _FORMATS):
                return
            self._beginning = None
            form = next((form for form in _FORMATS if form.beginning.match(start)), None)
            self._channels = None if form is None else _Channels(form, self._keeps_marks)
        if self._channels is not None:
            yield from self._trimmed.feed(self._channels.feed(text, more=more), more=more)
        else:
            yield from self._trimmed.feed(self._tagged(text, more=more), more=more)

    def unfinished(self) -> Iterator[Stretch]:
        """Yield later thinking whose closing tag may still come, to show it before that is certain."""
        if self._later is not None:
            yield from self._trimmed.feed(self._later.unfinished())

    def _tagged(self, text: str, *, more: bool) -> Iterator[Stretch]:
        for kind, stretch in self._leading.feed(text, more=more):
            if kind == "answer" and self._later is not None:
                yield from self._later.feed(stretch)
            else:
                yield kind, stretch
        if not more and self._later is not None:
            yield from self._later.feed("", more=False)


class TrimmedThinking:
    """Counts the white space around thinking among the tags."""

    def __init__(self) -> None:
        """Start outside of thinking."""
        self._blank = ""  # at the end of the thinking so far
        self._has_told = False

    def feed(self, stretches: Iterable[Stretch], *, more: bool = True) -> Iterator[Stretch]:
        """Yield stretches that are trimmed; `more` if the answer continues."""
        for kind, stretch in stretches:
            if kind != "thinking":
                yield from self._end_of_thinking()
                yield kind, stretch
                continue
            text = self._blank + stretch
            thought = text.rstrip()
            self._blank = text[len(thought) :]
            if not self._has_told:
                start = len(thought) - len(thought.lstrip())
                if start:
                    yield "tag", thought[:start]
                thought = thought[start:]
            if thought:
                self._has_told = True
                yield "thinking", thought
        if not more:
            yield from self._end_of_thinking()

    def _end_of_thinking(self) -> Iterator[Stretch]:
        if self._blank:
            yield "tag", self._blank
        self._blank = ""
        self._has_told = False


def _stretch(kind: StretchKind, text: str) -> Iterator[Stretch]:
    if text:
        yield kind, text


def _end_of_blank(text: str, start: int, blanks: str) -> int:
    """Return the end of the blanks from a position on."""
    end = start
    while end < len(text) and text[end] in blanks:
        end += 1
    return end


class LaterThinking:
    """Finds thinking after the beginning of an answer."""

    def __init__(self, *, looks: bool = True) -> None:
        """Start at the beginning of a line; without `looks` nothing is thinking."""
        self._looks = looks
        self._rest = ""
        self._line = list[str]()  # the current one, up to the text that was yielded
        self._backticks = 0  # in the current line
        self._fences = FenceScanner()
        self._follows_thinking = False
        self._searched = 0  # characters of the rest that have no closing tag
        self.opening: re.Match[str] | None = None  # at the beginning of the rest

    @property
    def is_in_code(self) -> bool:
        """Whether the text ends in a block of code, or between backticks."""
        return self._fences.is_in_code or self._backticks % 2 == 1

    def give_back(self) -> str:
        """Return the text after the last part that was yielded, and forget it."""
        rest = self._rest
        self._rest = ""
        self.opening = None
        return rest

    def feed(self, text: str, *, more: bool = True) -> Iterator[Stretch]:
        """Yield the parts that are certain now, in order; `more` if the answer continues."""
        text = self._rest + text
        at = 0
        while at < len(text):
            if self._follows_thinking:
                end = _end_of_blank(text, at, "\n")
                yield from _stretch("tag", text[at:end])
                at = end
                self._follows_thinking = end == len(text)
                continue
            self.opening = None
            if self._looks and not self._line and not self._fences.is_in_code:
                start = _end_of_blank(text, at, " \t")
                self.opening = OPENING.match(text, start)
                closing = self._closing(text, at) if self.opening is not None else None
                if self.opening is not None and closing is not None:
                    yield "tag", text[at : self.opening.end()]
                    yield from _stretch("thinking", text[self.opening.end() : closing.start()])
                    yield "tag", closing[0]
                    at = closing.end()
                    self._follows_thinking = True
                    self.opening = None
                    continue
                if more and (self.opening is not None or may_open(text[start : start + LONGEST_OPENING])):
                    break
                self.opening = None
            end = line_end(text, at)
            yield "answer", text[at:end]
            self._line.append(text[at:end])
            self._backticks += self._line[-1].count("`")
            at = end
            if self._line[-1].endswith("\n"):
                self._fences.add("".join(self._line))
                self._line.clear()
                self._backticks = 0
        self._rest = text[at:]
        self._searched = len(self._rest)

    def unfinished(self) -> Iterator[Stretch]:
        """Yield thinking that has not been closed; the rest is not to be fed."""
        if self.opening is not None:
            closing = tags_of(self.opening[0]).closing
            begin = self._rest.find(self.opening[0]) + len(self.opening[0])
            end = len(self._rest)
            end -= begun(self._rest, (closing,), begin)
            yield "tag", self._rest[:begin]
            yield "thinking", self._rest[begin:end]

    def _closing(self, text: str, at: int) -> re.Match[str] | None:
        """Return the closing tag for the tag at a position; text searched before is skipped."""
        assert self.opening is not None
        tag = tags_of(self.opening[0]).closing
        searched = self._searched - len(tag) if at == 0 else 0
        return re.compile(re.escape(tag), ANY_CASE).search(text, max(self.opening.end(), searched))


class _Channels:
    """Reads the messages of an answer: a header, then text, which may be thinking."""

    def __init__(
        self, form: MessageFormat, keeps_marks: Callable[[], bool], *, is_opened: bool = False
    ) -> None:
        """Begin with a header; `is_opened`: with thinking, which the prompt has opened."""
        self._form = form
        self._keeps_marks = keeps_marks
        self._rest = ""
        # with its marks; None within a message, and the prompt has begun one
        self._header: str | None = None if is_opened else ""
        self._has_messages = self.thinks = is_opened

    def feed(self, text: str, *, more: bool) -> Iterator[Stretch]:
        """Yield the parts that are certain now, in order; `more` if the answer continues."""
        self._rest += text
        while mark := self._form.mark.search(self._rest):
            yield from self._told(self._rest[: mark.start()])
            self._rest = self._rest[mark.end() :]
            if self._header is None and self._keeps_marks():
                yield from self._told(mark[0])
                continue
            self._header = (self._header or "") + mark[0]
            self.thinks = False
            if mark[0] == self._form.end:
                is_call = self._form.calls is not None and self._form.calls.search(self._header)
                yield "answer" if is_call else "tag", self._header
                self.thinks = self._form.thinking.search(self._header) is not None
                self._header = None
                self._has_messages = True
        end = len(self._rest) - (begun(self._rest, self._form.marks) if more else 0)
        yield from self._told(self._rest[:end])
        self._rest = self._rest[end:]
        if self._header and not more:
            yield "tag" if self._has_messages else "answer", self._header  # a malformed header

    def _told(self, text: str) -> Iterator[Stretch]:
        if self._header is not None:
            self._header += text
        elif text:
            yield "thinking" if self.thinks else "answer", text


def without_marks(header: str) -> str:
    """Return the words in the header of a message in the harmony format."""
    return HARMONY.mark.sub(" ", header)
