"""Who is asked what, in which order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from localspec.benchmark.harness import WARM_UP_TOKENS, Anchor, Question, Run, Turn, interleave
from localspec.errors import EngineDied
from localspec.types.events import Summary
from localspec.types.request import Request

QUESTIONS = [
    Question("odd", Request("first", max_tokens=50)),
    Question("even", Request("second", max_tokens=50)),
    Question("odd", Request("third", max_tokens=50)),
]
Asked = list[tuple[str, str, int, int]]


class Noted:
    """A contender that notes what it is asked."""

    def __init__(self, name: str, asked: Asked, tokens: int = 5, decode_s: float = 1.0) -> None:
        self.name = name
        self._asked = asked
        self._summary = Summary(tokens=tokens, decode_s=decode_s)

    def answer(self, question: Question) -> Summary:
        asked = question.request
        self._asked.append((self.name, str(asked.prompt), asked.max_tokens or 0, asked.seed or 0))
        return self._summary

    def cancel(self) -> None:
        raise NotImplementedError

    def memory_peak(self) -> int | None:
        return None


@pytest.fixture
def asked() -> Asked:
    return []


def all_of(
    contenders: list[Noted], max_tokens: int = 50, repetitions: int = 1, asked: Asked | None = None
) -> list[Run | Anchor]:
    numbers = count(1)

    def anchor() -> float:
        if asked is not None:
            asked.append(("anchor", "", 0, 0))
        return float(next(numbers))

    questions = [each.asked(0, max_tokens) for each in QUESTIONS]
    found = interleave(contenders, questions, repetitions, anchor)
    return [each for each in found if not isinstance(each, Turn)]


def runs_of(found: list[Run | Anchor]) -> Iterator[Run]:
    return (each for each in found if isinstance(each, Run))


def test_every_prompt_meets_every_contender_and_the_order_moves_on(asked: Asked) -> None:
    found = list(runs_of(all_of([Noted(name, asked) for name in "abc"])))
    names = ["abc", "bca", "cab"]
    assert [(run.contender, run.prompt) for run in found] == [
        (name, number) for number, order in enumerate(names) for name in order
    ]
    assert [run.task for run in found] == ["odd"] * 3 + ["even"] * 3 + ["odd"] * 3
    assert [text for _, text, _, _ in asked[3:]] == ["first"] * 3 + ["second"] * 3 + ["third"] * 3


def test_repetitions_move_the_order_on_and_have_seeds_of_their_own_for_all_alike(asked: Asked) -> None:
    found = list(runs_of(all_of([Noted("a", asked), Noted("b", asked)], repetitions=3)))
    assert [(run.contender, run.prompt, run.repetition) for run in found[:6]] == [
        ("a", 0, 0), ("b", 0, 0), ("b", 0, 1), ("a", 0, 1), ("a", 0, 2), ("b", 0, 2)
    ]  # fmt: skip
    assert found[6].contender == "b"  # continues where the prompt before ended
    seeds = [seed for _, _, _, seed in asked[2:]]
    assert seeds[::2] == seeds[1::2]
    assert len(set(seeds)) == 9


def test_the_warm_up_is_short_and_not_counted(asked: Asked) -> None:
    found = all_of([Noted("a", asked), Noted("b", asked)], asked=asked)
    assert asked[:3] == [
        ("a", "first", WARM_UP_TOKENS, 0), ("b", "first", WARM_UP_TOKENS, 0), ("anchor", "", 0, 0)
    ]  # fmt: skip
    assert found[0] == Anchor(0, 1.0)
    assert len(list(runs_of(found))) == 6


def test_the_warm_up_is_no_longer_than_an_answer(asked: Asked) -> None:
    all_of([Noted("a", asked)], max_tokens=7)
    assert {tokens for _, _, tokens, _ in asked} == {7}


def test_an_anchor_stands_before_the_first_prompt_and_after_each(asked: Asked) -> None:
    found = all_of([Noted("a", asked), Noted("b", asked)], repetitions=2)
    places = [(place, each) for place, each in enumerate(found) if isinstance(each, Anchor)]
    assert places == [(5 * number, Anchor(number, number + 1.0)) for number in range(4)]


def test_without_an_anchor_contenders_alone_answer(asked: Asked) -> None:
    found = list(interleave([Noted("a", asked), Noted("b", asked)], QUESTIONS, 1, first_seed=4000))
    assert [type(each) for each in found] == [Turn] * 2 + [Turn, Run] * 6
    assert [seed for _, _, _, seed in asked] == [0, 0, 4000, 4000, 4001, 4001, 4002, 4002]


def test_answers_without_a_speed_are_left_out(asked: Asked) -> None:
    contenders = [Noted("one token", asked, 1), Noted("no time", asked, 5, 0.0), Noted("good", asked)]
    assert {run.contender for run in runs_of(all_of(contenders))} == {"good"}


def test_answers_come_as_they_are_made(asked: Asked) -> None:
    both = [Noted("a", asked), Noted("b", asked)]
    results = interleave(both, QUESTIONS, 1, lambda: 1.0)
    while not isinstance(next(results), Run):
        pass
    assert len(asked) == 3  # two warm-ups and the first answer


def test_who_answers_next_is_reported_before(asked: Asked) -> None:
    results = interleave([Noted("a", asked), Noted("b", asked)], QUESTIONS, 1, lambda: 1.0)
    turns = [
        (each.contender and each.contender.name, len(asked)) for each in results if isinstance(each, Turn)
    ]
    assert turns[:7] == [("a", 0), ("b", 1), (None, 2), ("a", 2), ("b", 3), (None, 4), ("b", 4)]


def test_the_error_of_a_contender_goes_through(asked: Asked) -> None:
    class Dying(Noted):
        def answer(self, question: Question) -> Summary:
            if question.request.prompt == "second":
                raise EngineDied("gone")
            return super().answer(question)

    results = interleave([Dying("a", asked)], QUESTIONS, 1, lambda: 1.0)
    seen: list[Run | Anchor] = []
    with pytest.raises(EngineDied, match="gone"):
        seen.extend(each for each in results if not isinstance(each, Turn))
    assert [type(each) for each in seen] == [Anchor, Run, Anchor]
