"""How far a run is, on disk."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from localspec.benchmark.statistics import Interval
from localspec.decoding.measurements import CallCosts, Costs, Overhead
from localspec.errors import StoreError
from localspec.storage.json_file import JsonFile
from localspec.tuning.events import (
    ConfirmedContender,
    FailedContender,
    TaskResult,
)
from localspec.tuning.run_folder import RunFolder, RunState, TaskState
from localspec.types.request import EngineSettings

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
COSTS = Costs((CallCosts(64, False, ((1, 0.01),), ((1, 0.001),), 1.01, 0.05),), (Overhead("ssd", 1e-4),))
RESULT = TaskResult("coding", BEST.settings, "ssd runs at 1.40 x", (PLAIN, BEST), 150, 80.5, 0.98)


def state() -> JsonFile[RunState]:
    return RunFolder("pair").state


def kept(result: TaskResult = RESULT) -> RunState:
    return RunState(
        2, "here", costs=COSTS, costs_key="k", tasks=(TaskState("coding", "coding", 7, 1.5, result),)
    )


def test_a_state_comes_back_as_it_was() -> None:
    assert state().read() is None
    dropped = replace(RESULT, dropped=(FailedContender("second", "it crashed"),), quick=True)
    for found in (kept(), kept(dropped), kept(replace(RESULT, settings=PLAIN.settings)), RunState(1)):
        state().write(found)
        assert state().read() == found
    assert state().path.stat().st_mode & 0o777 == 0o600
    assert state().path.parent.stat().st_mode & 0o777 == 0o700
    assert RunFolder("other").state.read() is None


def test_a_state_of_an_earlier_version_has_nothing_to_continue_with() -> None:
    earlier = {"number": 3, "costs_key": "k", "tasks": [{"task": "coding", "done": True, "trace_key": "t"}]}
    state().path.write_text(json.dumps(earlier))
    found = state().read()
    assert found is not None
    assert (found.number, found.costs, found.of("coding").result) == (3, None, None)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("number",), "two"),
        (("costs", "calls", 0, "verify", 0), [1]),
        (("costs", "calls", 0, "drift"), float("nan")),
        (("tasks", 0, "result", "settings", "mode"), "faster"),
        (("tasks", 0, "result", "contenders", 1, "rate", "low"), "68"),
        (("tasks", 0, "result"), []),
    ],
)
def test_a_damaged_state_is_as_good_as_none(keys: tuple[str | int, ...], value: object) -> None:
    state().write(kept())
    whole = json.loads(state().path.read_text())
    place = whole
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    state().path.write_text(json.dumps(whole))
    assert state().read() is None


def test_a_state_that_cannot_be_written_leaves_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    state().write(kept())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        state().write(RunState(1))
    assert state().read() == kept()
