"""Calls that a model writes as a list of calls in Python, as LFM2.5 does: `[look_up(word="probed")]`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping

from localspec.chat.calls.names import offered
from localspec.chat.calls.pieces import CallCounter, Reading
from localspec.chat.calls.source import IncomingText, Waiting
from localspec.chat.calls.typed import Parameters, parsed

_NAME = re.compile(r"[\w.-]+")
_CONSTANTS = {"true": True, "false": False, "null": None}
_STOP = re.compile(r"[\"'()\[\]{}]")
_QUOTE_END = {quote: re.compile(rf"[\\\n{quote}]") for quote in "\"'"}


class PythonCalls:
    """Reads such calls; each is passed on when it is complete."""

    def __init__(self, source: IncomingText, tools: Mapping[str, Parameters], counter: CallCounter) -> None:
        """Read nothing yet."""
        self._source = source
        self._tools = tools
        self._counter = counter

    def all(self) -> Reading[bool]:
        """Read a list of calls, or one; return whether there was one."""
        source = self._source
        before = self._counter.count
        is_list = yield from source.starts("[")
        source.take(is_list)
        while True:
            yield from source.blank()
            word = yield from source.match(_NAME)
            name = offered(word, self._tools)
            if name is None:
                break
            mark = source.mark()
            source.take(len(word))
            yield from source.blank()
            arguments = yield from self._arguments(list(self._tools[name].properties))
            if arguments is None and not source.was_cut:
                source.back(mark)
                break
            source.keep(mark)
            yield self._counter.begun(name)
            if arguments is not None:
                yield self._counter.more(arguments)
            yield from source.blank()
            source.take((yield from source.starts(",")))
        if is_list and self._counter.count > before:
            source.take((yield from source.starts("]")))
        return self._counter.count > before

    def _arguments(self, names: list[str]) -> Waiting[str | None]:
        """Read arguments in brackets, and return them as JSON."""
        source = self._source
        parts = list[str]()
        depth = 0
        if not (yield from source.starts("(")):
            return None
        while True:
            text, stop = source.take_up_to(_STOP)
            parts.append(text)
            if not stop and source.more:
                yield
                continue
            parts.append(source.take(len(stop)))
            if stop in _QUOTE_END:
                parts.append((yield from self._quoted(stop)))
            depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(stop, 0)
            if depth == 0:
                return _as_json("".join(parts), names)
            if not stop:
                return None

    def _quoted(self, quote: str) -> Waiting[str]:
        """Read the rest of a text with the mark that closes it; what its writer did not escape is escaped."""
        source = self._source
        parts = list[str]()
        while True:
            text, stop = source.take_up_to(_QUOTE_END[quote])
            parts.append(text)
            if stop == "\\":
                parts.append(source.take(len((yield from source.ahead(2)))))
            elif stop == "\n":
                source.take(1)
                parts.append("\\n")
            elif stop:
                is_end = (yield from source.after_blank(1, 1)) in ("", ",", ")", "]", "}", ":")
                source.take(1)
                parts.append(quote if is_end else f"\\{quote}")
                if is_end:
                    return "".join(parts)
            elif source.more:
                yield
            else:
                return "".join(parts)


def _as_json(text: str, names: list[str]) -> str | None:
    """Return the arguments of a call as JSON, None for what is no constant; `names` are those by position."""
    try:
        called = _WithConstants().visit(ast.parse(f"f{text}", mode="eval").body)
        assert isinstance(called, ast.Call)
        given = dict(zip(names, map(ast.literal_eval, called.args), strict=False))
        given |= {str(each.arg): ast.literal_eval(each.value) for each in called.keywords}
        found = json.dumps(given, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, AssertionError, RecursionError, MemoryError):
        return None
    return found if parsed(found) else None


class _WithConstants(ast.NodeTransformer):
    """Takes the names that JSON has for constants."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_CONSTANTS[node.id]) if node.id in _CONSTANTS else node
