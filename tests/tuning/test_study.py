from __future__ import annotations

import optuna
import pytest

from localspec.errors import Cancelled, EngineError
from localspec.tuning import study as study_module
from localspec.tuning.space import Space, starting_points, suggest
from localspec.tuning.study import Trial, search
from localspec.types.request import EngineSettings
from tests.tuning.fake_study import BEST_RATE, PLAIN_RATE, rate, simulate

SPACE = Space(max_fan_out=16)
TRIALS = 60


@pytest.fixture(scope="module")
def whole() -> tuple[Trial, ...]:
    """Return a whole study."""
    return tuple(search(simulate, SPACE, TRIALS))


def test_it_comes_close_to_the_optimum_where_random_search_does_not(whole: tuple[Trial, ...]) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3), direction="maximize")
    study.optimize(lambda trial: rate(suggest(trial, SPACE)), n_trials=TRIALS)
    found = max(each.tokens_per_s or 0.0 for each in whole)
    assert found > 0.9 * BEST_RATE
    assert found > study.best_value


def test_no_settings_are_tried_twice_and_the_numbers_count(whole: tuple[Trial, ...]) -> None:
    assert len({each.settings for each in whole}) == len(whole) == TRIALS
    assert [each.number for each in whole] == list(range(len(whole)))
    rates = [each.tokens_per_s or 0.0 for each in whole]
    assert [each.is_best for each in whole] == [
        value > max([0.0, *rates[:number]]) for number, value in enumerate(rates)
    ]


def test_default_settings_are_tried_first_and_to_the_end_whatever_they_reach() -> None:
    trials = len(starting_points(SPACE))
    tried = tuple(search(simulate, SPACE, trials))
    assert [each.settings for each in tried] == list(starting_points(SPACE))
    assert all(each.tokens_per_s is not None for each in tried)


def test_a_space_without_choice_ends_after_plain_decoding() -> None:
    tried = tuple(search(simulate, Space(("off",))))
    assert [each.settings for each in tried] == [EngineSettings("off")]
    assert tried[0].tokens_per_s == PLAIN_RATE


def test_the_same_seed_makes_the_same_trials(whole: tuple[Trial, ...]) -> None:
    assert tuple(search(simulate, SPACE, TRIALS)) == whole
    assert tuple(search(simulate, SPACE, TRIALS, seed=1)) != whole


def test_failures_have_a_reason_and_no_figure() -> None:
    def fragile(settings: EngineSettings) -> float:
        if settings.mode == "off":
            return 0.0
        if settings.mode == "ngram":
            raise EngineError("nothing repeats\nat all")
        if settings.mode == "ssd":
            raise MemoryError
        if settings.acceptance == "match":
            raise KeyError("token")
        return rate(settings)

    tried = tuple(search(fragile, SPACE, 30))
    reasons = {
        "off": {"ValueError: the simulation gave 0.0 tokens per second"},
        "ngram": {"nothing repeats"},
        "ssd": {"out of memory"},
        "sd": {"KeyError: 'token'", ""},
    }
    for each in tried:
        assert each.failure in reasons[each.settings.mode]
        assert each.tokens_per_s is None or not each.failure
        assert not (each.failure and each.is_best)
    assert {each.failure for each in tried if each.settings.mode == "ssd"} >= {"out of memory"}


def test_a_cancel_goes_through() -> None:
    def cancelled(settings: EngineSettings) -> float:
        if settings.mode == "ssd":
            raise Cancelled
        return rate(settings)

    with pytest.raises(Cancelled):
        list(search(cancelled, SPACE))


def test_it_stops_when_its_time_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr("localspec.tuning.study.time.perf_counter", lambda: float(next(clock)))
    assert len(tuple(search(simulate, SPACE, TRIALS, budget_s=5.5))) == 5  # each takes a second


def test_it_stops_when_nothing_improves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_module, "PATIENCE", 20)
    tried = tuple(search(lambda *_: 50.0, SPACE, 100))
    assert len(tried) == 21
    assert [each.number for each in tried if each.is_best] == [0]


def test_optuna_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    list(search(simulate, SPACE, 30))
    assert capfd.readouterr() == ("", "")
