"""Calls with one pair of tags for each parameter, whose marks tell tags from any text.

Kimi K3 names parameters in attributes, with the type of each; MiniMax M3 names the tags after them, and
writes lists and objects as tags inside of tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import unescape

from localspec.chat.calls.form import TagMarks
from localspec.chat.calls.json_call import as_object
from localspec.chat.calls.pieces import CallCounter, Reading
from localspec.chat.calls.source import IncomingText, Waiting
from localspec.chat.calls.typed import ELEMENT, Parameters

_DEEPEST = 50  # tags inside each other
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class _Tag:
    """A tag: its first word, and what it says besides."""

    word: str
    attributes: Mapping[str, str]
    is_closing: bool

    @property
    def key(self) -> str:
        """The name of the parameter that it opens."""
        return self.attributes.get("key") or self.attributes.get("name") or self.word

    @property
    def tool(self) -> str:
        """The name of the tool that it calls."""
        return self.attributes.get("tool", self.attributes.get("name", ""))

    @property
    def is_text(self) -> bool | None:
        """Whether the value is a text, if the tag says its type."""
        return self.attributes["type"] == "string" if "type" in self.attributes else None


@dataclass(frozen=True, slots=True)
class _Value:
    """A value as JSON; of one that was cut, the text that came."""

    text: str
    is_cut: bool = False


class MarkedCalls:
    """Reads such calls."""

    def __init__(
        self, source: IncomingText, tools: Mapping[str, Parameters], counter: CallCounter, marks: TagMarks
    ) -> None:
        """Read nothing yet."""
        self._source = source
        self._tools = tools
        self._counter = counter
        self._marks = marks

    def all(self) -> Reading[bool]:
        """Read a block of calls behind its opening; return whether there was one."""
        before = self._counter.count
        while True:
            mark = self._source.mark()
            tag = yield from self._tag()
            name = tag.tool.removeprefix("functions.") if tag else ""
            if tag is None or (name not in self._tools and not tag.is_closing):
                self._source.back(mark)
                break
            self._source.keep(mark)
            if tag.is_closing:
                break
            yield self._counter.begun(name)
            yield from self._arguments(self._tools[name])
        return self._counter.count > before

    def _arguments(self, parameters: Parameters) -> Reading[None]:
        """Read the parameters of a call, and the tag that closes it."""
        count = 0
        while (tag := (yield from self._tag())) and not tag.is_closing:
            value = yield from self._value(tag, parameters)
            if tag.word == "json" and tag.key == "json" and not count:  # all of them as one object
                yield self._counter.more(value.text if value.is_cut else as_object(value.text, parameters))
                yield from self._tag()
                return
            start = f"{', ' if count else '{'}{json.dumps(tag.key, ensure_ascii=False)}: "
            if not value.is_cut:
                yield self._counter.more(start + value.text)
            elif tag.is_text is not False and parameters.admits(tag.key, "string"):
                yield self._counter.more(start + json.dumps(value.text, ensure_ascii=False)[:-1])
            count += 1
        if not self._source.was_cut:
            yield self._counter.more("}" if count else "{}")

    def _tag(self) -> Waiting[_Tag | None]:
        """Read blanks and the tag behind them; None: something else comes, which is not read."""
        source = self._source
        marks = self._marks
        mark = source.mark()
        yield from source.blank()
        start = yield from source.first_of((marks.closes, marks.opens))
        inner = end = ""
        if start:
            source.take(len(start))
            inner, end = yield from source.until(marks.ends)
        if not end:
            if source.was_cut:
                source.keep(mark)
            else:
                source.back(mark)
            return None
        source.take(len(end))
        source.keep(mark)
        attributes = {key: unescape(value) for key, value in _ATTRIBUTE.findall(inner)}
        return _Tag(inner.partition(" ")[0], attributes, start == marks.closes)

    def _value(self, tag: _Tag, parameters: Parameters, depth: int = 0) -> Waiting[_Value]:
        """Read a value with the tag that closes it."""
        source = self._source
        marks = self._marks
        parts = list[str]()
        closing = f"{marks.closes}{tag.word}{marks.ends}"
        may_hold_tags = marks.closes.startswith(marks.opens)
        is_blank = True
        while True:
            text, needle = yield from source.until(marks.opens if may_hold_tags else closing)
            parts.append(text)
            if not needle and source.was_cut:
                return _Value("".join(parts), is_cut=True)
            if not needle or (
                yield from source.starts(marks.closes)
            ):  # or of the call, if its own is missing
                source.take(len(closing) if (yield from source.starts(closing)) else 0)
                return _Value(_as_json(tag, "".join(parts), parameters))
            is_blank = is_blank and not text.strip()
            if is_blank and depth < _DEEPEST:
                return (yield from self._members(tag, parameters, depth + 1))
            parts.append(source.take(len(needle)))

    def _members(self, tag: _Tag, parameters: Parameters, depth: int) -> Waiting[_Value]:
        """Read the tags inside of a tag: the elements of a list, or the members of an object."""
        inside = parameters.within(tag.key)
        members = list[tuple[str, str]]()
        while (child := (yield from self._tag())) and not child.is_closing:
            value = yield from self._value(child, inside, depth)
            if value.is_cut:
                return _Value("", is_cut=True)
            members.append((child.key, value.text))
        if parameters.admits(tag.key, "array") and all(key == ELEMENT for key, _ in members):
            return _Value(f"[{', '.join(value for _, value in members)}]")
        named = (f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in members)
        return _Value(f"{{{', '.join(named)}}}")


def _as_json(tag: _Tag, text: str, parameters: Parameters) -> str:
    """Return a value without tags inside as JSON; a list or an object without members is an empty text."""
    if tag.word == "json":
        return text
    if not text.strip() and not parameters.admits(tag.key, "string"):
        return "[]" if parameters.admits(tag.key, "array") else "{}"
    return parameters.as_json(tag.key, text, is_text=tag.is_text)
