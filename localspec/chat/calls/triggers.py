"""The heads of calls in an answer that may call, and the grammars of what follows them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from localspec.chat.calls.form import TAG, ToolFormat
from localspec.chat.calls.grammar import TokenOf, spelled
from localspec.llama.schemas.split import SPACING
from localspec.llama.tool_words import PROBE
from localspec.types.request import Grammar, Trigger

Function = Mapping[str, Any]
"""A tool's JSON of its function: name, description, parameters."""

_PROBED_ID = PROBE[1].tool_calls[0].id
_ARGUMENTS = "ARGUMENTS"  # stands for a schema
_BLANK = r'(" " | /\n[ \t]{0,20}/)?'
_MEMBER = rf'("," {_BLANK} /"[^"\\\n]{{1,40}}"/ {_BLANK} ":" {_BLANK} /"[^"\\\n]{{0,100}}"/ {_BLANK})?'
_NAME_KEY = r'"(?:(?:tool_|function_)?name|tool|function)"\s*:\s*'
_OTHER_MEMBER = r'(?:"\w+"\s*:\s*"[^"]{0,100}"\s*,\s*)?'
_NAMESPACES = r"(?:[\w-]{1,64}?(?:__(?!_)|[.:/])){0,3}"
"""Before a name, as `names.offered` reads them; but a row of underscores ends in one place."""
# Around calls without an opening, as `CallsInText` reads them.
_LABELS = r"```[\w-]*|<\|?[\w ]{1,20}\|?>|</[^<>]{1,40}>|<\|[^<>]{1,40}\|>|[\],;]"
_HARMONY_HEADER = r"(?:(?!<\|(?:start|message|end|call|return)\|>)[^{}]){0,80}<\|message\|>"


def call_triggers(form: ToolFormat, tools: Sequence[str], token: TokenOf) -> tuple[Trigger, ...]:
    """Return the heads of calls of the tools, with the grammars of their arguments.

    The name of a tool has to come first, in the form of the model's calls. Arguments that are not JSON, in
    tags, in Gemma's notation or as in Python, are not constrained.
    """
    functions = [json.loads(tool)["function"] for tool in tools]
    if form.kind == "json":
        return _json_triggers(form, functions, token)
    if form.kind == "harmony" or (form.kind == "named" and form.opening):
        behind_mark = _named_trigger(form, functions)
        return (behind_mark, _first_part(form, behind_mark)) if form.addressee else (behind_mark,)
    return ()


def _json_triggers(form: ToolFormat, functions: Sequence[Function], token: TokenOf) -> tuple[Trigger, ...]:
    """Return the heads of an object with the name and the arguments: with the form's opening, and without.

    Behind the opening the name is enough. Without it, where an answer may begin with any JSON, the key of the
    arguments has to follow.
    """
    object_head = rf'\[?\s*\{{\s*{_OTHER_MEMBER}{_NAME_KEY}"{_named(functions)}"'
    own_key = re.search(r'"(\w+)":\s*\Z', form.between)
    keys = dict.fromkeys((*([own_key[1]] if own_key else []), "arguments", "parameters"))
    is_listed = "[" in form.before.removeprefix(form.opening)
    bare = f'{_BLANK} {_ARGUMENTS} {_BLANK} {_MEMBER if is_listed else ""} "}}"'
    ends = _any(form.closing) or "(?!)"
    # Possessive, as two of these may match one tag: else a model that repeats it is looked at for ever.
    bare_head = rf'\s*+(?:(?:{ends}|{_LABELS})\s*+)*+{object_head}\s*,\s*"(?:{"|".join(keys)})"\s*:'
    found = [Trigger(bare_head, _grammars(functions, bare), is_leading=True)]
    if form.opening:
        quoted = " | ".join(json.dumps(f'"{key}"') for key in keys)
        tagged = f'{_BLANK} "," {_BLANK} ({quoted}) {_BLANK} ":" {bare} {_closing(form, token)}'
        head = rf"{re.escape(form.opening)}\s*(?:```\w*\s*)?{object_head}"
        found.append(Trigger(head, _grammars(functions, tagged), form.opening))
    return tuple(found)


def _closing(form: ToolFormat, token: TokenOf) -> str:
    """Return the closing tag of a call, as a token or spelled in any way; empty if it has none."""
    tags = TAG.findall(form.after)
    if not tags:
        return ""
    spellings = dict.fromkeys((spelled(tags[-1], token), json.dumps(tags[-1], ensure_ascii=False)))
    return f"{_BLANK} ({' | '.join(spellings)})"


def _named_trigger(form: ToolFormat, functions: Sequence[Function]) -> Trigger:
    """Return the heads of a name before the arguments."""
    mark = "to=" if form.kind == "harmony" else form.opening
    if form.kind == "harmony":
        head = rf"\bto={_named(functions)}(?![\w.-]){_HARMONY_HEADER}"
    else:
        head = _flexible(form.before) + _named(functions) + (_flexible(form.between) or r"(?![\w.-])")
        if not form.between.strip():
            head += r"\s*(?=\{)"
    return Trigger(head, _grammars(functions, f"{_BLANK} {_ARGUMENTS}"), mark)


def _first_part(form: ToolFormat, behind_mark: Trigger) -> Trigger:
    """Return the heads at the beginning of an answer, whose mark the prompt has."""
    head = behind_mark.head.removeprefix(_flexible(form.before))
    return replace(behind_mark, head=rf"\s*{head}", mark="", is_leading=True)


def _flexible(text: str) -> str:
    """Return an expression for a text of a form, whatever its blanks and ids."""
    parts = re.split(rf"(\s+|{_PROBED_ID})", text.strip())
    known = {_PROBED_ID: r"\w{1,64}"}
    inner = "".join(r"\s*" if part.isspace() else known.get(part) or re.escape(part) for part in parts)
    return rf"\s*{inner}\s*" if inner else ""


def _grammars(functions: Sequence[Function], form: str) -> tuple[tuple[str, Grammar], ...]:
    """Return the grammar of a form with the arguments of each function, by its name, and any text behind."""
    found = []
    for function in functions:
        schema = {**(function.get("parameters") or {"type": "object"}), "x-guidance": SPACING}
        call = form.replace(_ARGUMENTS, f"%json {json.dumps(schema)}")
        found.append((function["name"], Grammar("lark", f"start: {call} REST\nREST: /(.|\\n)*/")))
    return tuple(found)


def _named(functions: Sequence[Function]) -> str:
    names = _any(function["name"] for function in functions)
    return rf"{_NAMESPACES}(?P<name>{names})"


def _any(texts: Iterable[str]) -> str:
    """Return an expression for any of some texts, the longest first."""
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))
