"""Long pasted texts folded to a short mark, so that a prompt of a megabyte stays quick to edit."""

from __future__ import annotations

import re

FOLD_FROM = 10_000  # characters; every key press costs time in proportion to the longest line


class PastedTexts:
    """The long texts of one prompt, each standing behind a mark in the text that is edited."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def fold(self, text: str) -> str:
        """Return the text, or a mark for it if it is long."""
        if len(text) < FOLD_FROM:
            return text
        if known := next((mark for mark, kept in self._texts.items() if kept == text), None):
            return known
        lines = text.count("\n") + 1
        size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        mark = f"[pasted text {len(self._texts) + 1}: {size}]"
        self._texts[mark] = text
        return mark

    def unfold(self, text: str) -> str:
        """Put the long texts back in place of their marks."""
        if not self._texts:
            return text
        marks = "|".join(map(re.escape, self._texts))
        return re.sub(marks, lambda found: self._texts[found[0]], text)

    def mark_before(self, text: str) -> str:
        """Return the mark that ends the text, or nothing."""
        return next((mark for mark in self._texts if text.endswith(mark)), "")

    def clear(self) -> None:
        """Forget all texts."""
        self._texts.clear()
