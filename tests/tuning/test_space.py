from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import get_args

import optuna
import pytest
from optuna.trial import Trial

from localspec.decoding.measurements import Costs, Overhead
from localspec.tuning.space import (
    Space,
    canonical,
    neighbours,
    space_of,
    starting_points,
    suggest,
)
from localspec.types.request import EngineSettings, Mode, Sampling

DRAWS = Space()
GREEDY = Space(draws=False)


def random_settings(space: Space, count: int = 200) -> list[EngineSettings]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    found: list[EngineSettings] = []

    def keep(trial: Trial) -> float:
        found.append(suggest(trial, space))
        return 0.0

    study.optimize(keep, n_trials=count)
    return found


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


@pytest.mark.parametrize(
    "space", [DRAWS, GREEDY, Space(("off", "ngram")), Space(max_fan_out=3, max_draft_length=2)]
)
def test_what_can_be_searched_stays_as_it_is(space: Space) -> None:
    for settings in random_settings(space):
        assert canonical(settings, space) == settings


def test_random_settings_stay_in_the_space_and_reach_all_of_it() -> None:
    space = Space(max_fan_out=5, max_draft_length=3)
    found = random_settings(space)
    assert {each.mode for each in found} == set(get_args(Mode))
    assert {each.draft_length for each in found if each.mode == "sd"} == {1, 2, 3}
    assert {each.fan_out_budget for each in found if each.mode == "ssd"} == {1, 2, 3, 4, 5}
    assert {each.min_confidence is None for each in found if each.mode == "ngram"} == {True, False}
    for mode, fallbacks in (("ngram", 1), ("sd", 2), ("ssd", 2)):
        assert len({each.fallback for each in found if each.mode == mode}) == fallbacks
    drawn = [each for each in found if each.mode == "ssd" and each.acceptance == "rejection"]
    assert all(0.3 <= each.draft_temperature <= 2.0 and 0.1 <= each.saguaro_c <= 1.0 for each in drawn)
    assert all(round(each.saguaro_c, 2) == each.saguaro_c for each in drawn)


@pytest.mark.parametrize(
    ("mode", "acceptance", "matter"),
    [
        ("off", "match", set()),
        ("ngram", "match", {"draft_length", "min_confidence"}),
        ("sd", "match", {"draft_length", "min_confidence", "acceptance", "fallback"}),
        ("sd", "rejection", {"draft_length", "min_confidence", "fallback", "draft_temperature"}),
        (
            "ssd",
            "match",
            {"draft_length", "min_confidence", "acceptance", "fan_out_budget", "fan_out_shape", "fallback"},
        ),
        (
            "ssd",
            "rejection",
            {
                "draft_length",
                "min_confidence",
                "fan_out_budget",
                "fan_out_shape",
                "fallback",
                "draft_temperature",
                "saguaro_c",
            },
        ),
    ],
)
def test_irrelevant_settings_stay_at_their_defaults(mode: Mode, acceptance: str, matter: set[str]) -> None:
    unusual = EngineSettings(mode, 3, 5, "uniform", 0.7, 0.5, "match", 0.25, "ngram")
    if acceptance == "rejection":
        unusual = replace(unusual, acceptance="rejection")
    found, plain = canonical(unusual, DRAWS), EngineSettings(mode=mode)
    names = EngineSettings.__slots__
    assert {name for name in names if getattr(found, name) != getattr(plain, name)} == matter


def test_a_greedy_target_leaves_nothing_to_draw_or_to_accept_by_another_rule() -> None:
    one = EngineSettings("ssd", acceptance="match", draft_temperature=0.5, saguaro_c=0.3)
    assert canonical(one, GREEDY) == EngineSettings("ssd")


def test_values_outside_are_moved_to_the_nearest() -> None:
    far = EngineSettings("ssd", 99, 99, draft_temperature=0.123456, saguaro_c=3.0, min_confidence=0.987)
    found = canonical(far, Space(max_draft_length=12, max_fan_out=24))
    assert (found.draft_length, found.fan_out_budget) == (12, 24)
    assert (found.draft_temperature, found.saguaro_c, found.min_confidence) == (0.3, 1.0, 0.9)
    assert canonical(replace(far, draft_temperature=0.7777), DRAWS).draft_temperature == 0.78


def test_a_mode_that_is_not_allowed_is_rejected() -> None:
    with pytest.raises(ValueError, match="ssd"):
        canonical(EngineSettings("ssd"), Space(("off", "sd")))


def costs(*modes: Mode, left_out: tuple[Mode, ...] = ()) -> Costs:
    """Return costs of modes that ran rounds, and of others that failed."""
    overheads = tuple(Overhead(mode, 1e-4) for mode in modes)
    return Costs((), overheads, tuple((mode, "it crashed") for mode in left_out))


def test_modes_follow_from_what_the_models_can_do() -> None:
    plain, every = Sampling(), costs("off", "ngram", "sd", "ssd")
    assert space_of(plain, every, has_draft=True).modes == ("off", "ngram", "sd", "ssd")
    assert space_of(plain, costs("off", "ngram", "sd"), has_draft=True).modes == ("off", "ngram", "sd")
    assert space_of(plain, every, has_draft=False).modes == ("off", "ngram")
    failed = costs("off", "sd", left_out=("ngram", "ssd"))
    assert space_of(plain, failed, has_draft=True).modes == ("off", "sd")
    nothing = costs(left_out=("ngram", "sd", "ssd"))
    assert space_of(plain, nothing, has_draft=True).modes == ("off",)
    assert space_of(plain, every, has_draft=True).draws
    assert not space_of(Sampling(temperature=0), every, has_draft=True).draws


def test_the_first_points_are_plain_decoding_llama_cpp_and_every_way() -> None:
    starts = starting_points(DRAWS)
    assert starts[0] == EngineSettings("off")
    assert starts[1] == EngineSettings("sd", 3, acceptance="match", min_confidence=0.0)
    pairs = product(("sd", "ssd"), ("match", "rejection"), (True, False))
    assert {(s.mode, s.acceptance, s.min_confidence is None) for s in starts} >= set(pairs)
    assert EngineSettings("ssd") in starts
    assert {s.mode for s in starts if s.fallback == "ngram"} == {"sd", "ssd"}
    assert len(set(starts)) == len(starts)
    assert starting_points(Space(("off",))) == (EngineSettings("off"),)


def test_neighbours_are_near_distinct_and_possible() -> None:
    for settings in random_settings(DRAWS, 60):
        near = neighbours(settings, DRAWS)
        assert settings not in near
        assert len(set(near)) == len(near)
        for other in near:
            assert canonical(other, DRAWS) == other
            assert other.mode == settings.mode
            names = [n for n in EngineSettings.__slots__ if getattr(other, n) != getattr(settings, n)]
            assert len(names) == 1
