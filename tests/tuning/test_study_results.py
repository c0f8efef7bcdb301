from __future__ import annotations

from dataclasses import replace

from localspec.tuning.space import Space
from localspec.tuning.study import Trial, best, predicted
from localspec.types.request import EngineSettings

SPACE = Space()
SSD = EngineSettings("ssd", 6, 8)


def tried(*found: tuple[EngineSettings, float | None]) -> tuple[Trial, ...]:
    return tuple(Trial(number, settings, value) for number, (settings, value) in enumerate(found))


def test_candidates_differ_in_behaviour() -> None:
    found = best(
        tried(
            (SSD, 100.0),
            (replace(SSD, draft_length=16), 100.0),  # the same figure: the limit was never reached
            (replace(SSD, draft_temperature=1.05), 99.0),  # nearly the same settings
            (replace(SSD, fan_out_budget=16), 98.0),
            (replace(SSD, draft_length=3), 97.0),
            (replace(SSD, draft_length=1), 96.0),
        )
    )
    assert [each.estimate for each in found] == [100.0, 98.0, 97.0]
    assert found[0].settings == SSD


def test_the_best_of_a_close_mode_has_a_place_among_the_candidates() -> None:
    others = tuple((replace(SSD, draft_length=length), 100.0 - length) for length in (1, 3, 5, 7))
    assert [each.settings.mode for each in best(tried(*others, (EngineSettings("sd"), 91.0)))] == [
        "ssd",
        "ssd",
        "sd",
    ]
    assert all(each.settings.mode == "ssd" for each in best(tried(*others, (EngineSettings("sd"), 80.0))))


def test_plain_decoding_and_failures_are_not_candidates() -> None:
    failed = Trial(4, replace(SSD, draft_length=4), None, "out of memory")
    found = best([*tried((EngineSettings("off"), 200.0), (SSD, 100.0)), failed])
    assert [each.settings for each in found] == [SSD]
    assert best(tried((EngineSettings("off"), 200.0))) == ()


def test_predictions_are_found_for_settings_that_behave_alike() -> None:
    all_of_them = tried((EngineSettings("off"), 60.0), (EngineSettings("sd", 3, min_confidence=0.0), 80.0))
    greedy = Space(draws=False)
    llama_cpp = EngineSettings("sd", 3, acceptance="match", min_confidence=0.0)
    assert predicted(all_of_them, llama_cpp, greedy) == 80.0
    assert predicted(all_of_them, EngineSettings("off", 3), greedy) == 60.0
    assert predicted(all_of_them, SSD, greedy) is None
    assert predicted(all_of_them, SSD, Space(("off",))) is None
