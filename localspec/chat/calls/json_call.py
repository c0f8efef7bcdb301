"""Calls that a model writes as JSON objects with a name and arguments, in any order and wrapping."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from localspec.chat.calls.json_text import Chunks, JsonText
from localspec.chat.calls.names import ANSWERS_DIRECTLY, offered
from localspec.chat.calls.pieces import CallCounter, Reading
from localspec.chat.calls.source import IncomingText, Waiting
from localspec.chat.calls.typed import Parameters, parsed

_NAMES = ("name", "tool_name", "function_name", "tool", "function")
_ARGUMENTS = ("arguments", "parameters", "args", "params", "tool_input", "input")
_WRAPPERS = ("function", "function_call", "tool_call", "tool_calls", "call", "calls")
_LONGEST_NAME = 100  # of a tool that there is not
_OTHERS = ("type", "id", "tool_call_id", "index")
_KNOWN = {*_NAMES, *_ARGUMENTS, *_WRAPPERS, *_OTHERS}


class JsonCalls:
    """Reads such objects; nothing in them but the arguments of a call is passed on."""

    def __init__(
        self,
        source: IncomingText,
        tools: Mapping[str, Parameters],
        counter: CallCounter,
        ends: tuple[str, ...],
        *,
        takes_unknown: bool = False,
    ) -> None:
        """Read nothing yet; `ends` are tags after which nothing of a call can come."""
        self._takes_unknown = takes_unknown
        self._source = source
        self._tools = tools
        self._counter = counter
        self._ends = ends
        self.answers_directly = False  # as a call of no tool says

    def offered(self, name: object) -> str | None:
        """Return the tool that a call names, None if there is no such tool."""
        return offered(name, self._tools)

    def all(self, *, is_certain: bool = True) -> Reading[bool]:
        """Read an object, or a list of them; return whether there was a call.

        Without `is_certain` an object that holds anything else is none.
        """
        source = self._source
        before = self._counter.count
        if not (yield from source.starts("[")):
            return (yield from self._object(is_certain=is_certain))
        source.take(1)
        while True:
            yield from source.blank()
            head = yield from source.ahead(1)
            if head == "{":
                if not (yield from self._object(is_certain=is_certain)) and not is_certain:
                    return False
            elif head == ",":
                source.take(1)
            else:
                source.take(head == "]")
                return self._counter.count > before or self.answers_directly

    def arguments(self, name: str, marks: tuple[str, ...] = ()) -> Reading[None]:
        """Read the arguments of a call that has begun; what is no object becomes one."""
        value = JsonText(self._source, self._ends, marks)
        if (yield from self._source.starts("{")):
            for chunk in chain(value.value(), self._ending(value)):
                yield None if chunk is None else self._counter.more(chunk)
            return
        text = yield from _collected(value)
        if not self._source.was_cut:
            yield self._counter.more(as_object(text, self._tools[name]))

    def _ending(self, value: JsonText) -> Chunks:
        """Yield the missing brackets of a value that an answer leaves open, unless it was cut."""
        if not value.is_complete and not self._source.is_cut:
            yield from value.closed()

    def _object(self, *, is_certain: bool) -> Reading[bool]:
        """Read one object; return whether it is a call."""
        source = self._source
        members = dict[str, str]()
        name = None
        source.take(1)
        yield from source.blank()
        if (yield from source.starts("{")):  # Qwen2.5-Coder's own template doubles the braces
            made = yield from self._object(is_certain=is_certain)
            yield from source.blank()
            while made and (yield from source.starts("}")):  # it has one more than it opens
                source.take(1)
            return made
        while (head := (yield from self._next_member())) not in ("", "}", "<"):
            if head in "{[]:":
                return False
            found = parsed((yield from JsonText(source, self._ends).key()))
            if found is None:
                break  # it was cut
            key = str(found[0])
            if not is_certain and key not in _KNOWN and key not in self._tools:
                return False
            yield from source.blank()
            if not (yield from source.starts(":")):
                break
            source.take(1)
            yield from source.blank()
            if name and key in _ARGUMENTS and (yield from source.starts("{")):
                yield self._counter.begun(name)
                yield from self.arguments(name)
                yield from self._rest()
                return True
            members[key] = yield from _collected(JsonText(source, self._ends))
            name = name or (self._name(members[key]) if key in _NAMES else None)
            is_unknown = key in _NAMES and not name and members[key][:1] == '"'
            if is_unknown and not is_certain and not self._takes_unknown:
                return False
        source.take(head == "}")
        return (yield from self._called(members, name, is_certain=is_certain))

    def _next_member(self) -> Waiting[str]:
        """Read up to a member; return its first character, or what else comes."""
        while True:
            yield from self._source.blank()
            head = yield from self._source.ahead(1)
            if head != ",":
                return head
            self._source.take(1)

    def _rest(self) -> Waiting[None]:
        """Read what follows the arguments in the object."""
        while (head := (yield from self._next_member())) not in ("", "}", "<", "{", "[", "]", ":"):
            yield from JsonText(self._source, self._ends).key()
            yield from self._source.blank()
            if (yield from self._source.starts(":")):
                self._source.take(1)
                yield from self._source.blank()
                yield from _collected(JsonText(self._source, self._ends))
        self._source.take(head == "}")

    def _name(self, text: str) -> str | None:
        value = parsed(text)
        return self.offered(value[0]) if value else None

    def _called(self, members: Mapping[str, str], name: str | None, *, is_certain: bool) -> Reading[bool]:
        """Yield the calls of a whole object whose arguments did not come last as an object."""
        source = self._source
        if source.was_cut:
            if name:
                yield self._counter.begun(name)
            return bool(name)
        values = {key: value[0] for key, text in members.items() if (value := parsed(text)) is not None}
        found = list(self._calls_in(values, may_be_flat=is_certain))
        if not found and self._takes_unknown and not is_certain:
            found = list(_unknown_call(values))
        for tool, written in found:
            yield self._counter.begun(tool)
            yield self._counter.more(written)
        if not found and is_certain and any(values.get(key) in ANSWERS_DIRECTLY for key in _NAMES):
            self.answers_directly = True
        return bool(found) or self.answers_directly

    def _calls_in(self, values: Mapping[str, Any], *, may_be_flat: bool = False) -> Iterator[tuple[str, str]]:
        """Yield the names and arguments of the calls in an object."""
        names = [name for key in _NAMES if (name := self.offered(values.get(key)))]
        if names:
            given = [values[key] for key in _ARGUMENTS if key in values]
            others = {key: value for key, value in values.items() if key not in _KNOWN}
            if not given and may_be_flat and others.keys() <= self._tools[names[0]].properties.keys():
                given = [others]
            text = json.dumps(given[0] if given else {}, ensure_ascii=False)
            yield names[0], as_object(text, self._tools[names[0]])
            return
        for key, value in values.items():
            if key in self._tools and isinstance(value, dict):
                yield key, json.dumps(value, ensure_ascii=False)
            elif key in _WRAPPERS:
                for each in value if isinstance(value, list) else [value]:
                    if isinstance(each, dict):
                        yield from self._calls_in(each)


def _unknown_call(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and the arguments of an object that has nothing else, whatever its name."""
    name = next((values[key] for key in _NAMES if isinstance(values.get(key), str)), "")
    arguments = next((values[key] for key in _ARGUMENTS if isinstance(values.get(key), dict)), None)
    if len(values) == 2 and arguments is not None and 0 < len(name) <= _LONGEST_NAME:
        yield name, json.dumps(arguments, ensure_ascii=False)


def as_object(text: str, parameters: Parameters) -> str:
    """Return arguments as a JSON object: those that are the text of one, none, or something else."""
    value = parsed(text)
    if value is None or value[0] is None or value[0] == "":
        return "{}" if value or not text else _wrapped(text, parameters)
    if isinstance(value[0], dict):
        return text
    if isinstance(value[0], str):
        inner = parsed(value[0])
        return value[0] if inner and isinstance(inner[0], dict) else _wrapped(value[0], parameters)
    return _wrapped(value[0], parameters)


def _wrapped(value: object, parameters: Parameters) -> str:
    key = (parameters.single_text if isinstance(value, str) else None) or "arguments"
    return json.dumps({key: value}, ensure_ascii=False)


def _collected(value: JsonText) -> Waiting[str]:
    """Read a whole value; an incomplete one is closed, unless the answer was cut."""
    parts = list[str]()
    for chunk in value.value():
        if chunk is None:
            yield
        else:
            parts.append(chunk)
    if not value.is_complete:
        parts += [chunk for chunk in value.closed() if chunk]
    return "".join(parts)
