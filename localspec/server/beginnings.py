"""Conversations that come again with another beginning, of which the KV cache then holds nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from localspec.types.request import Message

_COMPARED = 800  # characters, some 200 tokens; later changes leave enough of a prompt in the cache
_KEPT = 64  # conversations


class Beginnings:
    """What came before the first question of each conversation when it was last asked for."""

    def __init__(self) -> None:
        """Begin with none."""
        self._seen: OrderedDict[int, str] = OrderedDict()

    def changed_at(self, messages: Sequence[Message], tools: Sequence[str]) -> int | None:
        """Return the place of the first character that differs from the last time; None without one.

        A conversation is known by its first question and answer.
        """
        turns = [message for message in messages if message.role != "system"][:2]
        if [turn.role for turn in turns] != ["user", "assistant"]:
            return None
        conversation = hash((turns[0].content, turns[1].content, turns[1].tool_calls))
        system = messages[0].content if messages[0].role == "system" else ""
        beginning = "\n".join((system, *tools))[:_COMPARED]
        before = self._seen.pop(conversation, beginning)
        self._seen[conversation] = beginning
        if len(self._seen) > _KEPT:
            self._seen.popitem(last=False)
        return None if before == beginning else _common(before, beginning)


def _common(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    differ = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))
