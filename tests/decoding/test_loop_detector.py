"""Answers that go in circles are noticed, and those that repeat something for a reason are not."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest

from localspec.decoding.rounds import Round
from localspec.decoding.tally import Stopwatch, Tally
from localspec.decoding.text import COPIES, TOKENS, AnswerEvents, AnswerText, Circles, LoopDetector
from localspec.types.drafts import DraftOrigin, Provenance
from localspec.types.events import Finished, RoundStats, TextDelta

NEW = range(10_000, 20_000)


class Numbers:
    """Spells each token as a number."""

    has_pending = False

    def feed(self, token: int) -> str:
        return f"{token} "

    def flush(self) -> str:
        return ""

    def piece(self, token: int) -> bytes:
        return b"%d" % token


def noticed_at(tokens: Iterable[int]) -> int | None:
    """Return after how many tokens a circle is noticed."""
    circles = LoopDetector()
    return next((number for number, token in enumerate(tokens, 1) if circles.add(token)), None)


def circling(length: int, before: int = 50) -> Iterator[int]:
    """Yield different tokens, and then a stretch of them over and over."""
    yield from NEW[:before]
    while True:
        yield from range(length)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 50, 85, 86, 100, 400])
@pytest.mark.parametrize("before", [0, 50])
def test_a_circle_is_noticed_after_three_copies_and_not_before_a_screenful(length: int, before: int) -> None:
    whole = max(COPIES * length, TOKENS)
    assert noticed_at(circling(length, before)) == before + whole


def test_a_circle_whose_stretch_repeats_itself_within_is_noticed() -> None:
    stretch = [*range(20), *range(20), *range(15), 99]
    found = noticed_at([*NEW[:30], *stretch * 10])
    assert found is not None
    assert found <= 30 + 6 * len(stretch)


def test_a_circle_that_begins_in_the_midst_of_another_is_noticed() -> None:
    first, second = list(range(40)), list(range(20, 60))
    found = noticed_at([*first * 4, *NEW[:3], *second * 20])
    assert found is not None
    assert found <= 4 * 40 + 3 + TOKENS + len(second)


@pytest.mark.parametrize(
    "text",
    [
        range(5000),
        [*range(600), *NEW[:100], *range(600), *NEW[100:200], *range(600)],  # quoted twice, with remarks
        [*range(600), *range(600)],  # once more from the beginning
        [0] * (TOKENS - 1),  # a line of dashes
        [token for row in range(200) for token in (*range(12), NEW[row])],  # a table: each row has its number
        random.Random(1).choices(range(3), k=5000),  # zeros and ones
    ],
    ids=["new", "quoted", "twice", "short", "table", "random"],
)
def test_what_changes_or_ends_is_not_a_circle(text: Iterable[int]) -> None:
    assert noticed_at(text) is None


def answered(limit: int | None, circles: Circles = "end_unlimited") -> tuple[int, Finished]:
    """Return how many tokens of an endless circle are shown, and how the answer ends."""
    tally, per_round = Tally(3, "sd"), 5
    text, watch = AnswerText(Numbers(), ()), Stopwatch()
    answer = AnswerEvents(text, tally, frozenset(), watch, limit, circles=circles)

    def rounds() -> Iterator[Round]:
        endless, stats = circling(7, before=0), RoundStats(4, 4, DraftOrigin.FRESH, 0.1, 0.0, 0.0, 0.0)
        while tally.tokens < (limit or 2 * TOKENS):
            tokens = tuple(next(endless) for _ in range(per_round))
            yield Round(tokens, (Provenance.ACCEPTED,) * per_round, stats)

    events = [*answer.events(rounds()), *answer.finish(answer.ending, 0)]  # type: ignore[arg-type]
    shown = "".join(event.text for event in events if isinstance(event, TextDelta))
    end = events[-1]
    assert isinstance(end, Finished)
    return len(shown.split()), end


def test_an_answer_without_a_limit_ends_in_circles() -> None:
    shown, end = answered(None)
    assert (shown, end.reason) == (TOKENS, "circles")


def test_an_answer_that_ignores_circles_continues() -> None:
    shown, end = answered(None, "go_on")
    assert shown >= 2 * TOKENS
    assert end.reason == "context"


def test_an_answer_with_a_limit_continues_to_it() -> None:
    shown, end = answered(1000)
    assert (shown, end.reason) == (1000, "length")


def test_an_answer_may_end_in_circles_before_its_limit() -> None:
    shown, end = answered(1000, "end")
    assert (shown, end.reason) == (TOKENS, "circles")
