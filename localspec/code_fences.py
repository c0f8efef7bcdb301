"""Fences of code blocks in Markdown, line by line; of the lines before, one mark is all that counts."""

from __future__ import annotations

import re

_OPENING = re.compile(r"[ \t]*(?P<mark>`{3,}(?=[^`\n]*$)|~{3,})", re.MULTILINE)


def fence_after(fence: str, line: str) -> str:
    """Return the opening mark of the block of code that continues after a line, empty outside of code.

    `fence` is that before the line. Fences may have any indentation, as in lists. Those behind a list's mark
    or in a quotation are not seen.
    """
    if fence:
        is_closed = re.match(rf"[ \t]*{fence[0]}{{{len(fence)},}}[ \t]*(?:\n|\Z)", line)
        return "" if is_closed else fence
    opening = _OPENING.match(line)
    return opening["mark"] if opening else ""
