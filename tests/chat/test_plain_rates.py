from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.chat.plain_rates import PlainRates
from localspec.types.events import ModeChanged, Summary
from tests.chat.talk import rates, record

SUMMARY = Summary(prompt_tokens=1000, tokens=101, decode_s=2.0)


@pytest.mark.parametrize(
    ("points", "depth", "expected"),
    [
        ([], 100, None),
        ([(100, 30.0)], 100, 30.0),
        ([(100, 30.0)], 356, 30.0),
        ([(100, 30.0)], 357, None),
        ([(4000, 30.0)], 3000, 30.0),
        ([(4000, 30.0)], 5000, 30.0),
        ([(4000, 30.0)], 2999, None),
        ([(4000, 30.0)], 5001, None),
        ([(0, 40.0), (4000, 20.0)], 2000, 1 / ((1 / 40 + 1 / 20) / 2)),
        ([(4000, 20.0), (0, 40.0)], 1000, 1 / (0.75 / 40 + 0.25 / 20)),
        ([(0, 40.0), (4000, 20.0)], 4000, 20.0),
        ([(0, 40.0), (4000, 20.0)], 9000, None),
        ([(100, 30.0), (110, 20.0)], 100, 20.0),
        ([(100, 0.0)], 100, None),
    ],
)
def test_a_plain_rate_is_measured_near_or_on_both_sides(
    points: list[tuple[int, float]], depth: int, expected: float | None
) -> None:
    assert rates(*points).at(depth) == (None if expected is None else pytest.approx(expected))


def test_plain_answers_are_measurements_and_others_are_not() -> None:
    known = PlainRates()
    stepped = replace(record("ssd", SUMMARY), changes=(ModeChanged("off", "it loses"),))
    short = record("off", replace(SUMMARY, tokens=16))
    for useless in (record("sd", SUMMARY), stepped, replace(stepped, mode="off"), short):
        known.learn(useless)
        assert known.at(1050) is None
    known.learn(record("off", SUMMARY))
    assert known.at(1050) == pytest.approx(50.0)
