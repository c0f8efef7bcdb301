"""Patterns for paths: `*`, `?` and `[...]` within a name, `**` for any number of folders."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_SIGNS = re.compile(r"[*?\[]")
_QUOTED = re.compile(r"\\(.)|\[\^", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PathPattern:
    """A pattern, name by name: None stands for any number of folders.

    `finds_hidden` says for each name whether a sign at its beginning also stands for a dot.
    """

    names: tuple[re.Pattern[str] | None, ...]
    finds_hidden: tuple[bool, ...]

    @property
    def depth(self) -> int | None:
        """The number of names of each path that it matches, None if it varies."""
        return None if None in self.names else len(self.names)

    def matches(self, path: Sequence[str]) -> bool:
        """Return whether it matches the names of a whole path; takes time in proportion to both."""
        at = here = 0  # in the path, and in the pattern
        again: tuple[int, int] | None = None  # after the last `**`, which takes another folder
        while at < len(path):
            if here < len(self.names) and self.names[here] is None:
                here += 1
                again = (at, here)
            elif here < len(self.names) and self._fits(here, path[at]):
                at = at + 1
                here = here + 1
            elif again is not None and (self.finds_hidden[again[1] - 1] or path[again[0]][:1] != "."):
                again = (again[0] + 1, again[1])
                at, here = again
            else:
                return False
        return here == len(self.names)

    def names_itself(self, name: str) -> bool:
        """Return whether one of its names is this one, dot included."""
        return any(
            each is not None and seen and each.match(name) is not None
            for each, seen in zip(self.names, self.finds_hidden, strict=True)
        )

    def _fits(self, place: int, name: str) -> bool:
        expression = self.names[place]
        is_seen = self.finds_hidden[place] or not name.startswith(".")
        return expression is not None and is_seen and expression.match(name) is not None


def has_signs(text: str) -> bool:
    """Return whether a text has signs of a pattern."""
    return _SIGNS.search(text) is not None


def split_base(pattern: str) -> tuple[str, str]:
    """Split a pattern into the folders before its first sign, with their slash, and the rest."""
    first = _SIGNS.search(pattern)
    at = pattern.rfind("/", 0, first.start() if first else len(pattern)) + 1
    return pattern[:at], pattern[at:]


@lru_cache(maxsize=1024)
def path_pattern(text: str, *, finds_hidden: bool = False) -> PathPattern:
    """Return a pattern of relative paths.

    Unless it `finds_hidden` names, a sign stands for no dot at the beginning of a name, as in a shell.
    """
    names = [each for each in text.split("/") if each]
    if names[-1:] == ["**"]:  # all that is below, without the folder itself
        names.append("*")
    expressions = tuple(None if name == "**" else re.compile(_expression(name)) for name in names)
    return PathPattern(expressions, tuple(finds_hidden or name[0] not in "*?[" for name in names))


def _expression(name: str) -> str:
    """Return the expression for one name, in linear time; a backslash takes a sign its meaning."""

    def plain(found: re.Match[str]) -> str:
        sign = found[1]
        if sign is None:
            return "[!"
        return f"[{sign}]" if sign in "*?[" else sign

    return fnmatch.translate(_QUOTED.sub(plain, name))
