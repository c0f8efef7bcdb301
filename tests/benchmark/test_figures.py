"""Figures of timed answers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isnan

import pytest

from localspec.benchmark.figures import Row, SpeedTable, table
from localspec.benchmark.harness import Anchor, Run
from localspec.types.events import Summary


def run(contender: str, prompt: int, seconds: float, tokens: int = 101, **sums: object) -> Run:
    repetition = sums.pop("repetition", 0)
    task = sums.pop("task", "task")
    summary = Summary(tokens=tokens, decode_s=seconds, **sums)  # type: ignore[arg-type]
    return Run(contender, str(task), prompt, int(str(repetition)), summary)


def anchors(*seconds: float) -> list[Anchor]:
    return [Anchor(number, each) for number, each in enumerate(seconds)]


EVEN = anchors(*[0.02] * 11)


def found(runs: Sequence[Run], seen: Sequence[Anchor] = EVEN, names: str = "ab") -> SpeedTable:
    return table(runs, seen, dict.fromkeys(names))


def only(runs: Sequence[Run]) -> Row:
    (row,) = found(runs, names="a").rows
    return row


def both(seconds: Sequence[tuple[float, float]]) -> list[Run]:
    """Return the answers of two contenders to some prompts."""
    return [
        run(name, n, each) for n, pair in enumerate(seconds) for name, each in zip("ab", pair, strict=True)
    ]


def test_figures_add_up_over_answers() -> None:
    row = only([
        run("a", 0, 1.0, 101, rounds=50, drafted=100, accepted=50, hits=30, misses=20, verify_s=0.6,
            draft_s=0.3, python_s=0.1, prompt_s=0.5, prompt_tokens=90, cached_tokens=40, first_token_s=0.6),
        run("a", 1, 3.0, 51, rounds=25, drafted=100, accepted=0, hits=10, misses=40, verify_s=2.5, wait_s=0.5,
            prompt_s=0.5, prompt_tokens=150, first_token_s=0.2),
        run("a", 2, 0.0001, 2, rounds=1, first_token_s=0.3),
    ])  # fmt: skip
    assert (row.contender, row.task, row.answers) == ("a", "task", 3)
    assert row.tokens_per_round == pytest.approx(151 / 76)
    assert row.drafted == pytest.approx(200 / 76)
    assert row.acceptance == pytest.approx(0.25)
    assert row.hit_rate == pytest.approx(0.4)
    assert (row.verify_s, row.draft_s, row.wait_s, row.python_s) == pytest.approx(
        (3.1 / 76, 0.3 / 76, 0.5 / 76, 0.1 / 76)
    )
    assert row.of_bound == pytest.approx(3.4 / 4.0)
    assert row.prompt_tokens_per_s == pytest.approx(200.0)
    assert row.first_token_s == pytest.approx(0.3)


def test_acceptance_by_position_is_of_what_was_judged() -> None:
    row = only([
        run("a", 0, 1.0, drafted_at=(10, 4), accepted_at=(6, 1)),
        run("a", 1, 1.0, drafted_at=(10, 4, 1), accepted_at=(8, 3, 1)),
        run("a", 2, 1.0),
    ])  # fmt: skip
    assert row.accepted_at == pytest.approx((0.7, 0.5, 1.0))


def test_what_no_one_can_know_is_none() -> None:
    row = only([run("a", number, 1.0, drafted=40, accepted=10) for number in range(3)])
    assert row.acceptance == pytest.approx(0.25)
    assert (row.tokens_per_round, row.drafted, row.hit_rate, row.of_bound) == (None, None, None, None)
    assert (row.verify_s, row.draft_s, row.wait_s, row.python_s) == (None, None, None, None)
    assert (row.prompt_tokens_per_s, row.memory_peak, row.accepted_at) == (None, None, ())
    assert only([run("a", 0, 1.0, rounds=5)]).acceptance is None


def test_the_speed_weighs_prompts_alike_and_has_an_interval() -> None:
    even = only([run("a", number, 1.0 + number, 101 + 100 * number) for number in range(3)]).tokens_per_s
    assert (even.value, even.low, even.high) == pytest.approx((100.0, 100.0, 100.0))
    uneven = only([run("a", 0, 1.0), run("a", 1, 2.0), run("a", 2, 3.0, 1001)]).tokens_per_s
    assert uneven.value == pytest.approx(3 / (0.01 + 0.02 + 0.003))
    assert uneven.low < uneven.value / 2 < 2 * uneven.value < uneven.high  # three prompts that differ so much


def test_repetitions_count_for_one_prompt() -> None:
    once = [run("a", 0, 1.0), run("a", 1, 2.0), run("a", 2, 3.0)]
    again = [run("a", each.prompt, each.summary.decode_s, repetition=1) for each in once]
    assert only([*once, *again]).tokens_per_s == only(once).tokens_per_s


def test_one_prompt_reports_no_spread() -> None:
    speed = only([run("a", 0, 2.0), run("a", 0, 4.0, repetition=1)]).tokens_per_s
    assert speed.value == pytest.approx(100 / 3)
    assert isnan(speed.low)
    assert isnan(speed.high)


def test_the_others_are_compared_with_the_first_prompt_by_prompt() -> None:
    seen = found(both([(2.0, 1.0), (4.0, 2.0), (1.0, 0.5), (8.0, 4.0)]))
    plain, other = seen.rows
    assert (seen.comparable, seen.reason) == (True, "")
    assert plain.against is None
    assert other.against is not None
    assert (other.against.value, other.against.low, other.against.high) == pytest.approx((2.0, 2.0, 2.0))
    assert plain.tokens_per_s.low < 0.5 * plain.tokens_per_s.value  # prompts differ widely, pairs do not


def test_whole_answers_are_compared_with_the_time_before_their_first_token() -> None:
    runs = [run("a", n, 2.0, first_token_s=1.0) for n in range(3)]
    runs += [run("b", n, 1.0, first_token_s=0.5 + n) for n in range(3)]
    _, other = found(runs).rows
    assert other.against is not None
    assert other.whole_against is not None
    assert other.against.value == pytest.approx(2.0)
    assert other.whole_against.value == pytest.approx(9.0 / 7.5)


def test_repetitions_are_compared_with_their_like() -> None:
    runs = both([(2.0, 1.0)] * 3)
    runs += [run("a", 0, 90.0, repetition=1), run("b", 0, 45.0, repetition=1)]
    runs += [run("a", 0, 2000.0, repetition=2)]  # the other did not answer again
    against = found(runs).rows[1].against
    assert against is not None
    assert against.value == pytest.approx(2.0)


def test_prompts_that_only_one_answered_are_not_compared() -> None:
    runs = [*both([(2.0, 1.0)] * 3), run("a", 3, 900.0), run("b", 4, 900.0)]
    against = found(runs).rows[1].against
    assert against is not None
    assert against.value == pytest.approx(2.0)


def test_tasks_come_in_order_and_all_only_of_several() -> None:
    runs = [
        run(name, number, seconds, task=task)
        for number, task in enumerate(["story", "code", "story", "code"])
        for name, seconds in (("b", 1.0), ("a", 2.0))
    ]
    rows = found(runs).rows
    assert [(row.task, row.contender, row.answers) for row in rows] == [
        ("story", "a", 2), ("story", "b", 2), ("code", "a", 2), ("code", "b", 2), ("all", "a", 4),
        ("all", "b", 4),
    ]  # fmt: skip
    assert [row.against.value for row in rows if row.against is not None] == pytest.approx([2.0] * 3)
    assert {row.task for row in found(both([(2.0, 1.0)] * 4)).rows} == {"task"}


def test_contenders_keep_their_order_and_peaks() -> None:
    runs = [run(name, number, 1.0) for number in range(3) for name in "zyx"]
    rows = table(runs, EVEN, {"x": 5, "y": None, "absent": 3, "z": 7}).rows
    assert [(row.contender, row.memory_peak) for row in rows] == [("x", 5), ("y", None), ("z", 7)]


def test_prompts_during_which_the_machine_changed_are_not_compared() -> None:
    seconds = [(2.0, 1.0), (2.0, 1.0), (2.0, 9.0), (2.0, 1.0), (9.0, 1.0), (2.0, 1.0)]
    paces = [0.020, 0.021, 0.022, 0.025, 0.025, 0.020, 0.020]  # slowly up to 10 %, 14 % and back again
    seen = found(both(seconds), anchors(*paces))
    assert seen.drift.disturbed == (2, 4)
    assert seen.drift.worst == pytest.approx(0.25)
    assert seen.comparable
    against = seen.rows[1].against
    assert against is not None
    assert (against.value, against.high) == pytest.approx((2.0, 2.0))
    assert seen.rows[1].answers == 6


def test_slow_drift_disturbs_nothing_that_is_paired() -> None:
    paces = [0.02 * 1.05**number for number in range(9)]
    assert max(after / before for before, after in pairwise(paces)) < 1.1
    seen = found(both([(2.0, 1.0)] * 8), anchors(*paces))
    assert (seen.comparable, seen.drift.disturbed) == (True, ())


def test_half_disturbed_still_compares_and_more_does_not() -> None:
    runs = both([(2.0, 1.0)] * 6)
    assert found(runs, anchors(1.0, 1.2, 1.0, 1.2, 1.2, 1.2, 1.2)).comparable
    assert not found(runs, anchors(1.0, 1.2, 1.0, 1.2, 1.0, 1.0, 1.0)).comparable


def test_where_most_prompts_are_disturbed_nothing_is_compared() -> None:
    seen = found(both([(2.0, 1.0)] * 7), anchors(1.0, 1.2, 1.0, 1.2, 1.5, 1.5, 1.5, 1.5))
    assert (seen.comparable, seen.drift.disturbed) == (False, (0, 1, 2, 3))
    assert {row.against for row in seen.rows} == {None}
    assert "more than 10% during 4 of 7 prompts, at worst by 25%" in seen.reason
    assert [row.answers for row in seen.rows] == [7, 7]


def test_too_few_prompts_are_not_compared() -> None:
    two = found(both([(2.0, 1.0)] * 2))
    assert (two.comparable, two.rows[1].against) == (False, None)
    assert "needs 3 prompts" in two.reason
    assert two.reason.endswith("got 2")
    disturbed = found(both([(2.0, 1.0)] * 4), anchors(1.0, 1.2, 1.0, 1.0, 1.0))
    assert disturbed.reason.endswith("got 2")
    assert found(both([(2.0, 1.0)] * 3)).comparable


def test_a_prompt_that_was_not_ended_is_not_compared() -> None:
    runs = [*both([(2.0, 1.0)] * 3), run("a", 3, 50.0), run("b", 3, 1.0)]
    seen = found(runs, EVEN[:4])
    assert seen.comparable
    against = seen.rows[1].against
    assert against is not None
    assert against.value == pytest.approx(2.0)
    assert not found(runs, EVEN[:3]).comparable


def test_one_contender_alone_has_nothing_to_compare() -> None:
    seen = found([run("a", 0, 1.0)], names="a")
    assert (seen.comparable, seen.reason) == (True, "")


def test_nothing_answered_is_a_table_without_rows() -> None:
    seen = found([], EVEN[:1])
    assert (seen.rows, seen.comparable, seen.drift.worst) == ((), False, 0.0)
    assert table([], [], {}).rows == ()
