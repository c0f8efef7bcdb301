"""Adapt a conversation to a chat template with restrictions, without losing anything."""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from localspec.llama.template.traits import Conversation, TemplateTraits
from localspec.llama.tool_words import without_tool_roles
from localspec.types.request import Message

_NOBODY = Message("user", "")
_SHORT_ID = re.compile("[a-zA-Z0-9]{9}")


def adapted(conversation: Conversation, traits: TemplateTraits) -> Conversation:
    """Return a conversation that says the same in a form which the template takes."""
    messages = _with_system_folded(conversation.messages, traits)
    tools = conversation.tools
    if tools or any(message.tool_calls or message.role == "tool" for message in messages):
        if traits.takes_tools:
            messages = tuple(_with_simple_calls(messages, traits))
            messages = messages if traits.takes_any_id else tuple(map(_with_short_ids, messages))
        else:
            messages = _with_system_folded(without_tool_roles(messages, tools), traits)
            tools = ()
    messages = _with_turns(messages, traits)
    return Conversation(messages if traits.takes_empty else tuple(map(_with_some_text, messages)), tools)


def _with_short_ids(message: Message) -> Message:
    """Return a message whose calls have ids as Mistral's templates want them; clients keep others' ids."""
    calls = tuple(replace(call, id=_short_id(call.id)) for call in message.tool_calls)
    return replace(message, tool_calls=calls, tool_call_id=_short_id(message.tool_call_id))


def _short_id(id_: str) -> str:
    if not id_ or _SHORT_ID.fullmatch(id_):
        return id_
    return hashlib.sha256(id_.encode()).hexdigest()[:9]


def _with_some_text(message: Message) -> Message:
    is_empty = message.role in ("user", "assistant") and not (message.content or message.tool_calls)
    return replace(message, content=" ") if is_empty else message


def _with_simple_calls(messages: Sequence[Message], traits: TemplateTraits) -> Iterator[Message]:
    """Yield messages with single calls, or with calls separate from text, if a template requires that.

    An answer of a blank is added between a result and the next question if one is required.
    """
    waiting = deque(messages)
    last: Message | None = None
    while waiting:
        message = waiting.popleft()
        follows_result = last is not None and last.role == "tool"
        if message.role == "user" and follows_result and not traits.takes_question_after_result:
            yield Message("assistant", " ")  # some templates refuse an empty one
        if message.tool_calls and message.content and not traits.takes_text_with_call:
            yield Message("assistant", message.content)
            message = replace(message, content="")
        if len(message.tool_calls) > 1 and not traits.takes_calls_at_once:
            results = list[Message]()
            while waiting and waiting[0].role == "tool":
                results.append(waiting.popleft())
            yield from _one_by_one(message, results)
            message = Message("tool", "")
        else:
            yield message
        last = message


def _one_by_one(message: Message, results: list[Message]) -> Iterator[Message]:
    """Yield each call in a separate message, followed by its result."""
    for call in message.tool_calls:
        yield replace(message, tool_calls=(call,))
        message = Message("assistant", "")
        own = next((result for result in results if result.tool_call_id == call.id), None)
        if own is not None:
            results.remove(own)
            yield own
    yield from results


def _with_system_folded(messages: Sequence[Message], traits: TemplateTraits) -> tuple[Message, ...]:
    """Return messages with at most one system message, first; others become part of the user's messages.

    Each goes in front of the next question, or else after the previous one.
    """
    if traits.takes_system and traits.takes_later_system:
        return tuple(messages)
    count = next((n for n, message in enumerate(messages) if message.role != "system"), len(messages))
    first = messages[:count]
    rest = messages[count:]
    folded = list[Message]()
    waiting = list[Message]()
    if traits.takes_system and first:
        folded.append(_joined(first))
    else:
        waiting += first
    for message in rest:
        if message.role == "system":
            waiting.append(message)
            continue
        if waiting and message.role == "user":
            folded.append(_joined([*waiting, message], "user"))
        else:
            if waiting:
                _say(folded, _joined(waiting, "user"))
            folded.append(message)
        waiting = []
    if waiting:
        _say(folded, _joined(waiting, "user"))
    return tuple(folded)


def _say(messages: list[Message], question: Message) -> None:
    """Add what the user says, to the last message if that is theirs, too."""
    if messages and messages[-1].role == "user":
        question = _joined([messages.pop(), question])
    messages.append(question)


def _with_turns(messages: Sequence[Message], traits: TemplateTraits) -> tuple[Message, ...]:
    """Return messages in an order that the template takes: joined, and with empty questions between."""
    takes_row = {"user": traits.takes_users_in_a_row, "assistant": traits.takes_assistants_in_a_row}
    turns = list[Message]()
    for message in messages:
        last = turns[-1] if turns else None
        if (
            last is not None
            and last.role == message.role
            and not takes_row.get(message.role, True)
            and not (last.tool_calls or message.tool_calls)
        ):
            turns[-1] = _joined([last, message])
            continue
        opens = last is None or last.role == "system"
        if message.role == "assistant" and opens and not traits.takes_assistant_first:
            turns.append(_NOBODY)
        turns.append(message)
    needs_user = not (traits.takes_no_user if turns else traits.takes_nothing)
    if needs_user and not any(message.role == "user" for message in turns):
        turns.insert(1 if turns and turns[0].role == "system" else 0, _NOBODY)
    return tuple(turns)


def _joined(messages: Sequence[Message], role: str = "") -> Message:
    """Merge several messages; with the thinking of all."""
    content = "\n\n".join(message.content for message in messages if message.content)
    thinking = "\n\n".join(message.thinking for message in messages if message.thinking)
    return Message(role or messages[0].role, content, thinking=thinking)  # type: ignore[arg-type]
