"""Titles that the models give new chats: written after the first answer, or chosen among the user's words."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from localspec.chat.answering import Generate, Titling
from localspec.chat.thinking import without_thinking
from localspec.types.events import Finished, TextDelta
from localspec.types.request import EngineSettings, Grammar, Message, Request, Sampling

_ASKED = (
    Message("user", "Name the topic of this conversation in three to five words."),
    Message("assistant", '"'),  # the beginning of the title, which the model continues
)
_TOKENS = 16
_WORDS = 6
_CHARACTERS = 48
_EMPTY_WORDS = {"the", "and", "for", "with", "this", "that"}
_LINKING_WORDS = frozenset(
    """a about an and are as at be but by can could did do does for from had has have how i if in into is it
    its me my no not of on or our should so that the their they this to was we were what when which who why
    will with would you your""".split()
)
"""With which no title begins or ends."""
_ASKED_WORDS = 40  # of a question, in which a title is looked for
_CLAUSES = re.compile(r"[.,;:!?()\[\]{}\"“”„«»。，、？！\n]+(?:\s|$)|\n|[\"“”„«»()\[\]{}<>`*#。，、？！]")


def write_title(
    generate: Generate, prompt: Sequence[Message], texts: Sequence[str], request: Request
) -> Generator[Titling, None, str]:
    """Have the models write a title, and return it; empty where none reads as one.

    `prompt` is that of the chat, which is still in the KV cache; `texts` are its messages from the question.
    """
    plain = replace(
        request,
        prompt=(*prompt, *_ASKED),
        settings=EngineSettings(mode="off"),
        steps_down=False,
        seed=0,
        sampling=Sampling(temperature=0.0),
        max_tokens=_TOKENS,
        stop=('"', "\n"),
    )
    written = yield from _write(generate, plain)
    title = title_in(written.text, " ".join(texts)) if written.is_whole else ""
    titles = titles_from(texts[0])
    if title or not titles or written.is_cancelled:
        return title
    # small models choose better than they write
    written = yield from _write(generate, replace(plain, grammar=title_grammar(titles)))
    return written.text if written.is_whole and written.text in titles else ""


@dataclass(frozen=True, slots=True)
class _Written:
    """The title that models wrote; whole if they ended it themselves."""

    text: str
    is_whole: bool
    is_cancelled: bool


def _write(generate: Generate, request: Request) -> Generator[Titling, None, _Written]:
    """Have a title written, and return it."""
    text = ""
    reason = ""
    for event in generate(request):
        if isinstance(event, TextDelta):
            text += event.text
        if isinstance(event, Finished):
            reason = event.reason
        yield Titling()
    return _Written(text, reason == "stop", reason in {"", "cancelled"})


def title_in(text: str, conversation: str) -> str:
    """Return the title that a model wrote, nothing where it looks wrong: too long, or of something else."""
    title = without_thinking(text).strip(" \t\n*#_`.,:;'“”")
    words = title.casefold().split()
    about = conversation.casefold()
    telling = [word for word in re.findall(r"\w{3,}", title.casefold()) if word not in _EMPTY_WORDS]
    fits = 2 * sum(word[:4] in about for word in telling) >= len(telling) > 0
    is_finished = not text.endswith((" ", ",", ";", ":", "-"))
    return title if fits and is_finished and len({*words}) == len(words) <= _WORDS else ""


def titles_from(question: str) -> tuple[str, ...]:
    """Return the pieces of a question that could be its title, each a few words that follow each other."""
    found: list[str] = []
    left = _ASKED_WORDS
    for clause in _CLAUSES.split(question):
        words = clause.split()[:left]
        left -= len(words)
        for start, end in combinations(range(len(words) + 1), 2):
            piece = words[start:end]
            ends = {piece[0].casefold(), piece[-1].casefold()}
            title = " ".join(piece)
            if len(piece) <= _WORDS and not ends & _LINKING_WORDS and len(title) <= _CHARACTERS:
                found.append(title[0].upper() + title[1:])
    several = [title for title in found if " " in title]
    return tuple(dict.fromkeys(several or found))


def title_grammar(titles: Sequence[str]) -> Grammar:
    """Return the grammar of one of some titles with the quotation mark behind it."""
    return Grammar("regex", f'({"|".join(map(re.escape, titles))})"')
