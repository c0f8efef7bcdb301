"""Which files a model has read or written as they are now."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SeenFiles:
    """The contents that a model knows, by the names of files."""

    _digests: dict[str, bytes] = field(default_factory=dict)

    def add(self, name: str, data: bytes) -> None:
        """Take note that a model knows what a file says."""
        self._digests[name] = _digest(data)

    def has(self, name: str, data: bytes) -> bool:
        """Return whether a model knows what a file says now."""
        return self._digests.get(name) == _digest(data)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
