"""How full the context is, and which exchanges could be left out to make room; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.chat.messages import AnswerRecord, StoredMessage
from localspec.chat.prompting_m import exchanges_of, messages_of
from localspec.types import Message

WARN_ABOVE = 0.8
_BYTES_PER_TOKEN = 4  # of English text, roughly
_TOKENS_PER_TURN = 4  # what chat templates put around a turn, roughly


@dataclass(frozen=True, slots=True)
class ContextUse:
    """So many of `size` tokens are taken; an estimate is not to be shown as a count."""

    used: int
    size: int
    estimated: bool = False

    @property
    def share(self) -> float:
        """Return how full the context is, from 0 to 1."""
        return min(1.0, self.used / self.size) if self.size else 1.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question with what was answered to it, and how many tokens the two take."""

    ids: tuple[int, ...]
    question: str
    tokens: int
    dropped: bool


def after_answer(record: AnswerRecord, size: int) -> ContextUse | None:
    """Return what the context holds after an answer; None for one that ended before it could tell."""
    taken = record.summary.prompt_tokens + record.summary.tokens
    return ContextUse(taken, size) if record.summary.prompt_tokens else None


def estimate(messages: Sequence[Message], size: int) -> ContextUse:
    """Return about how much of the context a conversation takes, where no model is at hand to count."""
    tokens = sum(
        _TOKENS_PER_TURN + -(-len(message.content.encode()) // _BYTES_PER_TOKEN) for message in messages
    )
    return ContextUse(tokens, size, estimated=True)


def warning(use: ContextUse, *, is_new: bool = False) -> str | None:
    """Return a line to show while there is still room to act, None while there is plenty.

    A new chat holds nothing yet that could be left out.
    """
    if use.used >= use.size:
        advice = "shorten the prompt" if is_new else "leave out earlier exchanges to go on"
        return f"the context is full; {advice}"
    if use.share <= WARN_ABOVE:
        return None
    about = "about " if use.estimated else ""
    advice = "" if is_new else "; leave out earlier exchanges to make room"
    return f"the context is {about}{int(100 * use.share)} % full{advice}"


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
            found.append(Exchange(ids, question, _tokens(messages, count), dropped))
    return tuple(found)


def _tokens(messages: tuple[Message, ...], count: Callable[[Sequence[Message]], int]) -> int:
    """Return what an exchange adds; said twice it adds twice, and what the template adds once falls out."""
    return count((*messages, *messages)) - count(messages)
