"""The tokens that end an answer because the chat template writes them after one."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Protocol

from localspec.llama.tool_words import PROBE, PROBE_TOOL
from localspec.llama.vocabulary import Vocabulary
from localspec.types.request import Message

_QUESTION = Message("user", "markedquestion")
_ANSWER = Message("assistant", "markedanswer")
_NEXT = Message("user", "markednext")
_THOUGHT = "markedthought"
# Parts of an answer, with any surroundings: a model may continue after any of these.
_PART = re.compile("think|thought|reason|tool|call|action|function|response|channel|final", re.IGNORECASE)
_TAG = re.compile(r"<[^<>\s]{1,60}>|\[[^\[\]\s]{1,60}\]")


class Render(Protocol):
    """Returns the text of a conversation of marks, empty where the template refuses it."""

    def __call__(self, *messages: Message, tools: tuple[str, ...] = ()) -> str:
        """Return the text."""


def turn_ends(render: Render, vocabulary: Vocabulary) -> frozenset[int]:
    """Return the token right after an answer, and those that begin the next question.

    Tags of thinking and tools do not count, nor do tokens in the middle of a turn.
    """
    text = render(_QUESTION, _ANSWER, _NEXT)
    _, answered, rest = text.partition(_ANSWER.content)
    between, asked, _ = rest.partition(_NEXT.content)
    if not (answered and asked):
        return frozenset()
    tokens = [token for token in vocabulary.tokenize(between, special=True) if _is_tag(vocabulary, token)]
    if (named := _TAG.match(between.lstrip())) and not between.lstrip().startswith(
        tuple(vocabulary.decode([token], special=True) for token in tokens[:1])
    ):
        tokens += vocabulary.spelled(named[0])  # a token that the file does not call a special one
    return frozenset(tokens) - _inside_answers(render, vocabulary)


def _is_tag(vocabulary: Vocabulary, token: int) -> bool:
    text = vocabulary.decode([token], special=True)
    return token in vocabulary.special_tokens and bool(text.strip()) and not _PART.search(text)


def _inside_answers(render: Render, vocabulary: Vocabulary) -> set[int]:
    """Return the tokens between the parts of one answer: thinking, call and text."""
    prompt = render(_QUESTION).partition(_QUESTION.content)[2]
    called = replace(PROBE[1], thinking=_THOUGHT)
    thought = replace(_ANSWER, thinking=_THOUGHT)
    inside = set[int]()
    for text, end in (
        (render(_QUESTION, thought), _ANSWER.content),
        (render(_QUESTION, called, PROBE[2], tools=(PROBE_TOOL,)), "probed"),
    ):
        reply, ended, _ = text.partition(_QUESTION.content)[2].partition(end)
        if ended:
            own = reply[_common(prompt, reply) :]
            inside.update(vocabulary.tokenize(own, special=True))
    return inside


def _common(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    differ = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))
