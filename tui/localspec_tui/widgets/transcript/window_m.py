"""Which messages of a long chat are on the screen's side of memory: a stretch of them, moved in steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_MESSAGES: Final = 20
_CHARACTERS: Final = 24_000
_STEP_MESSAGES: Final = 10
_STEP_CHARACTERS: Final = 12_000
_MOST_MESSAGES: Final = 60
_MOST_CHARACTERS: Final = 96_000


@dataclass(frozen=True, slots=True)
class Window:
    """The messages from `first` up to `last`, without that; `sizes` are the characters of each message."""

    first: int = 0
    last: int = 0

    @classmethod
    def latest(cls, sizes: Sequence[int]) -> Window:
        """Return the end of a chat."""
        return cls(len(sizes), len(sizes)).earlier(sizes, _MESSAGES, _CHARACTERS)

    @classmethod
    def around(cls, sizes: Sequence[int], index: int) -> Window:
        """Return a message with what stands before and after it."""
        before = cls(index, index).earlier(sizes, _MESSAGES // 2, _CHARACTERS // 2)
        return before.later(sizes, _MESSAGES // 2, _CHARACTERS // 2)

    def earlier(
        self, sizes: Sequence[int], most: int = _STEP_MESSAGES, characters: int = _STEP_CHARACTERS
    ) -> Window:
        """Return the window a step further up; by one message at least."""
        first = self.first
        while first and self.first - first < most and characters > 0:
            first -= 1
            characters -= sizes[first]
        return Window(first, self.last)

    def later(
        self, sizes: Sequence[int], most: int = _STEP_MESSAGES, characters: int = _STEP_CHARACTERS
    ) -> Window:
        """Return the window a step further down; by one message at least."""
        last = self.last
        while last < len(sizes) and last - self.last < most and characters > 0:
            characters -= sizes[last]
            last += 1
        return Window(self.first, last)

    def without_start(self, sizes: Sequence[int], seen: int) -> Window:
        """Return the window cut at its start if it has grown too large; message `seen` stays."""
        first, excess = self.first, self._excess(sizes)
        while first < seen and excess.is_any():
            excess = excess.less(sizes[first])
            first += 1
        return Window(first, self.last)

    def without_end(self, sizes: Sequence[int], seen: int) -> Window:
        """Return the window cut at its end if it has grown too large; message `seen` stays."""
        last, excess = self.last, self._excess(sizes)
        while last > seen + 1 and excess.is_any():
            last -= 1
            excess = excess.less(sizes[last])
        return Window(self.first, last)

    def __contains__(self, index: int) -> bool:
        return self.first <= index < self.last

    def _excess(self, sizes: Sequence[int]) -> _Excess:
        return _Excess(
            self.last - self.first - _MOST_MESSAGES, sum(sizes[self.first : self.last]) - _MOST_CHARACTERS
        )


@dataclass(frozen=True, slots=True)
class _Excess:
    messages: int
    characters: int

    def is_any(self) -> bool:
        return self.messages > 0 or self.characters > 0

    def less(self, size: int) -> _Excess:
        return _Excess(self.messages - 1, self.characters - size)
