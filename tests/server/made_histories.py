"""Random conversations of all kinds of messages, blocks and items, in the words of three protocols.

Each text in them is a word of its own, so that one can look for it in the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

DATA = "iVBORw0KGgoAAAANSUhEUg" * 10
"""An image, as base64."""

_URL = f"data:image/png;base64,{DATA}"
_SOURCE = {"type": "base64", "media_type": "image/png", "data": DATA}
Part = Callable[[str], object]

TEXTS: Mapping[str, Part] = {
    "text": lambda word: {"type": "text", "text": word},
    "unknown": lambda word: {"type": "poem", "lines": [word], "scan": DATA},
    "unknown, with an address": lambda word: {"type": "photo", "of": {"who": word, "src": _URL}},
}
CHAT_PARTS: Mapping[str, Part] = {
    **TEXTS,
    "image": lambda _word: {"type": "image_url", "image_url": {"url": _URL}},
    "recording": lambda _word: {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
    "file": lambda word: {"type": "file", "file": {"filename": word, "file_data": _URL}},
    "refusal": lambda word: {"type": "refusal", "refusal": word},
}
BLOCKS: Mapping[str, Part] = {
    **TEXTS,
    "image": lambda _word: {"type": "image", "source": _SOURCE},
    "document": lambda word: {"type": "document", "title": word, "source": _SOURCE},
    "text file": lambda word: {"type": "document", "source": {"type": "text", "data": word}},
    "result of a search": lambda word: {
        "type": "search_result",
        "title": "T",
        "source": "https://a.b",
        "content": [{"type": "text", "text": word}],
    },
    "reference to a tool": lambda word: {"type": "tool_reference", "tool_name": word},
}
ASSISTANT_BLOCKS: Mapping[str, Part] = {
    "text": TEXTS["text"],
    "thinking": lambda _word: {"type": "thinking", "thinking": "hm", "signature": DATA},
    "hidden thinking": lambda _word: {"type": "redacted_thinking", "data": DATA},
    "call": lambda word: {"type": "tool_use", "id": word, "name": "f", "input": {"a": word}},
    "call without an object": lambda word: {"type": "tool_use", "id": word, "name": "f", "input": word},
    "the provider's call": lambda word: {
        "type": "server_tool_use",
        "name": "web_search",
        "input": {"query": word},
    },
    "the provider's result": lambda word: {
        "type": "web_search_tool_result",
        "content": [{"type": "web_search_result", "url": word, "encrypted_content": DATA}],
    },
    "a block of code": lambda word: {"type": "code_execution_tool_result", "content": {"stdout": word}},
}
ITEM_PARTS: Mapping[str, Part] = {
    **TEXTS,
    "input text": lambda word: {"type": "input_text", "text": word},
    "image": lambda _word: {"type": "input_image", "image_url": _URL},
    "file": lambda word: {"type": "input_file", "filename": word, "file_data": _URL},
}
ITEMS: Mapping[str, Part] = {
    "answer": lambda word: {"role": "assistant", "content": [{"type": "output_text", "text": word}]},
    "refusal": lambda word: {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "refusal", "refusal": word}],
    },
    "reasoning": lambda _word: {"type": "reasoning", "summary": [], "encrypted_content": DATA},
    "custom call": lambda word: {"type": "custom_tool_call", "call_id": word, "name": "patch", "input": word},
    "custom result": lambda word: {"type": "custom_tool_call_output", "call_id": "c", "output": word},
    "shell call": lambda word: {"type": "local_shell_call", "call_id": word, "action": {"command": [word]}},
    "shell result": lambda word: {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": word}]},
    "search": lambda word: {"type": "web_search_call", "id": "w", "action": {"query": word}},
    "made image": lambda word: {"type": "image_generation_call", "revised_prompt": word, "result": DATA},
    "call of MCP": lambda word: {"type": "mcp_call", "name": "f", "arguments": "{}", "output": word},
    "search for tools": lambda word: {
        "type": "tool_search_call",
        "call_id": word,
        "arguments": {"query": word},
    },
    "found tools": lambda word: {"type": "tool_search_output", "call_id": "c", "tools": [{"name": word}]},
    "reference": lambda _word: {"type": "item_reference", "id": "msg_1"},
    "summary": lambda _word: {"type": "compaction", "encrypted_content": DATA},
    "unknown": lambda word: {"type": "dream", "story": word, "film": DATA},
}
WORDLESS = ("image", "recording", "thinking", "hidden thinking", "reasoning", "reference", "summary")
"""Kinds of which no text has to reach the model."""

ARGUMENTS: Mapping[str, Callable[[str], object]] = {
    "object": lambda word: {"a": word},
    "JSON": lambda word: json.dumps({"a": word}),
    "JSON of JSON": lambda word: json.dumps(json.dumps({"a": word})),
    "cut": lambda word: f'{{"a": ["{word}',
    "list": lambda word: f'["{word}"]',
    "text": lambda word: f"a={word}",
    "two objects": lambda word: f'{{"a": 1}}{{"b": "{word}"}}',
    "no number": lambda word: f'{{"a": NaN, "b": "{word}", "c": 1e999}}',
    "half a character": lambda word: f'{{"a": "\\ud83d {word}"}}',
    "line break": lambda word: f'{{"a": "x\n{word}"}}',
    "deep": lambda word: '{"a": ' * 200 + f'"{word}"',
}
RESULTS: Mapping[str, Callable[[str], object]] = {
    "text": lambda word: word,
    "object": lambda word: {"found": word},
    "list": lambda word: [1, None, word],
    "typed object": lambda word: {"type": "Feature", "name": word},
}


@dataclass(frozen=True, slots=True)
class History:
    """A conversation, and the words that the model has to read."""

    turns: list[Any]
    words: list[str]


class _Words:
    """Gives out words, and keeps those that must not be lost."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self._number = 0

    def made(self, makers: Mapping[str, Callable[[str], object]], kind: str) -> object:
        self._number += 1
        word = f"mark{self._number}ed"
        if kind not in WORDLESS:
            self.kept.append(word)
        return makers[kind](word)

    def text(self) -> str:
        return str(self.made({"": lambda word: word}, ""))


@st.composite
def _several(draw: st.DrawFn, words: _Words, makers: Mapping[str, Callable[[str], object]]) -> list[object]:
    return [words.made(makers, kind) for kind in draw(st.lists(st.sampled_from(sorted(makers)), max_size=3))]


@st.composite
def _one(draw: st.DrawFn, words: _Words, makers: Mapping[str, Callable[[str], object]]) -> object:
    return words.made(makers, draw(st.sampled_from(sorted(makers))))


def _roles(*roles: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(roles), min_size=1, max_size=6)


_CALL = "call_0123"
_IDS = st.sampled_from([None, _CALL, "elsewhere"])  # of results: none, of a call, of no call


@st.composite
def chats(draw: st.DrawFn) -> History:
    """Make a conversation of OpenAI's chats."""
    words, turns = _Words(), list[Any]()
    for role in draw(_roles("user", "assistant", "calls", "system", "developer", "tool", "function")):
        turn: dict[str, Any] = {"role": "assistant" if role == "calls" else role, "content": None}
        if role in ("tool", "function"):
            turn |= {"content": draw(_one(words, RESULTS)), "tool_call_id": draw(_IDS)}
        elif draw(st.booleans()):
            turn["content"] = words.text()
            turn["name"] = words.text() if role in ("user", "system") and draw(st.booleans()) else None
        else:
            turn["content"] = draw(_several(words, CHAT_PARTS))
        if role == "calls":
            functions = [{"name": "f", "arguments": each} for each in draw(_several(words, ARGUMENTS))]
            turn["tool_calls"] = [{"id": _CALL, "type": "function", "function": each} for each in functions]
        turns.append(turn)
    return History(turns, words.kept)


@st.composite
def messages(draw: st.DrawFn) -> History:
    """Make a conversation of Anthropic's messages."""
    words, turns = _Words(), list[Any]()
    for role in draw(_roles("user", "results", "assistant", "system")):
        content = draw(_several(words, ASSISTANT_BLOCKS if role == "assistant" else BLOCKS))
        if role == "results":
            result = {"type": "tool_result", "tool_use_id": draw(_IDS), "is_error": draw(st.booleans())}
            content.insert(0, result | {"content": draw(_several(words, BLOCKS)) or words.text()})
        turns.append({"role": "user" if role == "results" else role, "content": content})
    return History(turns, words.kept)


@st.composite
def items(draw: st.DrawFn) -> History:
    """Make the items of a request for a response."""
    words, made = _Words(), list[Any]()
    for role in draw(_roles("user", "developer", "item", "item", "call", "result")):
        if role == "item":
            made.append(draw(_one(words, ITEMS)))
        elif role == "call":
            arguments = draw(_one(words, ARGUMENTS))
            made.append({"type": "function_call", "call_id": _CALL, "name": "f", "arguments": arguments})
        elif role == "result":
            output = draw(_several(words, ITEM_PARTS)) or words.text()
            made.append({"type": "function_call_output", "call_id": draw(_IDS), "output": output})
        else:
            made.append({"role": role, "content": draw(_several(words, ITEM_PARTS))})
    return History(made, words.kept)
