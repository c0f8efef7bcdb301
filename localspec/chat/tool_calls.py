"""Calls of tools in what a model writes: which form its template gives them, and how to read it as it comes.

Nothing is lost: what only looks like a call comes through as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol
from uuid import uuid4

from localspec.chat.thinking import split
from localspec.errors import UserError
from localspec.llama.tool_words import PROBE, PROBE_TOOL
from localspec.types import THINKING_TAGS, Grammar, Request, TemplateVariables

_NAME, _ARGUMENTS = "look_up", '{"word": "probed"}'
_TAG = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]")
_THOUGHT = re.compile(r"<think>\s*</think>|</think>")
# As chat templates write JSON.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_LONGEST_HEAD = 400  # characters in which a call has to name its tool


@dataclass(frozen=True, slots=True)
class Written:
    """Some text of an answer, or of the thinking before it."""

    text: str
    is_thought: bool = False


@dataclass(frozen=True, slots=True)
class Called:
    """Some of a call: first its id and name, then the JSON text of its arguments piece by piece.

    The id is of nine letters and digits, as Mistral's templates want it.
    """

    index: int
    arguments: str = ""
    id: str = ""
    name: str = ""


Piece = Written | Called


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes a call: `before` its name, `between` it and the arguments, `after` them.

    A call begins with the tag `opening`, or is the whole answer; `closing` are tags that may follow it.
    `thinks` is the tag with which the prompt itself opens the thinking.
    Kinds: a JSON object that holds the name, a name before a JSON object, gpt-oss's channels of such,
    parameters in tags of their own, and Gemma's notation.
    """

    kind: Literal["json", "named", "harmony", "parameters", "gemma"]
    opening: str = ""
    closing: tuple[str, ...] = ()
    before: str = ""
    between: str = ""
    after: str = ""
    thinks: str = ""


def tool_format(render: Callable[[Request], str], variables: TemplateVariables = ()) -> ToolFormat:
    """Return how a model writes calls: as its template writes one, which `render` shows.

    Raises `UserError` for a template that refuses to.
    """
    text = render(Request(PROBE, template_variables=variables, tools=(PROBE_TOOL,)))
    if text.rfind(PROBE[2].content) < text.find(PROBE[0].content):
        raise UserError("the model's chat template leaves out what is said", "choose another model")
    start = text.rindex(PROBE[0].content) + len(PROBE[0].content)
    prompt = render(Request(PROBE[:1], template_variables=variables)).rstrip()
    thinks = next((tag for tag in THINKING_TAGS if prompt.lower().endswith(tag)), "")
    asked = prompt.rpartition(PROBE[0].content)[2].removesuffix(thinks).rstrip()
    written = text[start : text.index(PROBE[2].content, start)].removeprefix(asked)
    return replace(_written_format(written), thinks=thinks)


def _written_format(written: str) -> ToolFormat:
    """Return the form of a call from what stands between the question and the result."""
    if "<|channel|>" in written:
        before, between = "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>"
        return ToolFormat("harmony", "to=functions.", (), before, between)
    before, _, rest = _THOUGHT.sub("", written).partition(_NAME)
    between, _, after = rest.partition(_ARGUMENTS)
    tags = [tag for tag in _TAG.findall(before) if re.search("tool|call|action", tag, re.IGNORECASE)]
    begun = re.search(r"<\w[^<>]*$", before)
    tag = tags[-1] if tags else begun[0] if begun else ""
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


def call_grammar(form: ToolFormat, tools: Sequence[str], token: Callable[[str], int | None]) -> Grammar:
    """Return the grammar of one call of one of some tools; `token` is that of a tag which is a single one.

    Where arguments are not JSON, it settles that one is called and which, and leaves the rest to the model.
    """

    def spelled(text: str) -> str:
        parts = [part for part in re.split(f"({_TAG.pattern})", text) if part]
        tokens = [token(part) if _TAG.fullmatch(part) else None for part in parts]
        return " ".join(
            json.dumps(part, ensure_ascii=False) if number is None else f"<[{number}]>"
            for part, number in zip(parts, tokens, strict=True)
        )

    between = form.between.replace(PROBE[1].tool_calls[0].id, _new_id())  # which some forms repeat
    rules = [f"start: {' | '.join(f'call{number}' for number in range(len(tools)))}"]
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
        self, form: ToolFormat | None = None, tools: Sequence[str] = (), *, thinks: str | None = ""
    ) -> None:
        """Read without calls where there are no tools; a form of None knows no channels either.

        `thinks` is the tag that the prompt has opened; with None all is answer.
        """
        self._channels = _Channels() if form is not None and form.kind == "harmony" else None
        self._calls = _Calls(form, _schemas(tools)) if form is not None and tools else None
        self._text = thinks or ""
        self._thought = 0  # characters of thinking that were told
        self._answer_from = 0 if thinks is None else None  # where what was not told of the answer begins

    def feed(self, text: str, *, more: bool = True) -> Iterator[Piece]:
        """Yield what this text makes certain; `more` if the answer goes on."""
        told = self._channels.feed if self._channels is not None else self._parted
        for thinks, part in told(text, more=more):
            if self._calls is not None and not thinks:
                yield from self._calls.feed(part)
            elif part:
                yield Written(part, thinks)
        if self._calls is not None and not more:
            yield from self._calls.feed("", more=False)

    def _parted(self, text: str, *, more: bool) -> Iterator[tuple[bool, str]]:
        """Yield thinking and answer, as long as tags may still tell them apart; then all is answer."""
        self._text += text
        if self._answer_from is None:
            parts = split(self._text, streaming=more)
            thinking = "".join(part.text for part in parts if part.kind == "thinking")
            if added := thinking[self._thought :]:
                self._thought += len(added)
                yield True, added
            starts = [part.start for part in parts if part.kind == "answer" and part.text]
            if not starts:
                return
            self._answer_from = starts[0]
        yield False, self._text[self._answer_from :]
        self._answer_from = len(self._text)


class _Channels:
    """Messages of OpenAI's harmony format: a header, then text, of which analysis is thinking."""

    _MARKS = tuple(
        f"<|{name}|>" for name in ("start", "channel", "constrain", "message", "end", "call", "return")
    )
    _MARK = re.compile("|".join(map(re.escape, _MARKS)))

    def __init__(self) -> None:
        self._rest = ""
        self._header: str | None = ""  # which the prompt has begun; None within a message
        self._thinks = False
        self._empty = True

    def feed(self, text: str, *, more: bool) -> Iterator[tuple[bool, str]]:
        """Yield whether it is thinking, and the text; a call is put as `to=` its tool and its arguments."""
        self._rest += text
        while mark := self._MARK.search(self._rest):
            yield from self._told(self._rest[: mark.start()])
            self._rest = self._rest[mark.end() :]
            if mark[0] != "<|message|>":
                self._header = (self._header or "") + " "
                continue
            header, self._header, self._empty = self._header or "", None, False
            _, to, name = header.partition("to=functions.")
            self._thinks = "analysis" in header and not to
            yield from self._told(f"{to}{name} " if to else "")
        end = len(self._rest) - (_begun(self._rest, self._MARKS) if more else 0)
        yield from self._told(self._rest[:end])
        self._rest = self._rest[end:]
        if not more and self._empty and self._header:
            yield False, self._header  # it keeps to no form

    def _told(self, text: str) -> Iterator[tuple[bool, str]]:
        if self._header is not None:
            self._header += text
        elif text:
            yield self._thinks, text


@dataclass(frozen=True, slots=True)
class _Read:
    """How far a call is: `end` behind it once it is complete; None instead of it all says that it is none."""

    name: str = ""
    arguments: str = ""
    end: int | None = None


class _Body(Protocol):
    """Reads one call from a text that begins with it and grows."""

    def read(self, text: str) -> _Read | None:
        """Return what there is of it; None for what is no call."""


class _Calls:
    """Calls in an answer, beside its text."""

    def __init__(self, form: ToolFormat, schemas: Mapping[str, Mapping[str, object]]) -> None:
        self._form, self._schemas = form, schemas
        self._closing = ("```", "]", *form.closing)
        self._rest = ""
        self._body: _Body | None = None
        self._skip = 0  # characters before the body, that are told if it is no call
        self._id, self._index, self._told = "", 0, 0
        self._place: Literal["start", "text", "call"] = "start"  # behind what the rest stands

    def feed(self, text: str, *, more: bool = True) -> Iterator[Piece]:
        """Yield what this text makes certain; `more` if the answer goes on."""
        self._rest += text
        goes_on = True
        while self._rest and goes_on:
            goes_on = yield from (self._call(more=more) if self._body else self._said(more=more))

    def _said(self, *, more: bool) -> Generator[Piece, None, bool]:
        """Tell text up to where a call may begin; return whether there is more to look at."""
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
                yield Written(rest[:end])
            self._rest, self._body = rest[end:], _body(self._form, self._schemas)
            self._skip = (bare.end() if bare else at + len(opening)) - end
            return True
        end = len(rest) - (_begun(rest, (opening,)) if opening and more else 0)
        end = len(rest[:end].rstrip()) if more else end
        self._rest = rest[end:]
        if end:
            self._place = "text"
            yield Written(rest[:end])
        return False

    def _waits_for_closing(self, *, more: bool) -> bool:
        """Drop tags that close calls; tell whether one may have begun."""
        while True:
            self._rest = self._rest.lstrip()
            closed = next((each for each in self._closing if self._rest.startswith(each)), None)
            if closed is None:
                return more and any(each.startswith(self._rest) for each in self._closing)
            self._rest = self._rest[len(closed) :]

    def _call(self, *, more: bool) -> Generator[Piece, None, bool]:
        """Tell what there is of a call; return whether there is more to look at."""
        assert self._body is not None
        read = self._body.read(self._rest[self._skip :])
        if read is None or (read.name and read.name not in self._schemas) or not (read.name or more):
            text, self._rest = self._rest[: self._skip or 1], self._rest[self._skip or 1 :]
            self._body, self._place = None, "text"
            yield Written(text)
            return True
        if read.name and not self._id:
            self._id = _new_id()
            yield Called(self._index, id=self._id, name=read.name)
        if added := read.arguments[self._told :]:
            self._told += len(added)
            yield Called(self._index, added)
        if read.end is not None:
            self._rest = self._rest[self._skip + read.end :]
            self._id, self._index, self._told = "", self._index + 1, 0
            self._body, self._place = None, "call"
        elif not more:
            self._rest = ""  # cut in the middle
        return read.end is not None


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
_PARAMETER = re.compile(
    r'<[^<>\s/]*?param(?:eter)?(?:=| name=)"?([^">\s]+)"?[^>]*>\n?(.*?)\n?</[^<>\s]*?param(?:eter)?>'
    r"|<arg_key[^>]*>(.*?)</arg_key[^>]*>\s*<arg_value[^>]*>(.*?)</arg_value[^>]*>",
    re.DOTALL,
)
_PARAMETERS_END = re.compile(r"</function>|</[^<>\s]*?invoke>|</tool_call[^>]*>")
_GEMMA_HEAD = re.compile(r"\s*call:([\w.-]+)(?=\{)")
_GEMMA_QUOTE = re.compile(r'<\|"\|>|<escape>')
_STRUCTURE = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)


def _body(form: ToolFormat, schemas: Mapping[str, Mapping[str, object]]) -> _Body:
    if form.kind == "parameters":
        return _Parameters(schemas)
    if form.kind == "gemma":
        return _Gemma(form.closing[0])
    return _Json(_JSON_HEAD, depth=1) if form.kind == "json" else _Json(_NAMED_HEAD, depth=0)


class _Json:
    """A call whose arguments are JSON; at `depth` 1 the call is an object around them."""

    def __init__(self, head: re.Pattern[str], depth: int) -> None:
        self._head, self._depth = head, depth
        self._brackets: _Brackets | None = None
        self._name, self._begin = "", 0
        self._end: int | None = None  # of the arguments

    def read(self, text: str) -> _Read | None:
        """Return what there is of the call."""
        if not self._name and (head := self._head.match(text)):
            self._name, self._begin = head[1], head.end()
        if not self._name:
            could_be = not self._depth or re.match(r"\s*\[?\s*(\{|$)", text)
            return _Read() if could_be and len(text) < _LONGEST_HEAD else None
        if self._brackets is None:
            self._brackets = _Brackets(text.index("{") if self._depth else self._begin)
        if self._end is None:
            self._end = self._brackets.close(text, self._depth)
        arguments = text[self._begin : self._end]
        return _Read(self._name, arguments, self._end and self._brackets.close(text, 0))


class _Brackets:
    """Where brackets of JSON close, looked for as it comes."""

    def __init__(self, at: int) -> None:
        self._at, self._depth, self._quoted = at, 0, False
        self._has_closed = False  # with the last character looked at

    def close(self, text: str, depth: int) -> int | None:
        """Return the end of the bracket that closes to a depth, None as long as there is none."""
        if self._has_closed and self._depth <= depth:
            return self._at
        for found in _STRUCTURE.finditer(text, self._at):
            if found[0] == "\\":  # what it escapes is still to come
                self._at = found.start()
                return None
            self._at, self._has_closed = found.end(), False
            if found[0] == '"':
                self._quoted = not self._quoted
            elif not self._quoted and found[0] in "{[":
                self._depth += 1
            elif not self._quoted and found[0] in "}]":
                self._depth -= 1
                self._has_closed = True
                if self._depth <= depth:
                    return self._at
        self._at, self._has_closed = len(text), False
        return None


class _Parameters:
    """A call whose parameters stand in tags of their own, each told when it is complete."""

    def __init__(self, schemas: Mapping[str, Mapping[str, object]]) -> None:
        self._schemas = schemas
        self._seen = 0  # characters, in which it found
        self._last: _Read | None = None

    def read(self, text: str) -> _Read | None:
        """Return what there is of the call."""
        if self._last is not None and ">" not in text[self._seen :]:
            return self._last
        head, self._seen = _PARAMETERS_HEAD.match(text), len(text)
        if head is None:
            return _Read() if len(text) < _LONGEST_HEAD else None
        name = head[1] or head[2]
        types, at = self._schemas.get(name, {}), head.end()
        told = list[str]()
        while parameter := _PARAMETER.search(text, at):
            end = _PARAMETERS_END.search(text, at)
            if end is not None and end.start() < parameter.start():
                break
            key, value = parameter[1] or parameter[3], parameter[2] if parameter[1] else parameter[4]
            told.append(f"{json.dumps(key, ensure_ascii=False)}: {_typed(value, types.get(key))}")
            at = parameter.end()
        end = _PARAMETERS_END.search(text, at)
        arguments = "{" + ", ".join(told) + ("}" if end else "")
        self._last = _Read(name, arguments if told or end else "", end and end.end())
        return self._last


def _typed(value: str, schema: object) -> str:
    """Return a parameter as JSON: a text where the schema wants one, or where it is nothing else."""
    if not (isinstance(schema, dict) and schema.get("type") == "string"):
        try:
            return json.dumps(json.loads(value), ensure_ascii=False)
        except ValueError:
            pass
    return json.dumps(value, ensure_ascii=False)


class _Gemma:
    """A call in Gemma's notation: bare keys, and marks of their own around texts."""

    def __init__(self, closing: str) -> None:
        self._closing = closing

    def read(self, text: str) -> _Read | None:
        """Return what there is of the call."""
        head, end = _GEMMA_HEAD.match(text), text.find(self._closing)
        if head is None:
            return _Read() if len(text) < _LONGEST_HEAD else None
        if end < 0:
            return _Read(head[1])
        texts = _GEMMA_QUOTE.split(text[head.end() : end])
        texts[::2] = (re.sub(r"([{,]\s*)([\w.-]+)\s*:", r'\1"\2":', each) for each in texts[::2])
        texts[1::2] = (json.dumps(each, ensure_ascii=False) for each in texts[1::2])
        return _Read(head[1], "".join(texts).strip(), end + len(self._closing))


def _new_id() -> str:
    return uuid4().hex[:9]


def _begun(text: str, marks: Sequence[str]) -> int:
    """Return how many characters at the end of a text may be the beginning of a mark."""
    longest = min(len(text), max(map(len, marks)) - 1)
    return next((n for n in range(longest, 0, -1) if any(each.startswith(text[-n:]) for each in marks)), 0)


def _schemas(tools: Sequence[str]) -> dict[str, Mapping[str, object]]:
    """Return the parameters of each tool by its name."""
    functions = [json.loads(tool)["function"] for tool in tools]
    return {each["name"]: (each.get("parameters") or {}).get("properties") or {} for each in functions}
