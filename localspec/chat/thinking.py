"""Find code in a text, and tell what a model thinks from what it answers, also while it is being written."""

from __future__ import annotations

import re
from collections.abc import Iterator
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


@dataclass(frozen=True, slots=True)
class _Thought:
    """Where thinking stands: its opening tag, its own text, and the end of its closing tag, if any."""

    opening: int
    begin: int
    end: int
    after: int | None


def split(text: str, *, streaming: bool = False) -> tuple[Part, ...]:
    """Return the parts of an answer, without the tags between them and the blank space around those.

    A tag counts at the start of a line outside of code. `streaming` says that more will come: a tag that has
    only begun is kept back. That the prompt has opened the thinking shows only when the closing tag comes.
    """
    parts: list[Part] = []
    at: int | None = 0
    while at is not None:
        thought, in_code = _next_thought(text, at, streaming=streaming, thought_before=bool(parts))
        if thought is not None:
            parts.append(_part("answer", text, at, thought.opening))
            is_closed = thought.after is not None
            parts.append(_part("thinking", text, thought.begin, thought.end, closed=is_closed))
            at = thought.after
            continue
        waits = streaming and not in_code
        end = len(text) - (_begun_in_answer(text, at, thought_before=bool(parts)) if waits else 0)
        parts.append(_part("answer", text, at, end) if parts else Part("answer", text[:end]))
        break
    return tuple(part for part in parts if part.text or not part.closed)


def without_thinking(text: str) -> str:
    """Return the answer alone, as it goes back to the model."""
    parts = split(text)
    if parts == (Part("answer", text),):
        return text  # with every space that it has
    return "\n\n".join(part.text.rstrip() for part in parts if part.kind == "answer")


def _thought_after(text: str, opening: re.Match[str], *, streaming: bool) -> _Thought:
    tag = THINKING_TAGS[opening[1].lower()]
    closing = re.compile(re.escape(tag), re.IGNORECASE).search(text, opening.end())
    if closing is None:
        end = len(text) - (_begun(text, opening.end(), (tag,)) if streaming else 0)
        return _Thought(opening.start(), opening.end(), end, None)
    return _Thought(opening.start(), opening.end(), closing.start(), closing.end())


def _next_thought(
    text: str, at: int, *, streaming: bool, thought_before: bool
) -> tuple[_Thought | None, bool]:
    """Return the next thinking from `at` on, and whether the text ends inside a code block."""
    start = at
    while start < len(text):
        if block := code_block_at(text, start):
            if not block.closed:
                return None, True
            start = block.end
            continue
        end = line_end(text, start)
        if opened := _THINKING_OPENING.match(text, start):
            thought = _thought_after(text, opened, streaming=streaming)
            # a tag that nothing closes is one that the answer speaks of, unless it comes first
            if thought.after is not None or streaming or not text[at:start].strip():
                return thought, False
        elif not thought_before and (closed := _STRAY_CLOSING.search(text[start:end])):
            return _Thought(at, at, start + closed.start(1), start + closed.end(1)), False
        start = end
    return None, False


def _begun_in_answer(text: str, at: int, *, thought_before: bool) -> int:
    """Return how many characters at the end of an answer may be the beginning of a tag that counts."""
    last_line = text[max(at, text.rfind("\n") + 1) :].lstrip().lower()
    if last_line and any(tag.startswith(last_line) for tag in THINKING_TAGS):
        return len(last_line)
    begun = 0 if thought_before else _begun(text, at, tuple(THINKING_TAGS.values()))
    return begun if begun > 1 else 0  # a mere bracket is more often something else


def _begun(text: str, at: int, tags: tuple[str, ...]) -> int:
    """Return how many characters at the end of a text are the beginning of one of some tags."""
    longest = min(len(text) - at, max(map(len, tags)) - 1)
    return next((n for n in range(longest, 0, -1) if any(t.startswith(text[-n:].lower()) for t in tags)), 0)


def _part(
    kind: Literal["thinking", "answer"], text: str, begin: int, end: int, *, closed: bool = True
) -> Part:
    own, blank = text[begin:end], None if kind == "thinking" else "\n"
    return Part(kind, own.strip(blank), closed, begin + len(own) - len(own.lstrip(blank)))
