"""Tell the speed of plain decoding from a few tokens."""

from __future__ import annotations

from contextlib import closing

from localspec.decoding.answer import Answer, Happenings
from localspec.types import PlainRate

PLAIN_TOKENS = 12
FEWEST_PLAIN_TOKENS = 4
PLAIN_S = 0.25  # after which the fewest will do
PLAIN_LIMIT_S = 2.0  # after which they are not waited for


def plain_rate(answer: Answer, rounds: Happenings, depth: int) -> PlainRate | None:
    """Return how fast plain decoding goes on after `depth` tokens; None if a few take seconds."""
    tally = answer.tally
    with closing(rounds):
        for _ in answer.events(rounds):
            enough = tally.tokens > FEWEST_PLAIN_TOKENS  # the first warms up
            if tally.decode_s > (PLAIN_S if enough else PLAIN_LIMIT_S):
                break
    if tally.tokens <= FEWEST_PLAIN_TOKENS:
        return None
    return PlainRate(depth, (tally.tokens - 1) / tally.decode_s)
