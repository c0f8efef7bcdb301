"""An answer that the model continues with, and the thinking in it and before it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from localspec.thinking_tags import OPENING, tags_of
from localspec.types.request import Message

# The text that gpt-oss writes before its answer; its first part may already be at the end of the prompt.
_FINAL = re.compile(r"(?:<\|start\|>assistant)?<\|channel\|>final<\|message\|>")


@dataclass(frozen=True, slots=True)
class BegunAnswer:
    """An answer that the model is to continue with: its thinking, if it has some, and what follows that.

    `opening` and `closing` are the tags around thinking that is in the text itself.
    """

    content: str
    thinking: str = ""
    opening: str = ""
    closing: str = ""


def begun_answer(message: Message, spaces: int = 0) -> BegunAnswer:
    """Return the parts of a message to continue, without `spaces` spaces at its end."""
    text = message.content[: -spaces or None]
    begins = text.lstrip()
    found = OPENING.match(begins)
    if found is None:
        return BegunAnswer(_FINAL.sub("", text, 1) if _FINAL.match(begins) else text, message.thinking)
    closing = re.search(re.escape(tags_of(found[0]).closing), begins[found.end() :], re.IGNORECASE)
    if closing is None:
        return BegunAnswer("", begins[found.end() :], found[0])
    thinking = begins[found.end() : found.end() + closing.start()]
    content = begins[found.end() + closing.end() :]
    header = final[0] if (final := _FINAL.match(content)) else ""
    return BegunAnswer(content.removeprefix(header), thinking, found[0], closing[0] + header)


def without_empty_thinking(prompt: str, opening: str) -> str:
    """Return a prompt without empty thinking at its end; an answer with its own follows."""
    tags = tags_of(opening)
    return re.sub(rf"{re.escape(tags.opening)}\s*{re.escape(tags.closing)}\s*\Z", "", prompt)


def with_thinking_apart(message: Message) -> Message:
    """Return an earlier answer with the thinking in its text moved to the template's field."""
    if message.role != "assistant" or message.thinking:
        return message
    begun = begun_answer(message)
    if begun.opening and not begun.closing:
        return message
    return replace(
        message,
        content=begun.content.lstrip("\n") if begun.closing else begun.content,
        thinking=begun.thinking.strip(),
    )


def trailing_spaces(messages: Sequence[Message]) -> int:
    """Return the number of spaces at the end of an answer to continue.

    The model has to write them itself: in most vocabularies a word's token begins with the space before it.
    """
    if not messages or messages[-1].role != "assistant":
        return 0
    content = messages[-1].content
    return len(content) - len(content.rstrip(" "))
