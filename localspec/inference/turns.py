"""Answers that share models, at once or by turns: who begins, what happens in a turn, and when it ends."""

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
    is_crowded_out: bool = field(default=False, init=False)  # the caches had no room for it beside the others

    @property
    def reads(self) -> bool:
        """Whether its prompt is only read, while no answer is there."""
        return False

    @property
    def needs_all(self) -> bool:
        """Whether nothing else can use the models meanwhile."""
        return False

    @property
    def kind(self) -> object:
        """Return the kind of answer: only answers of one kind are written at once, others take turns."""
        return None

    @property
    def client(self) -> object:
        """Return the client that it is for; several answers for one give way to those of others."""
        return self

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


def startable(
    waiting: Sequence[Waiting], running: Sequence[Share], at_once: int, parallel: int
) -> Waiting | None:
    """Return the answer that begins now, beside up to `at_once` - 1 others; None if none can.

    `parallel` is the number of clients whose answers may be under way, written or paused.
    """
    if not running:
        return min(_candidates(waiting, (), parallel), key=_had, default=None)
    if len(running) >= at_once or any(each.needs_all for each in running):
        return None
    fitting = [each for each in _candidates(waiting, running, parallel) if not each.is_crowded_out]
    first = min(fitting, key=_had, default=None)
    return None if first is None or first.needs_all or first.kind != running[0].kind else first


def is_due(
    current: Share,
    running: Sequence[Share],
    waiting: Sequence[Share],
    at_once: int,
    parallel: int,
    *,
    is_over: bool,
) -> bool:
    """Return whether an answer has to make way: for the next, or for what cannot begin beside it.

    `running` has it, too. Most changes wait until the turn `is_over`.
    """
    if at_once == 1:
        return _is_next_due(current, waiting, parallel, is_over=is_over)
    if len(running) >= at_once and _has_another(current, running) and _other_waits(running, waiting):
        return True
    if not is_over:
        return False
    if any(each.needs_all and not each.reads for each in waiting):
        return True
    if any(each.kind != current.kind and each.share < current.share for each in waiting):
        return True
    has_had_most = all(current.share >= each.share for each in running)
    return has_had_most and any(each.is_crowded_out and each.share < current.share for each in waiting)


def has_left(gone: Share, waiting: Iterable[Share]) -> None:
    """Let answers that had no room try again, unless the one that left had none, either."""
    for each in () if gone.is_crowded_out else waiting:
        each.is_crowded_out = False


def _candidates(waiting: Sequence[Waiting], running: Sequence[Share], parallel: int) -> list[Waiting]:
    """Return the answers that may have the next turn.

    A prompt that is only read is among them once there is nothing else to do.
    """
    begun = [each for each in waiting if each.is_begun]
    new = [each for each in waiting if not each.is_begun and not each.reads]
    if not begun and not new and not running:
        return [*waiting[:1]]
    return begun + new[: max(0, parallel - len(_clients((*running, *begun))))]


def _clients(shares: Iterable[Share]) -> set[int]:
    return {id(each.client) for each in shares}


def _had(share: Share) -> tuple[float, int]:
    return share.share, share.tokens


def _is_next_due(current: Share, waiting: Sequence[Share], parallel: int, *, is_over: bool) -> bool:
    """Return whether another answer is next: when the turn is over, or at once for its first token."""
    others = _candidates(waiting, (current,), parallel)
    if current.tokens and any(not each.tokens and each.share <= current.share for each in others):
        return True
    return is_over and any(each.share < current.share for each in others)


def _has_another(current: Share, running: Sequence[Share]) -> bool:
    """Return whether an answer is the last to have begun of several for one client."""
    own = [each for each in running if each.client is current.client]
    return len(own) > 1 and own[-1] is current


def _other_waits(running: Sequence[Share], waiting: Sequence[Share]) -> bool:
    """Return whether another client waits for its first token."""
    served = _clients(running)
    return any(not (each.is_begun or each.reads or id(each.client) in served) for each in waiting)


def turn(
    share: Share,
    events: Iterable[GenerationEvent],
    models: PausableModels | OneAnswer,
    is_due: Callable[[bool], bool],
) -> Iterator[GenerationEvent]:
    """Yield the events of one turn; `share.paused` then has a number if the answer is not over.

    `is_due` is asked after every event, with whether the turn has had its time.
    """
    deadline = time.monotonic() + TURN_S
    pauses = False
    share.is_crowded_out = False
    for event in events:
        share.count(event)
        if isinstance(event, Paused):
            share.paused = event.number
            share.so_far = event.summary
            share.is_crowded_out = not pauses
            continue
        yield event
        if not pauses and is_due(time.monotonic() > deadline):
            pauses = True
            models.pause()
