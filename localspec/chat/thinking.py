"""Find code in a text, and tell what a model thinks from what it answers, also while it is being written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from localspec.types import THINKING_TAGS

_OPENING = re.compile(r"[ \t]*(?P<mark>`{3,}(?=[^`\n]*$)|~{3,})(?P<info>[^\n]*)\n?", re.MULTILINE)
_ANY_CLOSING = "|".join(map(re.escape, THINKING_TAGS.values()))
_ANYWHERE = re.IGNORECASE | re.MULTILINE
_THINKING_OPENING = re.compile(rf"[ \t]*({'|'.join(map(re.escape, THINKING_TAGS))})", re.IGNORECASE)
_STRAY_CLOSING = re.compile(rf"(?:^[ \t]*|(?<!`)(?=(?:{_ANY_CLOSING})[ \t]*$))({_ANY_CLOSING})", _ANYWHERE)


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A block from character `start` to `end`, its fences included; `closed` unless the text ends in it."""

    start: int
    end: int
    code: str
    language: str = ""
    closed: bool = True


def code_block_at(text: str, start: int) -> CodeBlock | None:
    """Return the block that begins with the line at `start`, None if that opens none."""
    opening = _OPENING.match(text, start)
    if opening is None:
        return None
    mark, language = opening["mark"], opening["info"].strip().partition(" ")[0]
    closing = re.compile(rf"^[ \t]*{mark[0]}{{{len(mark)},}}[ \t]*(?:\n|\Z)", re.MULTILINE)
    found = closing.search(text, opening.end())
    if found is None:
        return CodeBlock(start, len(text), text[opening.end() :], language, closed=False)
    return CodeBlock(start, found.end(), text[opening.end() : found.start()], language)


def code_blocks(text: str) -> Iterator[CodeBlock]:
    """Yield the blocks from first to last."""
    start = 0
    while start < len(text):
        block = code_block_at(text, start)
        if block is not None:
            yield block
        start = line_end(text, start) if block is None else block.end


def fenced(text: str, language: str = "") -> str:
    """Return a text as a block of code, in a fence that is longer than any inside."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    line_end = "" if text.endswith("\n") or not text else "\n"
    return f"{fence}{language}\n{text}{line_end}{fence}"


def line_end(text: str, start: int) -> int:
    """Return where the next line begins."""
    return text.find("\n", start) + 1 or len(text)


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of an answer that begins at character `start`; thinking that goes on is not `closed`."""

    kind: Literal["thinking", "answer"]
    text: str
    closed: bool = True
    start: int = 0


def split(text: str, *, streaming: bool = False) -> tuple[Part, ...]:
    """Return the parts of an answer, without the tags between them and the blank space around those.

    A tag counts at the start of a line outside of code. `streaming` says that more will come: a tag that has
    only begun is kept back. That the prompt has opened the thinking shows only when the closing tag comes.
    """
    parts: list[Part] = []
    at = start = 0  # of what is in no part yet, and of the line that is looked at
    in_code = False
    while start < len(text):
        end = line_end(text, start)
        if block := code_block_at(text, start):
            end, in_code = block.end, not block.closed
        elif opened := _THINKING_OPENING.match(text, start):
            tag, begin = THINKING_TAGS[opened[1].lower()], opened.end()
            closing = re.compile(re.escape(tag), re.IGNORECASE).search(text, begin)
            # a tag that nothing closes is one that the answer speaks of, unless it comes first
            if closing or streaming or not text[at:start].strip():
                parts.append(_part("answer", text, at, start))
                if closing is None:
                    end = len(text) - (begun(text, (tag,), begin) if streaming else 0)
                    parts.append(_part("thinking", text, begin, end, closed=False))
                    return _told(parts)
                parts.append(_part("thinking", text, begin, closing.start()))
                at = end = closing.end()
        elif not parts and (stray := _STRAY_CLOSING.search(text[start:end])):
            parts.append(_part("thinking", text, at, start + stray.start(1)))
            at = end = start + stray.end(1)
        start = end
    waits = streaming and not in_code
    end = len(text) - (_begun_in_answer(text, at, thought_before=bool(parts)) if waits else 0)
    parts.append(_part("answer", text, at, end) if parts else Part("answer", text[:end]))
    return _told(parts)


def _told(parts: Sequence[Part]) -> tuple[Part, ...]:
    return tuple(part for part in parts if part.text or not part.closed)


def without_thinking(text: str) -> str:
    """Return the answer alone, as it goes back to the model."""
    parts = split(text)
    if parts == (Part("answer", text),):
        return text  # with every space that it has
    return "\n\n".join(part.text.rstrip() for part in parts if part.kind == "answer")


def _begun_in_answer(text: str, at: int, *, thought_before: bool) -> int:
    """Return how many characters at the end of an answer may be the beginning of a tag that counts."""
    last_line = text[max(at, text.rfind("\n") + 1) :].lstrip().lower()
    if last_line and any(tag.startswith(last_line) for tag in THINKING_TAGS):
        return len(last_line)
    count = 0 if thought_before else begun(text, tuple(THINKING_TAGS.values()), at)
    return count if count > 1 else 0  # a mere bracket is more often something else


def begun(text: str, tags: Sequence[str], at: int = 0) -> int:
    """Return how many characters at the end of a text, from `at` on, may be the beginning of a tag."""
    longest = min(len(text) - at, max(map(len, tags)) - 1)
    ends = ((n, text[-n:].lower()) for n in range(longest, 0, -1))
    return next((n for n, end in ends if any(tag.lower().startswith(end) for tag in tags)), 0)


def _part(
    kind: Literal["thinking", "answer"], text: str, begin: int, end: int, *, closed: bool = True
) -> Part:
    own, blank = text[begin:end], None if kind == "thinking" else "\n"
    return Part(kind, own.strip(blank), closed, begin + len(own) - len(own.lstrip(blank)))
