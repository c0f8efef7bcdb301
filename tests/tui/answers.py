"""Rounds of answers as the engine reports them: plain, speculative, and speculative ahead of time."""

from __future__ import annotations

import random
from collections.abc import Sequence

from localspec.chat.messages import AnswerRecord
from localspec.decoding.tally import Tally
from localspec.types.drafts import DraftOrigin
from localspec.types.events import RoundDone, RoundStats, Summary
from localspec.types.request import EngineSettings, Mode, Sampling

PROMPT = RoundDone(RoundStats(0, 0, DraftOrigin.NONE, 0.412, 0.0, 0.0, 0.001), 1)
VERIFY_S = 0.018
DRAFT_S = 0.0024  # for each token


def accepted_of(drafted: int, chance: float, source: random.Random) -> int:
    """Draw how many tokens pass before the first that does not."""
    accepted = 0
    while accepted < drafted and source.random() < chance:
        accepted += 1
    return accepted


def plain(rounds: int) -> tuple[RoundDone, ...]:
    """Return an answer without speculation."""
    source = random.Random(1)
    return (
        PROMPT,
        *(
            RoundDone(RoundStats(0, 0, DraftOrigin.NONE, source.gauss(VERIFY_S, 0.0004), 0.0, 0.0, 0.0002), 1)
            for _ in range(rounds)
        ),
    )


def sd(rounds: int, chance: float = 0.8) -> tuple[RoundDone, ...]:
    """Return an answer whose drafts the target waited for."""
    source = random.Random(2)
    marks = [PROMPT]
    for _ in range(rounds):
        drafted = source.randint(2, 7)
        accepted = accepted_of(drafted, chance, source)
        stats = RoundStats(
            drafted,
            accepted,
            DraftOrigin.FRESH,
            source.gauss(VERIFY_S + 0.0006 * drafted, 0.0005),
            drafted * DRAFT_S,
            0.0001,
            0.0003,
        )
        marks.append(RoundDone(stats, accepted + 1))
    return tuple(marks)


def ssd(rounds: int, hits: float = 0.82, chance: float = 0.8) -> tuple[RoundDone, ...]:
    """Return an answer whose drafts were mostly prepared; now and then the text repeats itself."""
    source = random.Random(3)
    marks = [PROMPT]
    for number in range(rounds):
        hit = source.random() < hits
        origin = DraftOrigin.AHEAD if hit else DraftOrigin.NGRAM if number % 7 == 3 else DraftOrigin.FRESH
        drafted = source.randint(3, 8)
        accepted = accepted_of(drafted, chance, source)
        verify_s = source.gauss(VERIFY_S + 0.0006 * drafted, 0.0005)
        late = origin is DraftOrigin.FRESH
        stats = RoundStats(
            drafted,
            accepted,
            origin,
            verify_s,
            drafted * DRAFT_S if late else 0.0,
            0.0004 if late else 0.00005,
            0.0003,
            verify_s * source.uniform(0.55, 0.98),
        )
        marks.append(RoundDone(stats, accepted + 1))
    return tuple(marks)


def summary_of(rounds: Sequence[RoundDone], mode: Mode) -> Summary:
    """Add up an answer as the engine does."""
    tally = Tally(40, mode)
    now_s = 0.0
    for mark in rounds:
        stats = mark.stats
        now_s += stats.seconds
        tally.add(stats, mark.tokens, now_s)
    return tally.summary()


def record_of(rounds: Sequence[RoundDone], mode: Mode, temperature: float = 0.0) -> AnswerRecord:
    """Return what is kept of an answer."""
    return AnswerRecord(
        mode,
        "asked for",
        EngineSettings(mode=mode),
        Sampling(temperature=temperature),
        7,
        "general",
        "target",
        "draft",
        summary_of(rounds, mode),
        tuple(rounds),
    )
