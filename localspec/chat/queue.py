"""Prompts that were sent while an answer was being written, in the order in which they will be asked."""

from __future__ import annotations


class PromptQueue:
    """Prompts that wait; a place that is gone, because its turn came meanwhile, gives None."""

    def __init__(self) -> None:
        self._items: list[str] = []

    @property
    def items(self) -> tuple[str, ...]:
        """Return what waits, the next one first."""
        return tuple(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, prompt: str) -> None:
        """Let a prompt wait behind the others."""
        self._items.append(prompt)

    def take_first(self) -> str | None:
        """Remove and return the next prompt, None if nothing waits."""
        return self.take(0)

    def take(self, index: int) -> str | None:
        """Remove and return the prompt at a place, for instance to edit it."""
        return self._items.pop(index) if 0 <= index < len(self._items) else None

    def remove(self, index: int) -> None:
        """Remove the prompt at a place."""
        self.take(index)

    def clear(self) -> None:
        """Remove all prompts."""
        self._items.clear()
