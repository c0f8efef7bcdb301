"""What a model reads of a chat, how full that makes the context, and what could be left out; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from localspec.chat.messages import AnswerRecord, StoredMessage
from localspec.chat.thinking import fenced, without_thinking
from localspec.types import Message

WARN_ABOVE = 0.8
_BYTES_PER_TOKEN = 4  # of English text, roughly
_TOKENS_PER_TURN = 4  # what chat templates put around a turn, roughly
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
    files = [f"File {file.name}:\n{fenced(file.text)}" for file in message.attachments]
    return "\n\n".join(part for part in (*files, message.content) if part)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question with what was answered to it, and how many tokens the two take."""

    ids: tuple[int, ...]
    question: str
    tokens: int
    dropped: bool


def after_answer(record: AnswerRecord) -> int | None:
    """Return the tokens in the context after an answer; None for one that ended before it could tell."""
    summary = record.summary
    return summary.prompt_tokens + summary.tokens if summary.prompt_tokens else None


def estimate(messages: Sequence[Message]) -> int:
    """Return about how many tokens a conversation takes, where no model is at hand to count."""
    return sum(
        _TOKENS_PER_TURN + -(-len(message.content.encode()) // _BYTES_PER_TOKEN) for message in messages
    )


def warning(used: int, size: int, *, estimated: bool = False, is_new: bool = False) -> str | None:
    """Return a line to show while there is still room to act, None while there is plenty.

    An estimate is not to be shown as a count. A new chat holds nothing yet that could be left out.
    """
    if used >= size:
        advice = "shorten the prompt" if is_new else "leave out earlier exchanges to go on"
        return f"the context is full; {advice}"
    if used <= WARN_ABOVE * size:
        return None
    about = "about " if estimated else ""
    advice = "" if is_new else "; leave out earlier exchanges to make room"
    return f"the context is {about}{100 * used // size} % full{advice}"


def exchanges(
    path: Sequence[StoredMessage], count: Callable[[Sequence[Message]], int]
) -> tuple[Exchange, ...]:
    """Return what could be left out of a branch: all its exchanges but a question that waits for its answer.

    `count` tells how many tokens a conversation takes, as `OpenModels.count_tokens` does.
    """
    found = []
    for group in exchanges_of(path):
        messages = messages_of(group)
        if messages and messages[-1].role == "assistant":
            question = "\n\n".join(message.content for message in group if message.role == "user")
            ids = tuple(message.id for message in group)
            dropped = any(message.dropped for message in group)
            tokens = count((*messages, *messages)) - count(messages)  # without what the template adds once
            found.append(Exchange(ids, question, tokens, dropped))
    return tuple(found)
