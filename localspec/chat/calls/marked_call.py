"""Calls with one pair of tags for each parameter, whose marks tell tags from any text.

Kimi K3 names parameters in attributes, with the type of each; MiniMax M3 names the tags after them, and
writes lists and objects as tags inside of tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import unescape

from localspec.chat.calls.form import TagMarks
from localspec.chat.calls.json_call import as_object
from localspec.chat.calls.names import offered
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
    """A value as JSON, and `bare` as it was written if no tags were in it; of one that was cut, what came."""

    text: str
    is_cut: bool = False
    bare: str | None = None


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
            name = offered(tag.tool, self._tools) if tag else None
            if tag is None or (name is None and not tag.is_closing):
                self._source.back(mark)
                break
            self._source.keep(mark)
            if tag.is_closing or name is None:
                break
            yield self._counter.begun(name)
            yield from self._arguments(self._tools[name])
        return self._counter.count > before

    def _arguments(self, parameters: Parameters) -> Reading[None]:
        """Read the parameters of a call, and the tag that closes it."""
        count = 0
        repeated = _Repeated(parameters)
        while (tag := (yield from self._tag())) and not tag.is_closing:
            value = yield from self._value(tag, parameters)
            if tag.word == "json" and tag.key == "json" and not count:  # all of them as one object
                yield self._counter.more(value.text if value.is_cut else as_object(value.text, parameters))
                yield from self._tag()
                return
            if tag.key == repeated.key:
                repeated.values += [] if value.is_cut else [value]
                continue
            yield self._counter.more(repeated.ended())
            start = f"{', ' if count else '{'}{json.dumps(tag.key, ensure_ascii=False)}: "
            count += 1
            if value.is_cut:
                if tag.is_text is not False and parameters.admits(tag.key, "string"):
                    yield self._counter.more(start + json.dumps(value.text, ensure_ascii=False)[:-1])
            elif parameters.admits(tag.key, "array"):
                yield self._counter.more(start)
                repeated.begin(tag.key, value)
            else:
                yield self._counter.more(start + value.text)
        yield self._counter.more(repeated.ended())
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
                written = "".join(parts)
                return _Value(_as_json(tag, written, parameters), bare=written)
            is_blank = is_blank and not text.strip()
            if is_blank and depth < _DEEPEST:
                return (yield from self._members(tag, parameters, depth + 1))
            parts.append(source.take(len(needle)))

    def _members(self, tag: _Tag, parameters: Parameters, depth: int) -> Waiting[_Value]:
        """Read the tags inside of a tag: the elements of a list, or the members of an object."""
        inside = parameters.within(tag.key)
        may_be_list = parameters.admits(tag.key, "array")
        members = dict[str, list[_Value]]()
        while (child := (yield from self._tag())) and not child.is_closing:
            is_element = may_be_list and child.key != ELEMENT and child.key not in inside.properties
            values = inside.within(ELEMENT) if is_element else inside
            value = yield from self._value(child, values, depth)
            if value.is_cut:
                return _Value("", is_cut=True)
            members.setdefault(child.key, []).append(value)
        if may_be_list and members.keys() <= {ELEMENT}:
            return _Value(f"[{', '.join(value.text for value in members.get(ELEMENT, ()))}]")
        element = inside.within(ELEMENT) if may_be_list else inside
        named = (f"{_quoted(key)}: {_joined(element, key, values)}" for key, values in members.items())
        return _Value(f"{{{', '.join(named)}}}")


class _Repeated:
    """The values of a parameter that may be a list, whose tag may come several times in a row."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self.key: str | None = None
        self.values = list[_Value]()

    def begin(self, key: str, value: _Value) -> None:
        self.key = key
        self.values = [value]

    def ended(self) -> str:
        """Return the JSON of the values, and forget them."""
        text = "" if self.key is None else _joined(self._parameters, self.key, self.values)
        self.key = None
        self.values = []
        return text


def _joined(parameters: Parameters, key: str, values: Sequence[_Value]) -> str:
    """Return the JSON of a parameter whose tag came with these values: a list where there are several.

    One alone is no list of itself if the parameter admits what it is.
    """
    if not parameters.admits(key, "array"):
        return values[-1].text
    first = values[0].text
    if len(values) == 1 and (first.startswith("[") or parameters.admits(key, _kind(first))):
        return first
    inside = parameters.within(key)
    return f"[{', '.join(filter(None, (_elements(value, inside) for value in values)))}]"


def _elements(value: _Value, inside: Parameters) -> str:
    """Return a value among several as elements of a list: itself, or those that it has if it is one."""
    if value.bare is not None and inside.admits(ELEMENT, "string"):
        return inside.as_json(ELEMENT, value.bare)
    return value.text.strip()[1:-1].strip() if value.text.startswith("[") else value.text


def _kind(text: str) -> str:
    """Return the type of a JSON value."""
    kinds = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}
    return kinds.get(text[:1], "number")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _as_json(tag: _Tag, text: str, parameters: Parameters) -> str:
    """Return a value without tags inside as JSON; a list or an object without members is an empty text."""
    if tag.word == "json":
        return text
    if not text.strip() and not parameters.admits(tag.key, "string"):
        return "[]" if parameters.admits(tag.key, "array") else "{}"
    found = parameters.as_json(tag.key, text, is_text=tag.is_text)
    if parameters.admits(tag.key, "array") and not parameters.admits(tag.key, _kind(found)):
        return parameters.within(tag.key).as_json(ELEMENT, text, is_text=tag.is_text)  # one of several
    return found
