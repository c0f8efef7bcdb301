"""Answers that share models by turns: whose turn is next, what happens in a turn, and when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from localspec.inference.interface import OneAnswer, PausableModels
from localspec.types.events import GenerationEvent, Paused, PromptProgress, RoundDone, Summary

PARALLEL = 4  # answers that are interleaved; others wait for their first turn
TURN_S = 1.0  # for which an answer continues before another one has its turn
_READING = 1 / 16  # of what writing a token counts for


@dataclass(slots=True, eq=False)
class Share:
    """What an answer has had of the models so far."""

    share: float = field(default=0.0, init=False)  # tokens; the answer with the least is next
    tokens: int = field(default=0, init=False)
    read: int = field(default=0, init=False)  # of the prompt
    paused: int | None = field(default=None, init=False)  # its number among the models' paused answers
    so_far: Summary = field(default=Summary(), init=False)  # when it was paused

    @property
    def reads(self) -> bool:
        """Whether its prompt is only read, while no answer is there."""
        return False

    @property
    def is_begun(self) -> bool:
        """Whether a part of it is written."""
        return self.paused is not None

    def count(self, event: GenerationEvent) -> None:
        """Count the tokens of an event."""
        if isinstance(event, RoundDone):
            self.tokens += event.tokens
            self.share += event.tokens
        elif isinstance(event, PromptProgress):
            self.share += (event.done - self.read) * _READING
            self.read = event.done


Waiting = TypeVar("Waiting", bound=Share)


def first_share(others: Iterable[Share]) -> float:
    """Return the share that a new answer begins with: not more than the others have."""
    return min((other.share for other in others if not other.reads), default=0.0)


def candidates(waiting: Sequence[Waiting], current: Share | None, parallel: int) -> list[Waiting]:
    """Return the answers that may have the next turn: `parallel` at most, with the current one.

    A prompt that is only read is among them once there is nothing else to do.
    """
    begun = [each for each in waiting if each.is_begun]
    new = [each for each in waiting if not each.is_begun and not each.reads]
    if not begun and not new and current is None:
        return [*waiting[:1]]
    return begun + new[: max(0, parallel - len(begun) - (current is not None))]


def next_of(waiting: Sequence[Waiting], parallel: int) -> Waiting:
    """Return the answer that is next when no answer has its turn."""
    return min(candidates(waiting, None, parallel), key=lambda each: (each.share, each.tokens))


def is_due(current: Share, waiting: Sequence[Share], parallel: int, *, is_over: bool) -> bool:
    """Return whether another answer is next: when the turn is over, or at once for its first token."""
    others = candidates(waiting, current, parallel)
    if current.tokens and any(not each.tokens and each.share <= current.share for each in others):
        return True
    return is_over and any(each.share < current.share for each in others)


def turn(
    share: Share,
    events: Iterable[GenerationEvent],
    models: PausableModels | OneAnswer,
    is_due: Callable[[bool], bool],
) -> Iterator[GenerationEvent]:
    """Yield the events of one turn; `share.paused` then has a number if the answer is not over.

    `is_due` is asked after every event, with whether the turn has had its time.
    """
    deadline, pauses = time.monotonic() + TURN_S, False
    for event in events:
        share.count(event)
        if isinstance(event, Paused):
            share.paused, share.so_far = event.number, event.summary
            continue
        yield event
        if not pauses and is_due(time.monotonic() > deadline):
            pauses = True
            models.pause()
