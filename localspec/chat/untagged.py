"""Answers of LocalSpec 0.1, saved without the thinking tag that their prompt had opened.

Such an answer has only a closing tag. Newer ones have the opening tag.
"""

from __future__ import annotations

import re
from dataclasses import replace

from localspec.chat.markdown import FenceScanner
from localspec.chat.messages import AnswerRecord, Span
from localspec.chat.thinking import line_end
from localspec.thinking_tags import ANY_CASE, OPENING, tags_of
from localspec.types.drafts import Provenance

_TAGS = ("<think>", "<thinking>", "<thought>", "<reasoning>", "[THINK]", "<|begin_of_thought|>")
_CLOSINGS = {tags.closing.lower(): tags for tags in map(tags_of, _TAGS)}
_ANY_CLOSING = "|".join(map(re.escape, _CLOSINGS))
_OPENING_LINE = re.compile(rf"[ \t]*({OPENING.pattern})", ANY_CASE)
_STRAY_CLOSING = re.compile(
    rf"(?:^[ \t]*|(?<!`)(?=(?:{_ANY_CLOSING})[ \t]*$))({_ANY_CLOSING})", ANY_CASE | re.MULTILINE
)


def with_opening_tag(text: str) -> str:
    """Add the missing opening tag to an answer, if one is missing.

    It is missing if a closing tag is at either end of a line outside of code, without an opening tag before.
    """
    if not _STRAY_CLOSING.search(text):
        return text
    start = 0
    fences = FenceScanner()
    while start < len(text):
        end = line_end(text, start)
        if fences.add(text[start:end]):
            start = end
            continue
        if opening := _OPENING_LINE.match(text, start):
            closing = re.compile(re.escape(tags_of(opening[1]).closing), ANY_CASE)
            if not text[:start].strip() or closing.search(text, start):
                return text
        elif stray := _STRAY_CLOSING.search(text[start:end]):
            return f"{_CLOSINGS[stray[1].lower()].opening}\n{text}"
        start = end
    return text


def record_with_opening_tag(record: AnswerRecord, text: str) -> AnswerRecord:
    """Return the record of an answer, its spans moved by the tag that the text gets."""
    added = len(with_opening_tag(text)) - len(text)
    if not added or not record.spans:
        return record
    return replace(record, spans=(Span(added, Provenance.TARGET), *record.spans))
