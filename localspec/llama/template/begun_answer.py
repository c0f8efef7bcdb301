"""An answer that the model goes on with, and the tags of thinking in it and before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from localspec.types import THINKING_TAGS, Message


@dataclass(frozen=True, slots=True)
class BegunAnswer:
    """An answer that the model is to go on with: its thinking, if it has some, and what follows that.

    `opening` and `closing` are the tags around thinking that stands in the text itself.
    """

    content: str
    thinking: str = ""
    opening: str = ""
    closing: str = ""


def begun_answer(message: Message, spaces: int = 0) -> BegunAnswer:
    """Return the parts of a message that is to be continued, without so many spaces at its end."""
    text = message.content[: -spaces or None]
    begins = text.lstrip()
    length = next((len(tag) for tag in THINKING_TAGS if begins.lower().startswith(tag)), 0)
    if not length:
        return BegunAnswer(text, message.thinking)
    opening, rest = begins[:length], begins[length:]
    thinking, closing, content = rest.partition(closing_tag(opening))
    return BegunAnswer(content, thinking, opening, closing)


def opening_tag(prompt: str) -> str:
    """Return the tag at a prompt's end that opens the model's thinking, as spelled there; empty for none."""
    end = prompt.rstrip()
    length = next((len(tag) for tag in THINKING_TAGS if end.lower().endswith(tag)), 0)
    return end[len(end) - length :]


def closing_tag(opening: str) -> str:
    """Return the tag that closes thinking, in capitals where the opening one is."""
    closing = THINKING_TAGS[opening.lower()]
    return closing if opening == opening.lower() else closing.upper()


def with_thinking_apart(message: Message) -> Message:
    """Return an earlier answer whose thinking stands in its text with that apart, where templates look."""
    if message.role != "assistant" or message.thinking:
        return message
    begun = begun_answer(message)
    if not begun.closing:
        return message
    return replace(message, content=begun.content.lstrip("\n"), thinking=begun.thinking.strip())


def trailing_spaces(messages: Sequence[Message]) -> int:
    """Return how many spaces end an answer that is to be continued.

    The model has to write them itself: in most vocabularies a word's token begins with the space before it.
    """
    if not messages or messages[-1].role != "assistant":
        return 0
    content = messages[-1].content
    return len(content) - len(content.rstrip(" "))
