"""What models put around their thinking, and where it ends in an answer that is being written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

ANY_CASE = re.IGNORECASE | re.ASCII
"""How tags are looked for; without ASCII some letters of other alphabets would count as Latin ones."""

StretchKind = Literal["thinking", "answer", "tag"]
Stretch = tuple[StretchKind, str]
"""A piece of an answer and its kind; `tag` is the text between thinking and answer."""


@dataclass(frozen=True, slots=True)
class ThinkingTags:
    """The two texts between which a model thinks, in small or large letters.

    Where what follows is another message of the same turn, `turn` begins it, and `answer` is the rest of its
    header if it is the answer.
    """

    opening: str
    closing: str
    turn: str = ""
    answer: str = ""

    def forced(self, *, may_call: bool = False) -> str:
        """Return the words that close the thinking; with `may_call` the model chooses what follows."""
        if self.turn:
            return f"{self.closing}{self.turn}{'' if may_call else self.answer}"
        return f"\n{self.closing}"


THINKING_TAGS = (
    ThinkingTags("<think>", "</think>"),  # DeepSeek R1, Qwen, GLM and most others
    ThinkingTags("<thinking>", "</thinking>"),
    ThinkingTags("<thought>", "</thought>"),  # EXAONE Deep
    ThinkingTags("<reasoning>", "</reasoning>"),
    ThinkingTags("[THINK]", "[/THINK]"),  # Magistral, Ministral
    ThinkingTags("<seed:think>", "</seed:think>"),  # Seed OSS
    ThinkingTags("<mm:think>", "</mm:think>"),  # MiniMax M3
    ThinkingTags("<think:opensource>", "</think:opensource>"),  # Hunyuan 3
    ThinkingTags("◁think▷", "◁/think▷"),  # Kimi VL
    ThinkingTags("<|START_THINKING|>", "<|END_THINKING|>"),  # Command R7B and A
    ThinkingTags("<|begin_of_thought|>", "<|end_of_thought|>"),  # OpenThinker
    ThinkingTags("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ThinkingTags("<|channel>thought", "<channel|>"),  # Gemma 4
    ThinkingTags(
        "<|channel|>analysis<|message|>", "<|end|>", "<|start|>assistant", "<|channel|>final<|message|>"
    ),  # gpt-oss
    ThinkingTags(
        "to=self<|message|>", "<|eom|>", "<|start|>assistant", " to=user<|message|>"
    ),  # Muse Glimmer
    ThinkingTags("<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>"),  # Kimi K3
)
_BY_OPENING = {tags.opening.lower(): tags for tags in THINKING_TAGS}
_ANY_OPENING = "|".join(map(re.escape, _BY_OPENING))
OPENING = re.compile(_ANY_OPENING, ANY_CASE)
LONGEST_OPENING = max(map(len, _BY_OPENING))  # characters
_OPENED_AT_END = re.compile(rf"({_ANY_OPENING})\s*\Z", ANY_CASE)
_MARK = re.compile(r"<[^<>]+>|\[[^\[\]]+\]|◁[^◁▷]+▷")


def opened_at_end(text: str) -> str:
    """Return the opening tag at the end of a text, with the white space after it; empty without one."""
    found = _OPENED_AT_END.search(text)
    return found[0] if found else ""


def tags_of(opening: str) -> ThinkingTags:
    """Return the pair of an opening tag; white space after it is ignored."""
    return _BY_OPENING[opening.rstrip().lower()]


def _turns(tags: ThinkingTags) -> tuple[str, ...]:
    """Return the beginnings of a message after thinking, also without control tokens, which may be hidden."""
    return tuple(dict.fromkeys(filter(None, (tags.turn, _MARK.sub("", tags.turn)))))


def marks_of(tags: ThinkingTags) -> frozenset[str]:
    """Return the parts of two tags that vocabularies have as single tokens, in lower case."""
    return frozenset(_MARK.findall(f"{tags.opening}{tags.closing}".lower()))


def begun(text: str, tags: Sequence[str], at: int = 0) -> int:
    """Return the number of characters at the end of a text, from `at` on, that may begin a tag."""
    lowered, firsts, longest = _beginnings(tuple(tags))
    start = max(at, len(text) - longest + 1)
    tail = text[start:].lower()
    places = (place for place, first in enumerate(tail) if first in firsts)
    return next((len(tail) - n for n in places if any(tag.startswith(tail[n:]) for tag in lowered)), 0)


@lru_cache(maxsize=64)
def _beginnings(tags: tuple[str, ...]) -> tuple[tuple[str, ...], frozenset[str], int]:
    """Return tags in lower case, their first characters, and the length of the longest."""
    lowered = tuple(tag.lower() for tag in tags)
    return lowered, frozenset(tag[:1] for tag in lowered), max(map(len, lowered))


def may_open(text: str) -> bool:
    """Return whether a text may be the beginning of an opening tag."""
    text = text.lower()
    return any(opening.startswith(text) for opening in _BY_OPENING)


class LeadingThinking:
    """Follows an answer as it comes: first the model's thinking, if any, then the answer itself.

    Thinking is opened by the prompt, or by the first words that the model writes; several blocks of it may
    follow one another. A tag that is repeated at once, as where prompt and model both open the thinking,
    counts as one. White space between the thinking and the answer belongs to neither.
    """

    def __init__(self, opened: ThinkingTags | None = None) -> None:
        """Start empty; `opened` are the tags of thinking that the prompt has opened."""
        self.tags = opened  # of the thinking that continues
        self._repeatable = (
            "" if opened is None else opened.opening
        )  # the last tag, if nothing has followed it
        self._has_thought = opened is not None
        self._answers = False  # the answer has begun
        self._turns = tuple[str, ...]()  # with which the next message may begin, if thinking has just ended
        self._rest = ""  # may become a tag

    @property
    def is_undecided(self) -> bool:
        """Whether the text ends in what may become a tag."""
        return bool(self._rest)

    def feed(self, text: str, *, more: bool = True) -> Iterator[Stretch]:
        """Yield the parts that are certain now, in order; `more` if the answer continues."""
        self._rest += text
        while self._rest:
            if self._answers:
                yield from self._told("answer", len(self._rest))
                return
            start = len(self._rest) - len(self._rest.lstrip())
            begun_tag = self._rest[start:].lower()
            if self._repeatable and begun_tag.startswith(self._repeatable.lower()):
                yield from self._told("tag", start + len(self._repeatable))
            elif more and self._repeatable and self._repeatable.lower().startswith(begun_tag):
                return
            elif self.tags is not None:
                self._repeatable = ""
                closing = re.compile(re.escape(self.tags.closing), ANY_CASE).search(self._rest)
                if closing is None:
                    waits = begun(self._rest, (self.tags.closing,)) if more else 0
                    yield from self._told("thinking", len(self._rest) - waits)
                    return
                yield from self._told("thinking", closing.start())
                yield from self._told("tag", len(closing[0]))
                self._turns = _turns(self.tags)
                self.tags = None
                self._repeatable = closing[0]
            elif turn := next(filter(begun_tag.startswith, self._turns), None):
                yield from self._told("tag", start + len(turn))
                self._turns = ()
                self._repeatable = ""
            elif more and any(turn.startswith(begun_tag) for turn in self._turns):
                return
            elif opening := OPENING.match(self._rest, start):
                yield from self._told("tag", opening.end())
                self.tags = tags_of(opening[0])
                self._repeatable = opening[0]
                self._has_thought = True
            elif start == len(self._rest) and not more:
                yield from self._told("tag" if self._has_thought else "answer", start)
            elif more and may_open(self._rest[start:]):
                return
            else:
                yield from self._told("tag", self._blank(start))
                self._answers = True

    def _blank(self, start: int) -> int:
        """Return the length of white space before the answer that is dropped: lines, or spaces at a tag."""
        if not self._has_thought:
            return 0
        return self._rest.rfind("\n", 0, start) + 1 or start

    def _told(self, kind: StretchKind, count: int) -> Iterator[Stretch]:
        text = self._rest[:count]
        self._rest = self._rest[count:]
        if text:
            yield kind, text
