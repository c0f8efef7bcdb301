"""A model's own chat template: a conversation to tokens, as llama.cpp's common/chat.cpp does it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path

from localspec.errors import ModelFileError, UserError
from localspec.llama.rendering import renderer
from localspec.llama.tool_words import PROBE, PROBE_TOOL, in_words
from localspec.llama.vocabulary import BPE, SPM, Vocabulary
from localspec.types import Message, ToolCall

_NEVER = re.compile("(?!)")

Variables = Mapping[str, bool | int | float | str]


class ChatTemplate:
    """How one model wants a conversation written; `note` says what stands in for a missing template."""

    def __init__(self, vocabulary: Vocabulary, source: str | None) -> None:
        self._vocabulary = vocabulary
        self.source, self.note = (source, "") if source else _stand_in(vocabulary)
        self._segments = Segments(vocabulary)
        texts = {vocabulary.decode([token], special=True) for token in vocabulary.control_tokens} - {""}
        self._single = frozenset(text for text in texts if len(text) == 1)
        starts = (f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in texts - self._single)
        self._control = re.compile("|".join(starts) or _NEVER.pattern)

    def encode_chat(
        self,
        messages: Sequence[Message],
        variables: Variables | None = None,
        room: int | None = None,
        tools: Sequence[str] = (),
    ) -> list[int]:
        """Return the tokens of a conversation, up to where the assistant writes.

        A last message of the assistant is continued, from before its `trailing_spaces`.
        Texts of control tokens inside messages, calls and tools stay text.
        Raises `UserError` with the template's own words where it refuses the conversation, and
        `ContextFullError` for a text that plainly takes more than `room` tokens.
        """
        mark = f"\U000f0000{int.from_bytes(os.urandom(8))}"  # which nobody can have foreseen
        guarded = [self._guarded(message, mark) for message in messages]
        rendered = self.render(guarded, variables, [self._guarded_json(tool, mark) for tool in tools])
        vocabulary = self._vocabulary
        bos = vocabulary.decode([vocabulary.bos], special=True) if vocabulary.bos is not None else ""
        if vocabulary.adds_bos and bos:
            rendered = rendered.removeprefix(bos)
        first, *others = parts = rendered.split(mark)
        if room is not None:
            vocabulary.check_room(parts, room)
        tokens = vocabulary.tokenize("", add_special=True) + self._segments.tokenize(first)
        for part in others:
            tokens += vocabulary.tokenize(part, special=part not in self._single)
        return tokens

    def render(
        self, messages: Sequence[Message], variables: Variables | None = None, tools: Sequence[str] = ()
    ) -> str:
        """Return the text of a conversation, up to where the assistant writes; tools are JSON each.

        Where the template knows nothing of tools, they and their results are told in words.
        """
        has_tools = tools or any(message.tool_calls or message.role == "tool" for message in messages)
        if has_tools and not self._knows_tools:
            messages, tools = in_words(messages, tools), ()
        values: dict[str, object] = {**(variables or {})} | ({"tools": tuple(tools)} if tools else {})
        if messages and messages[-1].role == "assistant" and not messages[-1].tool_calls:
            partial = messages[-1].content[: -trailing_spaces(messages) or None]
            return self._up_to_the_answer(messages[:-1], values) + partial
        return self._up_to_the_answer(messages, values)

    @cached_property
    def _knows_tools(self) -> bool:
        """Tell whether the template writes tools, calls and results, as far as one can see."""
        try:
            text = self._run(PROBE, {"tools": (PROBE_TOOL,)})
        except ModelFileError:
            raise
        except UserError:
            return False
        return "probed" in text and PROBE[-1].content in text and "Looks up." in text

    def _guarded(self, message: Message, mark: str) -> Message:
        guard = partial(self._guard, mark=mark)
        calls = tuple(
            ToolCall(guard(call.id), guard(call.name), self._guarded_json(call.arguments, mark))
            for call in message.tool_calls
        )
        thinking, of_call = guard(message.thinking), guard(message.tool_call_id)
        return Message(message.role, guard(message.content), calls, of_call, thinking)

    def _guarded_json(self, text: str, mark: str) -> str:
        """Guard the strings in JSON, where an escape may hide a control token that a template brings out."""

        def guarded(value: object) -> object:
            if isinstance(value, str):
                return self._guard(value, mark)
            if isinstance(value, list):
                return [guarded(each) for each in value]
            if isinstance(value, dict):
                return {self._guard(key, mark): guarded(each) for key, each in value.items()}
            return value

        try:
            return json.dumps(guarded(json.loads(text)), ensure_ascii=False)
        except (ValueError, RecursionError):
            return self._guard(text, mark)

    def _guard(self, content: str, mark: str) -> str:
        """Break every control token's text with the mark, at which the rendering is cut before tokenising."""
        content = self._control.sub(lambda start: start[0] + mark, content)
        for text in self._single:  # one character cannot be broken: it becomes a part of its own
            content = content.replace(text, mark + text + mark)
        return content

    def _up_to_the_answer(self, messages: Sequence[Message], variables: Mapping[str, object]) -> str:
        try:
            return self._run(messages, variables)
        except ModelFileError:
            raise  # it would not fare better
        except UserError:
            # like llama.cpp, for templates that know no system message
            if len(messages) < 2 or messages[0].role != "system":
                raise
            merged = Message(messages[1].role, f"{messages[0].content}\n{messages[1].content}")
            return self._run([merged, *messages[2:]], variables)

    def _run(self, messages: Sequence[Message], variables: Mapping[str, object]) -> str:
        vocabulary = self._vocabulary
        values: dict[str, object] = {"enable_thinking": True}
        for name, token in (("bos", vocabulary.bos), ("eos", vocabulary.eos)):
            values[f"{name}_token"] = "" if token is None else vocabulary.decode([token], special=True)
        return renderer.render(self.source, {**values, **variables, "add_generation_prompt": True}, messages)


def trailing_spaces(messages: Sequence[Message]) -> int:
    """Return how many spaces end an answer that is to be continued.

    The model has to write them itself: in most vocabularies a word's token begins with the space before it.
    """
    if not messages or messages[-1].role != "assistant":
        return 0
    content = messages[-1].content
    return len(content) - len(content.rstrip(" "))


def _stand_in(vocabulary: Vocabulary) -> tuple[str, str]:
    name, note = "plain.j2", " and may not know conversation; plain text stands in"
    marks = [vocabulary.tokenize(text, special=True) for text in ("<|im_start|>", "<|im_end|>")]
    if all(len(tokens) == 1 for tokens in marks):
        name, note = "chatml.j2", "; ChatML stands in, whose tokens it knows"
    source = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return source, f"the model brings no chat template{note}"


WORTH_IT = 2048  # characters; shorter texts are tokenised in less time than it takes to look for cuts


class Segments:
    """The tokens of one text after the other; a conversation's turns are mostly those of the time before."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._marks: re.Pattern[str] | None = None  # not looked for yet
        self._known: dict[str, list[int]] = {}

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text that is read with its special ones, as if it were read in one go."""
        if len(text) < WORTH_IT:
            return self._vocabulary.tokenize(text, special=True)
        if self._marks is None:
            self._marks = _marks(self._vocabulary, text)
        cuts = [0, *(match.start() for match in self._marks.finditer(text) if match.start()), len(text)]
        now: dict[str, list[int]] = {}
        tokens: list[int] = []
        for start, end in pairwise(cuts):
            segment = text[start:end]
            known = self._known.get(segment)
            if known is None:
                known = self._vocabulary.tokenize(segment, special=True)
            now[segment] = known
            tokens += known
        self._known = now
        return tokens


def _marks(vocabulary: Vocabulary, text: str) -> re.Pattern[str]:
    """Return a pattern of the control tokens in a text before which it and its like may be cut."""
    if vocabulary.type not in (SPM, BPE):
        return _NEVER
    specials = {token: vocabulary.text(token) for token in vocabulary.special_tokens}
    safe = []
    for token in vocabulary.control_tokens - vocabulary.stripping_tokens:
        mark = specials[token].decode("utf-8", "surrogateescape")  # what is no text stands in none
        others = (other for each, other in specials.items() if each != token)
        if mark in text and _is_apart(specials[token], others):
            safe.append(re.escape(mark))
    return re.compile("|".join(safe)) if safe else _NEVER


def _is_apart(text: bytes, others: Iterable[bytes]) -> bool:
    """Tell whether every occurrence of a special token's text becomes the token.

    The longer ones are looked for first, so that a shorter one takes nothing from it.
    """
    parts = range(1, len(text))
    heads, tails = tuple(text[:part] for part in parts), tuple(text[part:] for part in parts)
    if not heads or any(text.endswith(head) for head in heads):
        return False
    return not any(
        len(other) >= len(text) and (text in other or other.endswith(heads) or other.startswith(tails))
        for other in others
    )
