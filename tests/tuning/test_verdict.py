"""What is concluded from timed answers."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.benchmark.harness import Run
from localspec.benchmark.statistics import Interval, student_t_quantile
from localspec.tuning.confirm import compare
from localspec.tuning.words import verdict_words
from localspec.types.events import Summary
from localspec.types.request import Request
from tests.tuning.timed import (
    DEFAULTS,
    NGRAM,
    PLAIN,
    PLAIN_S,
    REQUESTS,
    SD,
    SSD,
    TimedModels,
    gains,
    run,
)


def test_the_fastest_beyond_doubt_wins() -> None:
    verdict = run(TimedModels(gains(sd=1.3, ssd=1.6)), SD, SSD)
    assert verdict.settings == SSD.settings
    assert [contender.name for contender in verdict.contenders] == ["plain", "best", "second"]
    plain, sd, ssd = verdict.contenders
    assert (plain.gain.value, plain.gain.low, plain.gain.high) == (1.0, 1.0, 1.0)
    assert sd.gain.low < 1.3 < sd.gain.high
    assert ssd.gain.low < 1.6 < ssd.gain.high
    assert ssd.rate.value == pytest.approx(plain.rate.value * ssd.gain.value)
    assert plain.rate.value == pytest.approx(1 / (PLAIN_S * 1.35))  # the mean pace over all prompts
    assert (sd.predicted, plain.predicted) == (130.0, None)
    assert verdict.reason.startswith("ssd with up to 6 drafted tokens runs at 1.6")


def test_drafting_that_loses_is_off_with_the_numbers() -> None:
    verdict = run(TimedModels(gains(sd=0.93)), SD)
    assert verdict.settings.mode == "off"
    assert verdict.reason.startswith("drafting would run at 0.93 x plain decoding, between 0.9")


def test_no_significant_winner_is_off_as_well() -> None:
    noise = np.random.default_rng(5)
    verdict = run(TimedModels(lambda request, number: PLAIN_S * float(noise.lognormal(0, 0.2))), SD)
    assert verdict.settings.mode == "off"
    gain = verdict.contenders[1].gain
    words = f"no reliable gain ({gain.value:.2f} x, could be {gain.low:.2f} to {gain.high:.2f})"
    assert verdict.reason.startswith(words)
    assert verdict_words(verdict.settings, gain, verdict.reason) == f"speculation stays off: {verdict.reason}"
    assert verdict.contenders[1].gain.low < 1.0 < verdict.contenders[1].gain.high


def test_of_contenders_that_cannot_be_reported_apart_the_simplest_wins() -> None:
    alike = run(TimedModels(gains(0.02, sd=1.50, ssd=1.52, ngram=1.3)), SSD, SD, NGRAM)
    assert alike.settings == SD.settings
    assert "; ssd with up to 6 drafted tokens, at 1.5" in alike.reason
    assert alike.reason.endswith(" x, is not faster beyond doubt")
    apart = run(TimedModels(gains(0.02, sd=1.42, ssd=1.5, ngram=1.3)), SSD, SD, NGRAM)
    assert apart.settings == SSD.settings


@pytest.mark.parametrize("change", [0.7, 1.4])
def test_drift_is_reported_and_measured_again_and_widens_the_intervals(change: float) -> None:
    def drifting(request: Request, number: int) -> float:
        return float(gains(sd=1.2)(request, number) / change ** (number / 25))

    calm = run(TimedModels(gains(sd=1.2)), SD, budget_s=12.0)
    models = TimedModels(drifting)
    verdict = run(models, SD, budget_s=12.0)
    assert (verdict.drift < 0.9) if change < 1 else (verdict.drift > 1.1)
    assert f"{'slower' if change < 1 else 'faster'} meanwhile" in verdict.reason
    assert len(models.measured) > 6 + 2 * len(REQUESTS)  # it did not stop with the fewest
    wide, narrow = (each.contenders[1].gain for each in (verdict, calm))
    assert wide.value == pytest.approx(1.2, rel=0.05)  # those alternately are hit alike
    assert wide.high / wide.low > narrow.high / narrow.low
    assert "meanwhile" not in calm.reason
    assert verdict.contenders[0].gain == Interval(1.0, 1.0, 1.0)
    runs = [
        Run(name, "", number, 0, Summary(tokens=11, decode_s=10 * pace))
        for name in ("plain", "best")
        for number, pace in enumerate((0.9, 1.0, 1.1))
    ]
    steady, drifted = (compare([PLAIN, SD], runs, drift)[0][1].gain for drift in (0.95, change))
    assert (steady.low, steady.high) == (1.0, 1.0)
    assert drifted.high == pytest.approx(max(change, 1 / change) ** (1 / 3))
    assert drifted.low == pytest.approx(1 / drifted.high)


@pytest.mark.slow
def test_equal_speeds_rarely_have_a_winner() -> None:
    wins = 0
    for seed in range(100):
        noise = np.random.default_rng(seed)
        models = TimedModels(lambda request, number: PLAIN_S * float(noise.lognormal(0, 0.08)))  # noqa: B023
        wins += run(models, SD, SSD, NGRAM, DEFAULTS, budget_s=30.0).settings.mode != "off"
    assert wins <= 5


@pytest.mark.slow
def test_small_true_gains_are_mostly_found() -> None:
    found = 0
    for seed in range(40):
        noise = np.random.default_rng(seed)

        def pace(request: Request, _number: int) -> float:
            return PLAIN_S * float(noise.lognormal(0, 0.05)) / (1.1 if request.settings.mode == "sd" else 1)  # noqa: B023

        found += run(TimedModels(pace), SD, SSD, budget_s=60.0).settings == SD.settings
    assert found >= 30


def test_quantiles_of_student_t_are_those_of_the_tables() -> None:
    table = {(0.975, 1): 12.706, (0.975, 7): 2.3646, (0.9875, 7): 2.8412, (0.95, 30): 1.6973, (0.5, 4): 0.0}
    for (chance, freedom), value in table.items():
        assert student_t_quantile(chance, freedom) == pytest.approx(value, rel=2e-3, abs=1e-9)
