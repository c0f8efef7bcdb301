"""What the model reads of a branch; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from localspec.chat.messages import Attachment, StoredMessage
from localspec.chat.thinking import without_thinking
from localspec.types import Message

_answer_alone = lru_cache(maxsize=4096)(without_thinking)  # of long chats, again with every question


def to_prompt(system: str, path: Sequence[StoredMessage], *, continues: bool = False) -> tuple[Message, ...]:
    """Return the conversation that a model reads: questions and answers alternate, a question first.

    Exchanges with a dropped message are left out, unless the branch ends in their question.
    Of answers only what follows the thinking is sent; with `continues`, the last is sent as it stands.
    Questions with no answer between them are joined, because a reader sees that both were asked.
    """
    turns: list[Message] = []
    groups = exchanges_of(path)
    for number, group in enumerate(groups, 1):
        is_last = number == len(groups)
        awaited = is_last and (continues or group[-1].role == "user")
        if awaited or not any(message.dropped for message in group):
            turns += messages_of(group, continues=continues and is_last)
    return (Message("system", system), *turns) if system else tuple(turns)


def exchanges_of(path: Sequence[StoredMessage]) -> tuple[tuple[StoredMessage, ...], ...]:
    """Return a branch in parts that begin with a question and end with an answer; the last may lack one.

    A question of which no answer came shares a part with the next.
    """
    groups: list[list[StoredMessage]] = []
    answered = True
    for message in path:
        if message.role == "user":
            if answered:
                groups.append([])
            answered = False
        elif groups:
            answered = answered or bool(_content(message))
        if groups:  # an answer before the first question answers nothing
            groups[-1].append(message)
    return tuple(map(tuple, groups))


def messages_of(exchange: Sequence[StoredMessage], *, continues: bool = False) -> tuple[Message, ...]:
    """Return what a model reads of one exchange; with `continues`, its last message as it stands."""
    turns: list[Message] = []
    for number, message in enumerate(exchange, 1):
        as_it_stands = continues and number == len(exchange)
        content = message.content if as_it_stands else _content(message)
        if not content:
            continue
        if turns and turns[-1].role == message.role:
            content = f"{turns.pop().content}\n\n{content}"
        turns.append(Message(message.role, content))
    return tuple(turns)


def _content(message: StoredMessage) -> str:
    if message.role == "assistant":
        return _answer_alone(message.content)
    return "\n\n".join(part for part in (*_written_out(message.attachments), message.content) if part)


def _written_out(attachments: Iterable[Attachment]) -> Iterable[str]:
    for attachment in attachments:
        runs = re.findall(r"`+", attachment.text)
        fence = "`" * max(3, 1 + max(map(len, runs), default=0))
        end = "" if attachment.text.endswith("\n") or not attachment.text else "\n"
        yield f"File {attachment.name}:\n{fence}\n{attachment.text}{end}{fence}"
