"""Calls of tools in what a model writes: which form its template gives them, and how to read it as it comes.

Nothing is lost: what only looks like a call comes through as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal
from uuid import uuid4

from localspec.chat.thinking import ThinkingReader, without_marks
from localspec.errors import UserError
from localspec.llama.tool_words import PROBE, PROBE_TOOL
from localspec.thinking_tags import Stretch, begun, opened_at_end, tags_of
from localspec.types.events import ThinkingOpened
from localspec.types.request import Grammar, Request, TemplateVariables

_NAME, _ARGUMENTS = "look_up", '{"word": "probed"}'
_TAG = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]")
_THOUGHT = re.compile(r"<think>\s*</think>|</think>")
# As chat templates write JSON.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MOST_CALLS = 8  # in one answer that has to call: weak models do not stop by themselves
_LONGEST_HEAD = 400  # characters in which a call has to name its tool


Kind = Literal["thinking", "text", "call"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of an answer, of the thinking before it, or of a call: the JSON text of its arguments.

    The first piece of a call has its name, and its id of nine letters and digits, as Mistral's templates
    want it; `index` counts calls.
    """

    kind: Kind
    text: str = ""
    index: int = 0
    id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The form of a model's calls: text `before` the name, `between` it and the arguments, and `after` them.

    A call begins with the tag `opening`, or is the whole answer; `closing` are tags that may follow it.
    Kinds: a JSON object with the name, a name before a JSON object, gpt-oss's channels with such, parameters
    in tags, and Gemma's notation.
    """

    kind: Literal["json", "named", "harmony", "parameters", "gemma"]
    opening: str = ""
    closing: tuple[str, ...] = ()
    before: str = ""
    between: str = ""
    after: str = ""


def tool_format(render: Callable[[Request], str], variables: TemplateVariables = ()) -> ToolFormat:
    """Find the form of a model's calls from a call that its template writes with `render`.

    Raises `UserError` for a template that refuses to.
    """
    text = render(Request(PROBE, template_variables=variables, tools=(PROBE_TOOL,)))
    if text.rfind(PROBE[2].content) < text.find(PROBE[0].content):
        raise UserError("the model's chat template leaves out what is said", "choose another model")
    start = text.rindex(PROBE[0].content) + len(PROBE[0].content)
    prompt = render(Request(PROBE[:1], template_variables=variables))
    asked = prompt.rpartition(PROBE[0].content)[2].removesuffix(opened_at_end(prompt)).rstrip()
    return _written_format(text[start : text.index(PROBE[2].content, start)].removeprefix(asked))


def _written_format(written: str) -> ToolFormat:
    """Return the form of a call from the text between the question and the result."""
    if "<|channel|>" in written:
        before, between = "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>"
        return ToolFormat("harmony", "to=functions.", (), before, between)
    before, _, rest = _THOUGHT.sub("", written).partition(_NAME)
    between, _, after = rest.partition(_ARGUMENTS)
    tags = [tag for tag in _TAG.findall(before) if re.search("tool|call|action", tag, re.IGNORECASE)]
    opened = re.search(r"<\w[^<>]*$", before)
    tag = tags[-1] if tags else opened[0] if opened else ""
    before = before[before.rindex(tag) :] if tag else before.lstrip()
    closing = tuple(_TAG.findall(after or rest.partition("probed")[2].removeprefix('<|"|>')))
    if re.search(r'"(tool_)?name":\s*"$', before) and between:
        end = "}]" if "[" in before.removeprefix(tag) else "}"
        closed = next((f"\n{each}" for each in closing if each == tag.replace("<", "</")), "")
        return ToolFormat("json", tag, closing, before, between, end + closed)
    if between and _ARGUMENTS in rest:
        return ToolFormat("named", before.strip(), closing, before, between)
    kind: Literal["parameters", "gemma"] = "gemma" if before.endswith("call:") else "parameters"
    return ToolFormat(kind, tag, closing, before)


def call_grammar(
    form: ToolFormat,
    tools: Sequence[str],
    token: Callable[[str], int | None],
    *,
    several: bool = False,
    otherwise: Grammar | None = None,
) -> Grammar:
    """Return the grammar of one call of the tools, or `several`, or `otherwise` of a JSON schema.

    `token` returns the single token of a tag, if it is one. If arguments are not JSON, the grammar only
    forces a call and its name. Calls that are written as one list come alone.
    """

    def spelled(text: str) -> str:
        parts = [part for part in re.split(f"({_TAG.pattern})", text) if part]
        tokens = [token(part) if _TAG.fullmatch(part) else None for part in parts]
        return " ".join(
            json.dumps(part, ensure_ascii=False) if number is None else f"<[{number}]>"
            for part, number in zip(parts, tokens, strict=True)
        )

    between = form.between.replace(PROBE[1].tool_calls[0].id, _new_id())  # which some forms repeat
    begins_anew = form.kind == "named" or (form.kind == "json" and form.after.endswith(">"))
    more = rf' ("\n"? call){{0,{_MOST_CALLS - 1}}}' if several and begins_anew else ""
    json_schema = f" | %json {otherwise.text}" if otherwise is not None else ""
    rules = [f"start: call{more}{json_schema}"]
    rules.append(f"call: {' | '.join(f'call{number}' for number in range(len(tools)))}")
    for number, tool in enumerate(tools):
        function = json.loads(tool)["function"]
        schema = {**(function.get("parameters") or {"type": "object"}), "x-guidance": _SPACING}
        arguments = f"%json {json.dumps(schema)}" if form.between else r"/[^\w.-](.|\n)*/"
        called = " ".join((spelled(form.before), json.dumps(function["name"]), spelled(between)))
        rules.append(f"call{number}: {called} {arguments} {spelled(form.after)}")
    return Grammar("lark", "\n".join(rules))


class AnswerReader:
    """An answer as it comes: thinking, text and calls of these tools apart."""

    def __init__(
        self, form: ToolFormat | None = None, tools: Sequence[str] = (), *, is_bare: bool = False
    ) -> None:
        """Without tools there are no calls; a bare completion is all text."""
        self._has_channels = form is not None and form.kind == "harmony"
        self._thinking = None if is_bare else ThinkingReader(has_channels=self._has_channels)
        self._calls = _Calls(form, _schemas(tools)) if form is not None and tools else None
        self._thought: Literal["not", "now", "before"] = "not"

    def open(self, opened: ThinkingOpened) -> None:
        """Take note, before any text, that the prompt has opened the thinking."""
        self._thinking = ThinkingReader(tags_of(opened.opening), has_channels=self._has_channels)

    def feed(self, text: str, *, more: bool = True) -> Iterator[Piece]:
        """Yield the parts that are certain now; `more` if the answer continues."""
        parted: Iterable[Stretch] = [("answer", text)]
        if self._thinking is not None:
            parted = self._thinking.feed(text, more=more)
        for kind, part in parted:
            if kind == "thinking":
                between = "\n\n" if self._thought == "before" else ""
                self._thought = "now"
                yield Piece("thinking", between + part)
                continue
            if self._thought == "now":
                self._thought = "before"
            written = part if kind == "answer" else _called_in(part)
            if self._calls is not None:
                yield from self._calls.feed(written)
            elif written:
                yield Piece("text", written)
        if self._calls is not None and not more:
            yield from self._calls.feed("", more=False)


def _called_in(header: str) -> str:
    """Return the beginning of a call that the header of a channel names, as `_Calls` reads it."""
    _, to, name = without_marks(header).partition("to=functions.")
    return f"{to}{name} " if to else ""


@dataclass(frozen=True, slots=True)
class _Read:
    """A call as it is written: `end` is the position after a complete one. None instead: not a call.

    Arguments that are not `closed` continue.
    """

    name: str = ""
    arguments: str = ""
    end: int | None = None
    closed: bool = True


class _Calls:
    """The calls in an answer, separate from its text."""

    def __init__(self, form: ToolFormat, schemas: Mapping[str, Mapping[str, object]]) -> None:
        self._form, self._schemas = form, schemas
        self._closing = ("```", "]", *form.closing)
        self._rest = ""
        self._skip: int | None = None  # characters before a possible call: text if it is not one
        self._last, self._seen = _Read(), 0  # of that call, and of how many characters
        self._index = 0  # of the next call
        self._place: Literal["start", "text", "call"] = "start"  # the position of the rest

    def feed(self, text: str, *, more: bool = True) -> Iterator[Piece]:
        """Yield the parts that are certain now; `more` if the answer continues."""
        self._rest += text
        goes_on = True
        while self._rest and goes_on:
            goes_on = yield from (self._said(more=more) if self._skip is None else self._call(more=more))

    def _said(self, *, more: bool) -> Generator[Piece, None, bool]:
        """Yield text up to a possible call; return whether there is more to look at."""
        if self._place == "call" and self._waits_for_closing(more=more):
            return False
        rest, opening, bare = self._rest, self._form.opening, None
        if self._place != "text" and (self._place == "call" or self._form.kind == "json"):
            bare = _BARE.match(rest)
            if bare is None and more and _BARE_BEGUN.fullmatch(rest):
                return False
        at = bare.start() if bare else rest.find(opening) if opening else -1
        if at >= 0:
            end = len(rest[:at].rstrip())  # blanks before a call are none of the text
            if end:
                yield Piece("text", rest[:end])
            self._rest, self._last, self._seen = rest[end:], _Read(), 0
            self._skip = (bare.end() if bare else at + len(opening)) - end
            return True
        end = len(rest) - (begun(rest, (opening,)) if opening and more else 0)
        end = len(rest[:end].rstrip()) if more else end
        self._rest = rest[end:]
        if end:
            self._place = "text"
            yield Piece("text", rest[:end])
        return False

    def _waits_for_closing(self, *, more: bool) -> bool:
        """Drop closing tags of calls; return whether one may have begun."""
        while True:
            self._rest = self._rest.lstrip()
            closed = next((each for each in self._closing if self._rest.startswith(each)), None)
            if closed is None:
                return more and any(each.startswith(self._rest) for each in self._closing)
            self._rest = self._rest[len(closed) :]

    def _call(self, *, more: bool) -> Generator[Piece, None, bool]:
        """Yield a call as it is written; return whether there is more to look at."""
        assert self._skip is not None
        read = self._read(self._rest[self._skip :], more=more)
        if read is None or (read.name and read.name not in self._schemas) or not (read.name or more):
            text, self._rest = self._rest[: self._skip or 1], self._rest[self._skip or 1 :]
            self._skip, self._place = None, "text"
            yield Piece("text", text)
            return True
        last, self._last = self._last, read
        if read.name and not last.name:
            yield Piece("call", "", self._index, _new_id(), read.name)
        if new := read.arguments[len(last.arguments) :]:
            yield Piece("call", new, self._index)
        if read.end is not None:
            self._rest, self._index = self._rest[self._skip + read.end :], self._index + 1
            self._skip, self._place = None, "call"
        elif not more:
            self._rest = ""  # cut in the middle
        return read.end is not None

    def _read(self, text: str, *, more: bool) -> _Read | None:
        """Return the call that a text begins with, complete or not; None if it is not a call."""
        form, last, new = self._form, self._last, text[self._seen :]
        self._seen = len(text)
        closes = not more or bool({*"}>"} & {*new})
        if last.name and not closes:  # long calls are not read again and again
            return last if last.closed else replace(last, arguments=last.arguments + new)
        if form.kind == "parameters":
            return _parameters(text, self._schemas, more=more)
        if form.kind == "gemma":
            return _gemma(text, form.closing[0])
        return _json(text, _JSON_HEAD, 1) if form.kind == "json" else _json(text, _NAMED_HEAD, 0)


# What the answer may be in all, or what may follow a call without another opening.
_BARE = re.compile(
    r"\s*(?:<\|python_tag\|>|```(?:json)?|[,;])?\s*(?=\[?\s*\{|<function[= ]|<[^<>\s]{0,12}invoke )"
)
_BARE_BEGUN = re.compile(r"\s*(?:<[|\w]*>?|`{0,3}|```\w*|[,;])?\s*\[?\s*")
_JSON_HEAD = re.compile(
    r'\s*\[?\s*\{\s*(?:"\w+":\s*"[^"]*",\s*)?"(?:tool_)?name":\s*"([^"]+)",\s*'
    r'"(?:arguments|parameters)":\s*(?=\{)'
)
_NAMED_HEAD = re.compile(r"\s*([\w.-]+)[^{]{0,100}(?=\{)")
_PARAMETERS_HEAD = re.compile(
    r'\s*<(?:function|[^<>\s]{0,12}invoke)(?:=| name=)"?([^">\s]+)"?>|\s*([\w.-]+)\s*(?=<arg_key|</tool_call)'
)
_OPENED = r"<[^<>\s/]*?param(?:eter)?(?:=| name=)"
# A tag that closes a value is followed by another parameter or by the end: else it is of the value.
_PARAMETER = re.compile(
    rf'{_OPENED}"?([^">\s]+)"?[^>]*>\n?(.*?)\n?</[^<>\s]*?param(?:eter)?>'
    rf"(?=\s*(?:{_OPENED}|</function>|</[^<>\s]*?invoke>|</tool_call))"
    r"|<arg_key[^>]*>(.*?)</arg_key[^>]*>\s*<arg_value[^>]*>(.*?)</arg_value[^>]*>"
    r"(?=\s*(?:<arg_key|</tool_call))",
    re.DOTALL,
)
_PARAMETER_OPENED = re.compile(rf'{_OPENED}"?([^">\s]+)"?[^>]*>\n?|<arg_key')
_CALL_FOLLOWS = re.compile(r"</function>\s*(?:</tool_call>\s*<tool_call>\s*)?(?=<function=)")
_PARAMETERS_END = re.compile(r"</function>|</[^<>\s]*?invoke>|</tool_call[^>]*>")
_GEMMA_HEAD = re.compile(r"\s*call:([\w.-]+)(?=\{)")
_GEMMA_QUOTE = re.compile(r'<\|"\|>|<escape>')
_STRUCTURE = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)


def _json(text: str, head: re.Pattern[str], depth: int) -> _Read | None:
    """Read a call with JSON arguments; at `depth` 1 an object is around them."""
    found = head.match(text)
    if found is None:
        could_be = not depth or re.match(r"\s*\[?\s*(\{|$)", text)
        return _Read() if could_be and len(text) < _LONGEST_HEAD else None
    end = _closed(text, found.end())
    arguments = text[found.end() : end]
    if end is None:
        return _Read(found[1], arguments, closed=False)
    return _Read(found[1], arguments, _closed(text, end, depth) if depth else end)


def _closed(text: str, at: int, depth: int = 0) -> int | None:
    """Return the end of JSON from `at` on, where `depth` brackets are open."""
    quoted = False
    for found in _STRUCTURE.finditer(text, at):
        if found[0] == '"':
            quoted = not quoted
        elif not quoted and found[0] in "{[":
            depth += 1
        elif not quoted and found[0] in "}]":
            depth -= 1
            if depth == 0:
                return found.end()
    return None


def _parameters(text: str, schemas: Mapping[str, Mapping[str, object]], *, more: bool = True) -> _Read | None:
    """Read a call with one tag for each parameter; a parameter is passed on when it is complete.

    Some models omit the closing tag of the last one. It then ends with the call, which is known at the end of
    the answer (not `more`), or where another call begins.
    """
    head = _PARAMETERS_HEAD.match(text)
    if head is None:
        return _Read() if len(text) < _LONGEST_HEAD else None
    name = head[1] or head[2]
    types, at = schemas.get(name, {}), head.end()
    following = _CALL_FOLLOWS.search(text, at)
    if following is not None:
        text, more = text[: following.start() + len("</function>")], False
    members = list[str]()
    while parameter := _PARAMETER.search(text, at):
        end = _PARAMETERS_END.search(text, at)
        if end is not None and end.start() < parameter.start():
            break
        key, value = parameter[1] or parameter[3], parameter[2] if parameter[1] else parameter[4]
        members.append(f"{json.dumps(key, ensure_ascii=False)}: {_typed(value, types.get(key))}")
        at = parameter.end()
    end = _PARAMETERS_END.search(text, at)
    opened = None if end is None else _PARAMETER_OPENED.search(text, at, end.start())
    if opened is not None:
        end = None  # inside the value of an incomplete parameter
        if opened[1] is not None and not more:
            value, end = _unclosed(text, opened.end())
            members.append(
                f"{json.dumps(opened[1], ensure_ascii=False)}: {_typed(value, types.get(opened[1]))}"
            )
    arguments = "{" + ", ".join(members) + ("}" if end else "")
    return _Read(name, arguments if members or end else "", end and end.end())


def _unclosed(text: str, start: int) -> tuple[str, re.Match[str]]:
    """Return the value that no tag closes from a place on, and the last tag that ends its call."""
    *_, end = _PARAMETERS_END.finditer(text, start)
    return re.sub(r"\n?(</function>\s*)?\Z", "", text[start : end.start()]), end


def _gemma(text: str, closing: str) -> _Read | None:
    """Read a call in Gemma's notation: bare keys, and special marks around texts."""
    head, end = _GEMMA_HEAD.match(text), text.find(closing)
    if head is None:
        return _Read() if len(text) < _LONGEST_HEAD else None
    if end < 0:
        return _Read(head[1])
    texts = _GEMMA_QUOTE.split(text[head.end() : end])
    texts[::2] = (re.sub(r"([{,]\s*)([\w.-]+)\s*:", r'\1"\2":', each) for each in texts[::2])
    texts[1::2] = (json.dumps(each, ensure_ascii=False) for each in texts[1::2])
    return _Read(head[1], "".join(texts).strip(), end + len(closing))


def _typed(value: str, schema: object) -> str:
    """Return a parameter as JSON: a text where the schema wants one, or where it is nothing else."""
    if not (isinstance(schema, dict) and schema.get("type") == "string"):
        try:
            return json.dumps(json.loads(value), ensure_ascii=False)
        except ValueError:
            pass
    return json.dumps(value, ensure_ascii=False)


def _new_id() -> str:
    return uuid4().hex[:9]


def _schemas(tools: Sequence[str]) -> dict[str, Mapping[str, object]]:
    """Return the parameters of each tool by its name."""
    functions = [json.loads(tool)["function"] for tool in tools]
    return {each["name"]: (each.get("parameters") or {}).get("properties") or {} for each in functions}
