"""What a change does to a file, as a unified diff in a fence, harmless for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import unified_diff

from localspec.safe_text import safe_line, whole_text

MAX_LINES = 300  # of a diff
_LONGEST_LINE = 400
_CONTEXT = 3
_MOST_COMPARED = 2000  # lines between the same beginning and end; comparing takes their square
_RANGE = re.compile(r"(?P<sign>[-+])(?P<start>\d+)")
_NO_ENDING = "\\ No newline at end of file"


def diff_block(name: str, old: str | None, new: str) -> str:
    """Return the change of a file as a diff in a fence; `old` is None for a new file."""
    changes = list(_diff(_lines(old or ""), _lines(new)))
    lines = [line for change in changes[:MAX_LINES] for line in _shown(change)]
    if len(changes) > MAX_LINES:
        lines.append(f"... {len(changes) - MAX_LINES:,} more lines")
    before = "/dev/null" if old is None else name
    return fenced("\n".join([f"--- {before}", f"+++ {name}", *lines]), "diff")


def fenced(text: str, language: str) -> str:
    """Return a text as a block of code that it cannot end by itself."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def visible(text: str) -> str:
    """Return a line in which control characters leave a trace; tabs stay."""
    line = "\t".join(safe_line(part) for part in whole_text(text).replace("\r", "␍").split("\t"))
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} ({len(line):,} characters)"


def _lines(text: str) -> list[str]:
    """Return the lines of a text, each with the line feed that ends it."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def _diff(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a diff, with their endings."""
    start = 0
    least = min(len(old), len(new))
    while start < least and old[start] == new[start]:
        start += 1
    end = 0
    while end < least - start and old[-1 - end] == new[-1 - end]:
        end += 1
    above = max(start - _CONTEXT, 0)
    below = max(end - _CONTEXT, 0)
    removed = old[above : len(old) - below]
    added = new[above : len(new) - below]
    if max(len(removed), len(added)) > _MOST_COMPARED:
        yield f"@@ -{above + 1},{len(removed)} +{above + 1},{len(added)} @@\n"
        yield from (f"-{line}" for line in removed)
        yield from (f"+{line}" for line in added)
        return
    for line in list(unified_diff(removed, added, n=_CONTEXT))[2:]:
        if line.startswith("@@"):
            yield _RANGE.sub(lambda found: f"{found['sign']}{int(found['start']) + above}", line)
        else:
            yield line


def _shown(line: str) -> Iterator[str]:
    bare = line.removesuffix("\n")
    yield visible(bare.removesuffix("\r") if line.startswith(" ") else bare)
    if not line.endswith("\n"):
        yield _NO_ENDING
