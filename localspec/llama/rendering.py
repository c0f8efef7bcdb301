"""A chat template is untrusted code: it runs in a child process with limits of time, memory and length."""

from __future__ import annotations

import faulthandler
import json
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from localspec import units
from localspec.child_process import (
    Child,
    ChildEndedError,
    ChildOverLimitError,
    Limits,
    marked_text,
    take_pipes,
    write_marked_text,
)
from localspec.errors import ModelFileError, UserError

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from jinja2.nodes import Node
    from jinja2.parser import Parser

    from localspec.types.request import Message

_CODE = "from localspec.llama.rendering import main; main()"
_START_S = 60.0  # while other programs may have the processors
_GRACE_S = 1.0
_TEXT, _REFUSAL, _MISTAKE = range(3)
_LONGEST_COMPLAINT = 500  # characters
_OTHER = "give another with --chat-template-file, or choose another file of the model"

# What any template may take, and more for each character of the conversation, of which a turn counts 1,000.
_TURN = 1000
_SECONDS = 2.0  # that it computes
_PATIENCE = 60  # times as long may pass, where other programs have the processors: it waits for nothing else
_SECONDS_EACH = 2e-7
_MEMORY = 256 * 2**20
_MEMORY_EACH = 32
_LENGTH = 2**20
_LENGTH_EACH = 8


class Renderer:
    """The process, which starts when it is needed, and again after it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child[tuple[int, str]] | None = None

    def start(self) -> None:
        """Start the process ahead of its first use, while something else takes time."""
        with self._lock:
            self._started()

    def render(
        self,
        source: str,
        values: Mapping[str, object],
        messages: Sequence[Message],
        part_roles: Sequence[str] = (),
    ) -> str:
        """Render a conversation with a template; callable from any thread.

        `values` are for the template; its `tools` are the JSON of each. Contents of `part_roles` are lists.
        Raises `UserError` with the template's own message if it rejects or fails, and `ModelFileError` if it
        exceeds the limits; it is not used again.
        """
        names = {call.id: call.name for message in messages for call in message.tool_calls}
        turns = [_turn(message, names, part_roles) for message in messages]
        size = sum(len(message.content) + _TURN for message in messages) + _other_length(values, messages)
        return self._answer(source, {**values, "messages": turns}, size)

    def variables(self, source: str) -> tuple[str, ...]:
        """Return the names that a template reads and does not set; raises as `render` does."""
        return tuple(self._answer(source, None, 0).split())

    def _answer(self, source: str, values: Mapping[str, object] | None, size: int) -> str:
        """Return the child's reply to values of `length` characters, or to None: its variables."""
        seconds = _SECONDS + size * _SECONDS_EACH
        length = _LENGTH + size * _LENGTH_EACH
        limits = Limits(_PATIENCE * seconds, _MEMORY + size * _MEMORY_EACH, length, seconds)
        with self._lock:
            kind, text = self._ask((source, values, seconds, length), limits)
        if kind == _REFUSAL:
            raise UserError(
                f"the model's chat template refuses the conversation: {text}",
                "change the conversation, or choose a model whose template allows it",
            )
        if kind == _MISTAKE:
            raise UserError(f"the model's chat template {text}", _OTHER)
        return text

    def _started(self) -> Child[tuple[int, str]]:
        if self._child is not None and self._child.has_ended:
            self._child.end()
            self._child = None
        if self._child is None:  # its replies are not pickled: untrusted code may have written them
            self._child = Child(_CODE, "the chat template's process", marked_text)
        return self._child

    def _ask(self, order: object, limits: Limits) -> tuple[int, str]:
        child = self._started()
        try:
            child.greet(replace(limits, seconds=_START_S, computed_seconds=None))
            return child.ask(order, limits)
        except ChildEndedError as ended:
            raise _failure(f"ends its process ({ended.how})") from None
        except ChildOverLimitError as over:
            raise _failure(f"{_excess(over, limits)} for this conversation") from None


def _turn(message: Message, names: Mapping[str, str], part_roles: Sequence[str] = ()) -> dict[str, object]:
    """Return a message as transformers gives it to templates; arguments are still text."""
    parts = [{"type": "text", "text": message.content}]
    content = parts if message.role in part_roles else message.content
    turn: dict[str, object] = {"role": message.role, "content": content}
    if message.role == "tool":
        turn |= {"tool_call_id": message.tool_call_id, "name": names.get(message.tool_call_id, "")}
    if message.thinking:
        turn["reasoning_content"] = message.thinking
        if not (message.content and message.tool_calls):  # which gpt-oss refuses
            turn["thinking"] = message.thinking
    if message.tool_calls:
        turn["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return turn


def _other_length(values: Mapping[str, object], messages: Sequence[Message]) -> int:
    """Return the length of everything but the contents: thoughts, calls and tools."""
    calls = sum(len(call.arguments) + _TURN for message in messages for call in message.tool_calls)
    tools = values.get("tools")
    described = sum(len(tool) + _TURN for tool in tools) if isinstance(tools, tuple) else 0
    return calls + described + sum(len(message.thinking) for message in messages)


def _failure(what: str) -> ModelFileError:
    return ModelFileError(f"the model's chat template {what}", _OTHER)


def _excess(over: ChildOverLimitError, limits: Limits) -> str:
    if over.limit == "computed_seconds":
        return f"takes longer than {units.duration(limits.computed_seconds or 0)}"
    if over.limit == "seconds":
        return f"takes longer than {units.duration(limits.seconds or 0)}"
    return f"takes more than {units.memory(limits.memory or 0)} of memory"


renderer = Renderer()
"""The one of this program, for all its models."""


def main() -> None:
    """Render requests until there are no more."""
    environment = _environment()
    compiled = lru_cache(maxsize=2)(environment.from_string)
    requests, replies = take_pipes()
    with suppress(EOFError):
        while True:
            source, values, seconds, length = pickle.load(requests)
            _end_after(seconds + _GRACE_S)
            kind, text = _reply(partial(_text, environment, compiled, source, values))
            raw = text.encode("utf-8", "replace")
            if len(raw) > length:
                what = f"writes {units.size(len(raw))} for a conversation far shorter"
                kind = _MISTAKE
                raw = what.encode()
            _end_after(0.0)
            write_marked_text(replies, kind, raw)


def _end_after(seconds: float) -> None:
    """End this process once it has computed so long, 0 for never: the parent may have died."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, seconds)  # whose signal nothing handles
    elif seconds:
        faulthandler.dump_traceback_later(_PATIENCE * seconds, exit=True)
    else:
        faulthandler.cancel_dump_traceback_later()


class _RefusedError(Exception):
    """What a template raises about a conversation."""


def _reply(make: Callable[[], str]) -> tuple[int, str]:
    """Return a text, or what the template's code says or does wrong instead."""
    from jinja2 import TemplateError

    try:
        return _TEXT, make()
    except _RefusedError as error:
        return _REFUSAL, _in_a_line(error)
    except TemplateError as error:
        return _MISTAKE, f"has a mistake: {_in_a_line(error)}"
    except Exception as error:  # noqa: BLE001 - whatever else foreign code raises
        return _MISTAKE, f"has a mistake: {type(error).__name__}: {_in_a_line(error)}"


def _text(
    environment: Environment,
    compiled: Callable[[str], Template],
    source: str,
    values: Mapping[str, object] | None,
) -> str:
    from jinja2 import meta

    if values is not None:
        return compiled(source).render(_with_objects(values))
    names = meta.find_undeclared_variables(environment.parse(source))
    return " ".join(sorted(names - environment.globals.keys()))


class _Arguments(dict[str, object]):
    """The arguments of a call: an object to templates that look inside, its JSON to those that print it."""

    def __str__(self) -> str:
        return _to_json(dict(self))

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


def _with_objects(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Turn the JSON of tools and of arguments into objects."""
    for turn in values["messages"]:
        for call in turn.get("tool_calls", ()):
            call["function"]["arguments"] = _Arguments(json.loads(call["function"]["arguments"]))
    return {**values, "tools": [*map(json.loads, values["tools"])]} if "tools" in values else values


def _in_a_line(error: Exception) -> str:
    words = str(error)[:_LONGEST_COMPLAINT]
    return " ".join("".join(each if each.isprintable() else " " for each in words).split())


def _environment() -> Environment:
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationTag(Extension):
        """Renders the body of `{% generation %}`, which marks training targets."""

        tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

        def parse(self, parser: Parser) -> Node | list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Sandbox(ImmutableSandboxedEnvironment):
        """Allows a template to change lists, as some do; they are copies."""

        def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
            allowed = isinstance(obj, list) and attr in ("append", "pop")
            return allowed or super().is_safe_attribute(obj, attr, value)

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment


def _to_json(value: object, indent: int | None = None, ensure_ascii: bool = False, **options: object) -> str:
    options.setdefault("default", _items)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)  # type: ignore[arg-type]


def _items(value: object) -> list[object]:
    """Convert the generator of a filter such as `map` to a list."""
    if not isinstance(value, Iterator):
        raise TypeError(f"{type(value).__name__} is not JSON")
    return [*value]


def _raise(message: object) -> None:
    raise _RefusedError(str(message))
