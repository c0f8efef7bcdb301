"""Calls that a model writes with one pair of tags for each parameter, whose values nothing escapes.

So a value may hold anything, its own closing tag included. That tag ends it only where a parameter that is
not there yet or the end of the call follows; and the end of a call is one only if nothing closes the same
parameter again before another call, or the answer's end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from localspec.chat.calls.pieces import CallCounter, Reading
from localspec.chat.calls.source import IncomingText, Waiting
from localspec.chat.calls.typed import Parameters

HEAD = re.compile(
    r"<(?P<tag>[^<>\s=/]*(?:function|invoke|tool|call|action)[^<>\s=/]*)(?:=|\s+name\s*=)\s*[\"']?"
    r"(?P<name>[\w.:-]+)[\"']?\s*>"
)
_PARAMETER = re.compile(
    r"<(?P<tag>[^<>\s=/]*param(?:eter)?)(?P<sign>=|\s+name\s*=)\s*[\"']?(?P<key>[^\"'<>]+?)[\"']?"
    r"(?P<rest>\s[^<>]*)?>"
)
_KEY = re.compile(r"<(arg_key[^<>]*)>")
_VALUE = re.compile(r"<(arg_value[^<>]*)>")
_SEPARATOR = re.compile(r"<[^<>\s]*sep[^<>\s]*>")
_LITERAL = re.compile(r"<!\[CDATA\[(.*)\]\]>", re.DOTALL)
_TAGS = ("<parameter", "<parameter name", "<arg_key>", "<arg_value>")
_SEEN = 300  # characters before another call, in which the end of one is looked for


@dataclass(frozen=True, slots=True)
class _Opened:
    """A parameter whose value comes next."""

    key: str
    closing: str
    is_text: bool | None = None  # as its tag says
    is_attribute: bool = False  # its key, in a tag with `name=`


_Outcome = Literal["next", "ended", "cut", "may end", "goes on"]
"""Another parameter follows, the call has ended, or the answer was cut; or that is not certain, or not so."""


class _Value:
    """The text of a value so far."""

    def __init__(self) -> None:
        self.parts = list[str]()
        self.latest = ""  # characters

    def add(self, text: str) -> None:
        self.parts.append(text)
        self.latest = (self.latest + text)[-_SEEN:]

    def text(self, count: int | None = None) -> str:
        """Return all of it, or its first parts."""
        return "".join(self.parts[:count])


@dataclass(frozen=True, slots=True)
class CallFrame:
    """What stands around the calls of a form.

    `ends` are tags that may end a call. Another may begin with one of `openings`: `call_follows` tells if it
    does. Padded values stand on lines of their own.
    """

    ends: tuple[str, ...]
    openings: tuple[str, ...]
    call_follows: Callable[[], Waiting[bool]]
    is_padded: bool


class TaggedCalls:
    """Reads such calls; a parameter is passed on when it is complete."""

    def __init__(
        self,
        source: IncomingText,
        tools: Mapping[str, Parameters],
        counter: CallCounter,
        around: CallFrame,
    ) -> None:
        """Read nothing yet."""
        self._source = source
        self._tools = tools
        self._counter = counter
        self._ends = around.ends
        self._openings = around.openings
        self._around = around

    def begins(self, name: str, own_end: str = "") -> Waiting[bool]:
        """Return whether what comes next continues a call of a tool: a parameter, or its end."""
        mark = self._source.mark()
        yield from self._source.blank()
        tag = yield from self._source.tag()
        if _SEPARATOR.fullmatch(tag):
            self._source.take(len(tag))
            yield from self._source.blank()
            tag = yield from self._source.tag()
        was_cut = self._source.was_cut or (not tag and self._is_cut_tag(own_end))
        self._source.back(mark)
        if _PARAMETER.fullmatch(tag) or _KEY.fullmatch(tag):
            return name in self._tools
        return name in self._tools and (was_cut or tag == own_end != "" or tag in self._ends)

    def read(self, name: str, own_end: str = "") -> Reading[None]:
        """Read the parameters of a call that has begun, up to its end."""
        source = self._source
        parameters = self._tools[name]
        seen = set[str]()
        while True:
            yield from source.blank()
            opened = yield from self._opened()
            if opened is None:
                tag = yield from source.tag()
                if tag == own_end or tag in self._ends or not tag:
                    break
                source.take(len(tag))  # between parameters nothing else has a meaning
                continue
            text, outcome = yield from self._value(opened, own_end, seen)
            start = "{" if not seen else ", "
            seen.add(opened.key)
            key = json.dumps(opened.key, ensure_ascii=False)
            if outcome == "cut":
                if opened.is_text is not False and parameters.admits(opened.key, "string"):
                    begun = json.dumps(text, ensure_ascii=False)[:-1]
                    yield self._counter.more(f"{start}{key}: {begun}")
                return
            if literal := _LITERAL.fullmatch(text):
                value = json.dumps(literal[1], ensure_ascii=False)
            else:
                value = parameters.as_json(opened.key, text, is_text=opened.is_text)
            yield self._counter.more(f"{start}{key}: {value}")
            if outcome == "ended":
                break
        if source.was_cut or self._is_cut_tag(own_end):
            return
        yield self._counter.more("}" if seen else "{}")

    def _opened(self) -> Waiting[_Opened | None]:
        """Read the tags before a value."""
        source = self._source
        tag = yield from source.tag()
        if found := _PARAMETER.fullmatch(tag):
            source.take(len(tag))
            told = re.search(r"string\s*=\s*[\"']?(true|false)", found["rest"] or "")
            is_text = told[1] == "true" if told else None
            return _Opened(found["key"], f"</{found['tag']}>", is_text, found["sign"] != "=")
        found = _KEY.fullmatch(tag)
        if found is None:
            return None
        mark = source.mark()
        source.take(len(tag))
        key, end = yield from source.until(f"</{found[1]}>")
        source.take(len(end))
        yield from source.blank()
        tag = yield from source.tag()
        found = _VALUE.fullmatch(tag)
        if not end or found is None:
            if source.was_cut or (end and self._is_cut_tag("")):
                source.keep(mark)
            else:
                source.back(mark)
            return None
        source.keep(mark)
        source.take(len(tag))
        return _Opened(key.strip(), f"</{found[1]}>")

    def _value(self, opened: _Opened, own_end: str, seen: set[str]) -> Waiting[tuple[str, _Outcome]]:
        """Read a value with the tag that closes it, and the end of the call if that follows."""
        source = self._source
        value = _Value()
        end: tuple[int, int] | None = None  # a possible one: the parts before it, and a mark after it
        while True:
            text, needle = yield from source.until(opened.closing, *self._openings)
            value.add(text)
            if needle == opened.closing:
                source.take(len(needle))
                outcome, tags = yield from self._after_value(opened, own_end, seen)
                if outcome != "goes on" and end is not None:
                    source.keep(end[1])
                    end = None
                if outcome in ("next", "ended"):
                    return self._unpadded(value.text()), outcome
                if outcome == "may end":
                    end = len(value.parts), source.mark()
                value.add(needle + tags)
            elif needle and not (yield from self._around.call_follows()):
                value.add(source.take(len(needle)))
            elif end is not None:
                source.back(end[1])
                return self._unpadded(value.text(end[0])), "ended"
            elif tags := self._unclosed_end(value.latest, own_end):
                return self._unpadded(value.text()[: -len(tags)]), "ended"
            elif needle:  # nothing has ended this call: so it is not another one
                value.add(source.take(len(needle)))
            elif source.is_cut:
                return self._unpadded(value.text()), "cut"
            else:
                return self._unpadded(value.text()), "ended"

    def _unclosed_end(self, text: str, own_end: str) -> str:
        """Return the tags that end a call at the end of a text, where the last value lacks its own."""
        ends = "|".join(re.escape(end) for end in (own_end, *self._ends) if end)
        found = re.search(rf"\n?(?:(?:{ends})\s*)+\Z", text) if ends else None
        return found[0] if found else ""

    def _after_value(self, latest: _Opened, own_end: str, seen: set[str]) -> Waiting[tuple[_Outcome, str]]:
        """Say what follows the closing tag of a value; the tags at an end are read and returned."""
        source = self._source
        mark = self._source.mark()
        yield from source.blank()
        if source.is_over:
            source.keep(mark)
            return "ended", ""
        inner = source.mark()
        opened = yield from self._opened()
        source.back(inner)
        if self._is_cut_tag(own_end):
            source.keep(mark)
            return "ended", ""
        is_alike = opened and (opened.closing, opened.is_attribute) == (latest.closing, latest.is_attribute)
        if opened and is_alike and opened.key not in {*seen, latest.key}:
            source.back(mark)
            return "next", ""
        ends = (own_end, *self._ends) if own_end else self._ends
        count = 0
        while end := (yield from source.first_of(ends)):
            source.take(len(end))
            count += 1
            inner = source.mark()
            yield from source.blank()
            if not (yield from source.first_of(ends)):
                break
            source.keep(inner)
        if not count:
            source.back(mark)
            return "goes on", ""
        is_end = not (yield from source.ahead(1)) or (yield from self._around.call_follows())
        source.back(inner)
        return ("ended" if is_end else "may end"), source.keep(mark)

    def _is_cut_tag(self, own_end: str) -> bool:
        """Read a tag at the end of a cut answer; return whether there was the beginning of one."""
        return self._source.take_cut((own_end, *self._ends, *_TAGS))

    def _unpadded(self, text: str) -> str:
        return text.removeprefix("\n").removesuffix("\n") if self._around.is_padded else text
