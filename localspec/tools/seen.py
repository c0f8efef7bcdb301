"""Which files a model has read to the end, or written, as they are now."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class _Known:
    """What a model knows of a file: its lines from the first to the one with the number `reached`."""

    digest: bytes
    reached: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class SeenFiles:
    """The contents that a model knows, by the names of files."""

    _known: dict[str, _Known] = field(default_factory=dict)

    def add(self, name: str, data: bytes) -> None:
        """Take note that a model knows all that a file says."""
        self._known[name] = _Known(_digest(data), 0, True)

    def add_lines(self, name: str, data: bytes, first: int, last: int, count: int) -> None:
        """Take note that a model has read some of the lines, of which there are `count`, from 1 on."""
        digest = _digest(data)
        known = self._known.get(name)
        if known is None or known.digest != digest:
            known = _Known(digest, 0, False)
        if not known.is_whole and first <= known.reached + 1:
            reached = max(known.reached, last)
            self._known[name] = _Known(digest, reached, reached >= count)

    def has(self, name: str, data: bytes) -> bool:
        """Return whether a model knows all that a file says now."""
        known = self._known.get(name)
        return known is not None and known.is_whole and known.digest == _digest(data)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
