"""Which messages of a long chat are at hand as widgets."""

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
        window = self
        while window.first < seen and window._is_large(sizes):
            window = Window(window.first + 1, window.last)
        return window

    def without_end(self, sizes: Sequence[int], seen: int) -> Window:
        """Return the window cut at its end if it has grown too large; message `seen` stays."""
        window = self
        while window.last > seen + 1 and window._is_large(sizes):
            window = Window(window.first, window.last - 1)
        return window

    def __contains__(self, index: int) -> bool:
        return self.first <= index < self.last

    def _is_large(self, sizes: Sequence[int]) -> bool:
        characters = sum(sizes[self.first : self.last])
        return self.last - self.first > _MOST_MESSAGES or characters > _MOST_CHARACTERS
