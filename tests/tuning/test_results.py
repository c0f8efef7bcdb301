"""Results on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.errors import StoreError
from localspec.tuning.events import (
    ConfirmedContender,
    Dropped,
    TaskResult,
)
from localspec.tuning.run_folder import RunFolder
from localspec.types import EngineSettings, Interval

PLAIN = ConfirmedContender(
    "plain", EngineSettings(mode="off"), None, Interval(50.0, 49.0, 51.0), Interval(1.0, 1.0, 1.0)
)
BEST = ConfirmedContender(
    "best",
    EngineSettings(mode="ssd", min_confidence=0.3, fallback="ngram"),
    72.5,
    Interval(70.0, 68.0, 72.0),
    Interval(1.4, 1.35, 1.45),
)
RESULT = TaskResult("coding", BEST.settings, "ssd runs at 1.40 x", (PLAIN, BEST), 150, 80.5, 0.98)


def path() -> Path:
    return RunFolder("pair").path / "result-coding.json"


def test_a_result_comes_back_as_it_was() -> None:
    assert RunFolder("pair").result("coding") is None
    RunFolder("pair").keep(RESULT)
    assert RunFolder("pair").result("coding") == RESULT
    assert path().stat().st_mode & 0o777 == 0o600
    assert path().parent.stat().st_mode & 0o777 == 0o700
    dropped = replace(RESULT, dropped=(Dropped("second", "it crashed"),), quick=True)
    RunFolder("pair").keep(dropped)
    assert RunFolder("pair").result("coding") == dropped
    off = replace(RESULT, settings=PLAIN.settings)
    RunFolder("pair").keep(off)
    assert RunFolder("pair").result("coding") == off
    assert RunFolder("other").result("coding") is None


def test_all_results_of_a_pair_are_found_and_one_is_forgotten() -> None:
    writing = replace(RESULT, task="writing")
    for result in (writing, RESULT):
        RunFolder("pair").keep(result)
    assert RunFolder("pair").results() == (RESULT, writing)
    RunFolder("pair").forget("coding")
    RunFolder("pair").forget("coding")
    assert RunFolder("pair").results() == (writing,)


def damaged(*keys: str | int, value: object) -> str:
    whole = json.loads(path().read_text())
    place = whole
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return json.dumps(whole)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("schema",), 2),
        (("result", "task"), "writing"),
        (("result", "settings", "mode"), "faster"),
        (("result", "settings", "draft_length"), 99),
        (("result", "contenders", 1, "rate", "low"), "68"),
        (("result", "drift"), float("nan")),
        (("result",), []),
    ],
)
def test_a_damaged_file_is_as_good_as_none(keys: tuple[str | int, ...], value: object) -> None:
    RunFolder("pair").keep(RESULT)
    path().write_text(damaged(*keys, value=value))
    assert RunFolder("pair").result("coding") is None
    assert RunFolder("pair").results() == ()
    RunFolder("pair").keep(RESULT)
    assert RunFolder("pair").result("coding") == RESULT


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00"])
def test_a_file_that_is_no_result_is_as_good_as_none(text: str) -> None:
    RunFolder("pair").keep(RESULT)
    path().write_text(text)
    assert RunFolder("pair").result("coding") is None


def test_a_result_that_cannot_be_written_leaves_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    RunFolder("pair").keep(RESULT)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        RunFolder("pair").keep(replace(RESULT, trials=1))
    assert RunFolder("pair").result("coding") == RESULT
