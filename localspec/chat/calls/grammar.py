"""The grammar of an answer that has to call a tool."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from localspec.chat.calls.form import TAG, ToolFormat
from localspec.chat.calls.pieces import new_id
from localspec.llama.tool_words import PROBE
from localspec.types.request import Grammar

# As chat templates write JSON.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MOST_CALLS = 8  # in one answer that has to call: weak models do not stop by themselves

TokenOf = Callable[[str], int | None]
"""Returns the single token of a tag, if it is one."""


def call_grammar(
    form: ToolFormat,
    tools: Sequence[str],
    token: TokenOf,
    *,
    several: bool = False,
    otherwise: Grammar | None = None,
) -> Grammar:
    """Return the grammar of one call of the tools, or `several`, or `otherwise` of a JSON schema.

    If arguments are not JSON, the grammar only forces a call and its name. Calls that are written as one list
    come alone.
    """
    between = form.between.replace(PROBE[1].tool_calls[0].id, new_id())  # which some forms repeat
    begins_anew = form.kind == "named" or (form.kind == "json" and form.after.endswith(">"))
    more = rf' ("\n"? call){{0,{_MOST_CALLS - 1}}}' if several and begins_anew else ""
    json_schema = f" | %json {otherwise.text}" if otherwise is not None else ""
    rules = [f"start: call{more}{json_schema}"]
    rules.append(f"call: {' | '.join(f'call{number}' for number in range(len(tools)))}")
    for number, tool in enumerate(tools):
        function = json.loads(tool)["function"]
        schema = {**(function.get("parameters") or {"type": "object"}), "x-guidance": _SPACING}
        arguments = f"%json {json.dumps(schema)}" if form.between else r"/[^\w.-](.|\n)*/"
        before = spelled(form.before, token)
        after = spelled(form.after, token)
        called = " ".join((before, json.dumps(function["name"]), spelled(between, token)))
        rules.append(f"call{number}: {called} {arguments} {after}")
    return Grammar("lark", "\n".join(rules))


def spelled(text: str, token: TokenOf) -> str:
    """Return a text as a Lark grammar has it, with its tags as tokens where they are single ones."""
    parts = [part for part in re.split(f"({TAG.pattern})", text) if part]
    tokens = [token(part) if TAG.fullmatch(part) else None for part in parts]
    return " ".join(
        json.dumps(part, ensure_ascii=False) if number is None else f"<[{number}]>"
        for part, number in zip(parts, tokens, strict=True)
    )
