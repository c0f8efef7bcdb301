"""Decode one answer in parts, each in the mode that pays at the time."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from itertools import count

from localspec.decoding.fallback import Ladder, PlainCost, seconds_of
from localspec.decoding.loop import Round
from localspec.types import Mode, ModeChanged, PromptProgress

Rounds = Generator[PromptProgress | Round, None, None]
DecodePart = Callable[[Mode, int], Rounds]
"""Decodes on from the text so far: in which mode, and which part of the answer this is."""


def decode_in_parts(
    decode: DecodePart, mode: Mode, text: list[int], plain: PlainCost, ladder: Ladder | None = None
) -> Generator[PromptProgress | Round | ModeChanged, None, None]:
    """Decode an answer, with the ladder changing the mode between two rounds; `text` grows by its tokens.

    A part begins with nothing in flight and with random streams of its own, so that whatever led to the
    change, the tokens that follow are drawn afresh.
    """
    if ladder is not None and ladder.mode != mode:
        yield ModeChanged(ladder.mode, ladder.reason)
    for part in count():
        if ladder is not None:
            mode = ladder.mode
            ladder.begin()
        change: ModeChanged | None = None
        with closing(decode(mode, part)) as events:
            is_first = True
            for event in events:
                if isinstance(event, Round):
                    text += event.tokens
                    if mode == "off" and not is_first:
                        plain.observe(len(text), seconds_of(event.stats) / len(event.tokens))
                    if ladder is not None and not event.is_last:
                        change = ladder.observe(event.stats, len(event.tokens), len(text))
                    is_first = False
                yield event
                if change is not None:
                    break
        if change is None:
            return
        yield change
