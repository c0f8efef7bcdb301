"""A model's own chat template: a conversation to tokens, as llama.cpp's common/chat.cpp does it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property, lru_cache, partial
from pathlib import Path

from localspec.errors import ModelFileError, UserError
from localspec.lenient_json import completed_object
from localspec.llama.rendering import renderer
from localspec.llama.template.adapted import adapted
from localspec.llama.template.begun_answer import (
    BegunAnswer,
    begun_answer,
    trailing_spaces,
    with_thinking_apart,
    without_empty_thinking,
)
from localspec.llama.template.named import template_names, written_by_name
from localspec.llama.template.segments import Segments
from localspec.llama.template.traits import Conversation, TemplateTraits, probe
from localspec.llama.template.turn_ends import turn_ends
from localspec.llama.vocabulary import Vocabulary
from localspec.thinking_tags import THINKING_TAGS, opened_at_end, tags_of
from localspec.types.request import Message, ToolCall

_NEVER = re.compile("(?!)")
_SAID = Message("user", "markedquestion"), Message("assistant", "markedanswer")
_PROMPT = {"add_generation_prompt": True}

Variables = Mapping[str, bool | int | float | str]


class ChatTemplate:
    """How one model wants a conversation written; `note` says what the user should know of it.

    Its `source` is Jinja, or a name that llama.cpp has, which some model files hold as well.
    """

    def __init__(self, vocabulary: Vocabulary, source: str | None) -> None:
        self._vocabulary = vocabulary
        has_one = bool(source and source.strip())
        self.source, self._stands_in = (source or "", "") if has_one else _stand_in(vocabulary)
        self._name = name if (name := self.source.strip()) in template_names() else ""
        self._segments = Segments(vocabulary)
        control = _texts(vocabulary, vocabulary.control_tokens)
        added = _texts(vocabulary, vocabulary.special_tokens - vocabulary.control_tokens)
        tags = {tag for pair in THINKING_TAGS for tag in (pair.opening, pair.closing) if tag in self.source}
        guarded = control | tags | {text for text in added if len(text) > 1 and not _is_plain(text)}
        self._single = frozenset(text for text in guarded if len(text) == 1)
        starts = (f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in guarded - self._single)
        self._special = re.compile("|".join(starts) or _NEVER.pattern)
        self._answer_start = lru_cache(8)(self._find_answer_start)

    @cached_property
    def traits(self) -> TemplateTraits:
        """Return the template's traits; found once, within milliseconds."""
        try:
            read = () if self._name else renderer.variables(self.source)
            names = set(read) - self._given.keys() - {"messages", "tools"}
        except UserError as error:
            return TemplateTraits(mistake=error.message)
        probed = probe(self._rendered, sorted(names))
        if probed.mistake:
            return probed
        render = partial(self._marked, probed)
        return replace(
            probed,
            opens_thinking=opened_at_end(render(_SAID[0])).rstrip(),
            closes_answers=not render(*_SAID).endswith(_SAID[1].content),
            end_tokens=tuple(sorted(turn_ends(render, self._vocabulary))),
        )

    @property
    def note(self) -> str:
        """Return notes for the user: a missing template, or what it leaves out."""
        if self._stands_in:
            return self._stands_in
        lost = self.traits.lost
        return f"the model's chat template leaves out {' and '.join(lost)}" if lost else ""

    def encode_chat(
        self,
        messages: Sequence[Message],
        variables: Variables | None = None,
        room: int | None = None,
        tools: Sequence[str] = (),
    ) -> list[int]:
        """Return the tokens of a conversation, up to the assistant's answer.

        A last message of the assistant is continued, from before its `trailing_spaces`.
        Texts of special tokens inside messages, calls and tools stay text.
        Raises `UserError` with the template's own message if it rejects the conversation, and
        `ContextFullError` for a text that clearly takes more than `room` tokens.
        """
        mark = f"\U000f0000{int.from_bytes(os.urandom(8))}"  # unpredictable
        rendered = self._render(messages, variables, tools, partial(self._guard, mark=mark))
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
        """Return the text of a conversation, up to the assistant's answer; each tool is JSON.

        If the template does not support tools, they and their results are described in text.
        """
        return self._render(messages, variables, tools, lambda text: text)

    def _render(
        self,
        messages: Sequence[Message],
        variables: Variables | None,
        tools: Sequence[str],
        guard: Callable[[str], str],
    ) -> str:
        apart = [with_thinking_apart(message) for message in messages[:-1]]
        begun: BegunAnswer | None = None
        if messages and messages[-1].role == "assistant" and not messages[-1].tool_calls:
            begun = begun_answer(messages[-1], trailing_spaces(messages))
            traits = self.traits
            in_a_row = traits.takes_assistants_in_a_row and traits.closes_answers
            before = apart[-1] if apart else None
            if before is not None and before.role == "assistant" and not (in_a_row or before.tool_calls):
                del apart[-1]
                said = "\n\n".join(filter(None, (before.content, begun.content)))
                begun = replace(begun, content=said)
        else:
            apart += messages[-1:]
        guarded = tuple(_guarded(message, guard) for message in apart)
        conversation = Conversation(guarded, tuple(_guarded_json(tool, guard) for tool in tools))
        try:
            prompt = self._rendered(conversation, self.traits, variables)
        except ModelFileError:
            raise  # it would not fare better
        except UserError:  # a few templates take calls, but not everywhere
            if not tools and not any(message.tool_calls or message.role == "tool" for message in messages):
                raise
            prompt = self._rendered(conversation, replace(self.traits, takes_tools=False), variables)
        return prompt if begun is None else self._begun(prompt, begun, variables, guard)

    def _begun(
        self, prompt: str, begun: BegunAnswer, variables: Variables | None, guard: Callable[[str], str]
    ) -> str:
        """Return a prompt with the answer that the model continues with; thinking that is open ends first."""
        opening = opened_at_end(prompt)
        content = guard(begun.content)
        thinking = guard(begun.thinking)
        if begun.opening:
            start = without_empty_thinking(prompt.removesuffix(opening), begun.opening)
            return f"{start}{begun.opening}{thinking}{begun.closing}{content}"
        if not content and not thinking:
            return prompt  # nothing has come yet
        start = self._answer_start(tuple((variables or {}).items()))
        if not opening:
            return prompt + start + content
        closing = tags_of(opening).closing
        if thinking or closing not in start:
            start = f"{thinking}\n{closing}\n\n"
        return prompt + start + content

    def _find_answer_start(self, variables: tuple[tuple[str, bool | int | float | str], ...]) -> str:
        """Return the template's text between the prompt and an answer, such as the name of a channel."""
        question, answer = _SAID
        render = partial(self._marked, self.traits, variables=variables)
        prompt = render(question)
        whole = render(*_SAID)
        written, answered, _ = whole.partition(answer.content)
        return written.removeprefix(prompt) if answered and written.startswith(prompt) else ""

    def _marked(
        self,
        traits: TemplateTraits,
        *messages: Message,
        tools: tuple[str, ...] = (),
        variables: Iterable[tuple[str, object]] = (),
    ) -> str:
        """Return the text of a conversation of marks; empty if the template rejects it."""
        try:
            return self._rendered(Conversation(messages, tools), traits, dict(variables))
        except UserError:
            return ""

    def _rendered(
        self,
        conversation: Conversation,
        traits: TemplateTraits,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return the text of a conversation, adapted to these traits."""
        conversation = adapted(conversation, traits)
        if self._name:
            return written_by_name(self._name, conversation.messages)
        today = datetime.now().astimezone().date()
        empty = {name: today.isoformat() if "date" in name else "" for name in traits.empty_variables}
        values: dict[str, object] = {
            **empty,
            "date_string": today.strftime("%d %b %Y"),  # without which Llama 3.1 has an old one
            "datetime": today.strftime("%b %d %Y"),  # FireFunction's; with a time, no cache would fit again
            **self._given,
            **(variables or {}),
            "add_generation_prompt": True,
        }
        if conversation.tools:
            values["tools"] = conversation.tools
        return renderer.render(self.source, values, conversation.messages, traits.part_roles)

    @cached_property
    def _given(self) -> dict[str, object]:
        """Return the variables that every template is given, as transformers gives them."""
        vocabulary = self._vocabulary
        named = {
            f"{name}_token": "" if token is None else vocabulary.decode([token], special=True)
            for name, token in vocabulary.named_tokens.items()
        }
        return {"enable_thinking": True, **_PROMPT, **named}

    def _guard(self, content: str, mark: str) -> str:
        """Break every special token's text with the mark, at which the rendering is cut before tokenising."""
        content = self._special.sub(lambda start: start[0] + mark, content)
        for text in self._single:  # one character cannot be split: it becomes a separate part
            content = content.replace(text, mark + text + mark)
        return content


def _texts(vocabulary: Vocabulary, tokens: Iterable[int]) -> set[str]:
    return {vocabulary.decode([token], special=True) for token in tokens} - {""}


def _is_plain(text: str) -> bool:
    """Return whether a token that a model's makers added is white space or a number, which need no guard."""
    return not text.strip() or text.strip().isdecimal()


def _guarded(message: Message, guard: Callable[[str], str]) -> Message:
    """Guard a message; the arguments of its calls come out as JSON objects, whatever they were."""
    calls = tuple(
        ToolCall(
            guard(call.id), guard(call.name), _json(_guarded_value(completed_object(call.arguments), guard))
        )
        for call in message.tool_calls
    )
    thinking = guard(message.thinking)
    of_call = guard(message.tool_call_id)
    return Message(message.role, guard(message.content), calls, of_call, thinking)


def _guarded_json(text: str, guard: Callable[[str], str]) -> str:
    """Guard the strings in JSON, where an escape may hide a special token that a template would reveal."""
    try:
        return _json(_guarded_value(json.loads(text), guard))
    except (ValueError, RecursionError):
        return guard(text)


def _guarded_value(value: object, guard: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, list):
        return [_guarded_value(each, guard) for each in value]
    if isinstance(value, dict):
        return {guard(key): _guarded_value(each, guard) for key, each in value.items()}
    return value


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _stand_in(vocabulary: Vocabulary) -> tuple[str, str]:
    name = "plain.j2"
    note = " and may not be made for chats; plain text is used instead"
    marks = [vocabulary.tokenize(text, special=True) for text in ("<|im_start|>", "<|im_end|>")]
    if all(len(tokens) == 1 for tokens in marks):
        name = "chatml.j2"
        note = "; ChatML is used instead, whose tokens it has"
    source = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return source, f"the model has no chat template{note}"
