from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from localspec.errors import Cancelled, EngineError, StoreError
from localspec.tuning import study as study_module
from localspec.tuning.space import Space, starting_points, suggest
from localspec.tuning.study import Search, StudyFile, StudyKey, Tried, search
from localspec.types import EngineSettings
from tests.tuning.fake_study import BEST_RATE, PLAIN_RATE, rate, ready, simulate

SPACE = Space(max_fan_out=16)
KEY = StudyKey("coding on a toy pair", "evidence")
WISH = Search(SPACE, trials=60)


def essence(tried: Iterable[Tried]) -> list[object]:
    """Return what must not depend on whether a study was interrupted."""
    return [replace(each, kept=False, seconds=0.0) for each in tried]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tried, ...]:
    """Return a study that nothing interrupted."""
    return tuple(search(simulate, WISH, ready(tmp_path_factory.mktemp("whole") / "s.db"), KEY))


def test_it_comes_close_to_the_optimum_where_random_search_does_not(whole: tuple[Tried, ...]) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3), direction="maximize")
    study.optimize(lambda trial: rate(suggest(trial, SPACE)), n_trials=WISH.trials)
    found = max(each.tokens_per_s or 0.0 for each in whole)
    assert found > 0.9 * BEST_RATE
    assert found > study.best_value


def test_no_settings_are_tried_twice_and_the_numbers_count(whole: tuple[Tried, ...]) -> None:
    assert len({each.settings for each in whole}) == len(whole) == WISH.trials
    assert [each.number for each in whole] == list(range(len(whole)))
    rates = [each.tokens_per_s or 0.0 for each in whole]
    assert [each.is_best for each in whole] == [
        value > max([0.0, *rates[:number]]) for number, value in enumerate(rates)
    ]


def test_usual_settings_are_tried_first_and_to_the_end_whatever_they_reach(tmp_path: Path) -> None:
    wish = Search(SPACE, trials=len(starting_points(SPACE)))
    tried = tuple(search(simulate, wish, ready(tmp_path / "s.db"), KEY))
    assert [each.settings for each in tried] == list(starting_points(SPACE))
    assert all(each.tokens_per_s is not None for each in tried)


def test_a_space_without_choice_ends_after_plain_decoding(tmp_path: Path) -> None:
    tried = tuple(search(simulate, Search(Space(("off",))), ready(tmp_path / "s.db"), KEY))
    assert [each.settings for each in tried] == [EngineSettings("off")]
    assert tried[0].tokens_per_s == PLAIN_RATE


@pytest.mark.parametrize("stopped_after", [1, 20, 45])
def test_an_abandoned_study_goes_on_as_if_it_had_not_been(
    tmp_path: Path, whole: tuple[Tried, ...], stopped_after: int
) -> None:
    path = ready(tmp_path / "s.db")
    first = search(simulate, WISH, path, KEY)
    assert len(list(islice(first, stopped_after))) == stopped_after
    del first
    again = tuple(search(simulate, WISH, path, KEY))
    assert [each.kept for each in again] == [number < stopped_after for number in range(WISH.trials)]
    assert essence(again) == essence(whole)


def test_a_killed_study_goes_on_as_if_it_had_not_been(tmp_path: Path, whole: tuple[Tried, ...]) -> None:
    path = ready(tmp_path / "s.db")
    code = """
        import os, signal, sys
        from pathlib import Path
        from localspec.tuning.study import search
        from tests.tuning.test_study import KEY, WISH, rate

        calls = 0
        def deadly(settings):
            global calls
            calls += 1
            if calls == 30:
                os.kill(os.getpid(), signal.SIGKILL)
            return rate(settings)

        list(search(deadly, WISH, Path(sys.argv[1]), KEY))
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path)], env=environment, timeout=120, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    again = tuple(search(simulate, WISH, path, KEY))
    assert sum(each.kept for each in again) > 20
    assert essence(again) == essence(whole)


def test_a_trial_that_somebody_else_left_running_does_not_count(
    tmp_path: Path, whole: tuple[Tried, ...]
) -> None:
    path = ready(tmp_path / "s.db")
    list(search(simulate, replace(WISH, trials=25), path, KEY))
    with StudyFile(path) as file:
        study = file.study(KEY.name(SPACE, 3))
        study.ask()
        study.enqueue_trial({"mode": "off"})
    assert essence(search(simulate, WISH, path, KEY)) == essence(whole)


def test_other_evidence_or_another_space_begins_a_new_study(tmp_path: Path) -> None:
    path, few = ready(tmp_path / "s.db"), replace(WISH, trials=3)
    for key, wish in (
        (KEY, few),
        (replace(KEY, digest="other costs"), few),
        (KEY, replace(few, space=Space(max_fan_out=8))),
    ):
        assert not any(each.kept for each in search(simulate, wish, path, key))
    assert all(each.kept for each in search(simulate, few, path, KEY))


def test_failures_have_a_reason_and_no_figure_also_when_read_again(tmp_path: Path) -> None:
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

    path, wish = ready(tmp_path / "s.db"), replace(WISH, trials=30)
    tried = tuple(search(fragile, wish, path, KEY))
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
    assert essence(search(fragile, wish, path, KEY)) == essence(tried)


def test_a_cancel_goes_through_and_leaves_no_trial(tmp_path: Path) -> None:
    path = ready(tmp_path / "s.db")

    def cancelled(settings: EngineSettings) -> float:
        if settings.mode == "ssd":
            raise Cancelled
        return rate(settings)

    with pytest.raises(Cancelled):
        list(search(cancelled, WISH, path, KEY))
    kept = tuple(search(simulate, replace(WISH, trials=0), path, KEY))
    assert kept
    assert all(each.tokens_per_s for each in kept)


def test_it_stops_when_its_time_is_spent_also_by_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr("localspec.tuning.study.time.perf_counter", lambda: float(next(clock)))
    path, wish = ready(tmp_path / "s.db"), replace(WISH, budget_s=5.5)
    assert len(tuple(search(simulate, wish, path, KEY))) == 6  # each takes a second
    assert all(each.kept for each in search(simulate, wish, path, KEY))
    assert len(tuple(search(simulate, replace(wish, budget_s=7.5), path, KEY))) == 8


def test_it_stops_when_nothing_improves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_module, "PATIENCE", 20)
    tried = tuple(search(lambda *_: 50.0, Search(SPACE, trials=100), ready(tmp_path / "s.db"), KEY))
    assert len(tried) == 21
    assert [each.number for each in tried if each.is_best] == [0]


def test_the_file_tells_a_person_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "s.db"
    list(search(simulate, replace(WISH, trials=20), path, KEY))
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    (summary,) = optuna.get_all_study_summaries(storage)
    assert summary.study_name.startswith("coding on a toy pair [")
    assert summary.direction.name == "MAXIMIZE"
    assert "tokens per second" in summary.user_attrs["value"]
    study = optuna.load_study(study_name=summary.study_name, storage=storage)
    storage.engine.dispose()
    assert study.trials[0].params == {"mode": "off"}
    assert study.trials[0].value == PLAIN_RATE
    assert path.stat().st_mode & 0o077 == 0


def test_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.write_bytes(b"these are not the studies that you are looking for" * 100)
    assert len(tuple(search(simulate, replace(WISH, trials=2), path, KEY))) == 2
    assert (tmp_path / "s.db.damaged").read_bytes().startswith(b"these are not")


def test_a_file_of_another_release_is_set_aside(tmp_path: Path) -> None:
    path = ready(tmp_path / "s.db")
    list(search(simulate, replace(WISH, trials=2), path, KEY))
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = 'v999'")
    connection.execute("UPDATE version_info SET schema_version = 999")
    connection.commit()
    connection.close()
    assert not any(each.kept for each in search(simulate, replace(WISH, trials=2), path, KEY))
    assert (tmp_path / "s.db.damaged").exists()


def test_a_file_that_cannot_be_opened_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "s.db").mkdir()
    with pytest.raises(StoreError, match=r"s\.db"):
        list(search(simulate, WISH, tmp_path / "s.db", KEY))


def test_optuna_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    list(search(simulate, replace(WISH, trials=30), ready(tmp_path / "s.db"), KEY))
    assert capfd.readouterr() == ("", "")


def test_trials_of_others_are_passed_over(tmp_path: Path, whole: tuple[Tried, ...]) -> None:
    path = ready(tmp_path / "s.db")
    with StudyFile(path) as file:
        file.study(KEY.name(SPACE, 3)).add_trial(create_trial(state=TrialState.FAIL))
    assert essence(search(simulate, WISH, path, KEY)) == essence(whole)
