"""What calls of a pair cost, on disk: for how long it holds, and what happens to the files."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.inference.contexts import facts_here
from localspec.storage.call_costs import HOLDS_S, MAX_FILE, costs_file, keep_costs, recall_costs
from localspec.storage.pair_identity import Identity, MachineFacts, ModelFacts
from localspec.storage.paths import data_dir
from localspec.storage.tuned_settings import forget

NOW = 1_500_000_000.0
COSTS = ({1: 0.01, 5: 0.02}, {1: 0.001})
AS_WRITTEN: dict[str, object] = {
    "schema": 2,
    "measured_at": NOW,
    "verify": [{"tokens": 1, "seconds": 0.01}, {"tokens": 5, "seconds": 0.02}],
    "step": [{"tokens": 1, "seconds": 0.001}],
}
TARGET = ModelFacts("/models/large.gguf", "aa", "the processor, 8 threads")
HERE = Identity(MachineFacts("A processor", 8), TARGET, ModelFacts("/models/small.gguf", "bb", "CUDA0"), 4096)


def kept(identity: Identity = HERE) -> Path:
    path = costs_file(identity, "alone")
    keep_costs(path, NOW, *COSTS)
    return path


def test_costs_come_back_for_a_day() -> None:
    path = kept()
    assert recall_costs(path, NOW) == COSTS
    assert recall_costs(path, NOW + HOLDS_S - 1) == COSTS
    assert recall_costs(path, NOW + HOLDS_S) is None
    assert recall_costs(path, NOW - 1) is None  # someone has set the clock


def test_whatever_costs_depend_on_has_a_file_of_its_own() -> None:
    others = (
        replace(HERE, machine=MachineFacts("A processor", 4)),
        replace(HERE, draft=None),
        replace(HERE, target=replace(TARGET, seat="the processor, 2 threads")),
        replace(HERE, context=16384),
    )
    files = {costs_file(each, "alone") for each in (HERE, *others)} | {costs_file(HERE, "together")}
    assert len(files) == 6


def test_files_are_private() -> None:
    path = kept()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def with_changes(**changes: object) -> str:
    return json.dumps(AS_WRITTEN | changes)


def test_costs_are_read_as_they_were_always_written() -> None:
    path = kept()
    assert json.loads(path.read_text(encoding="utf-8")) == AS_WRITTEN
    path.write_text(json.dumps(AS_WRITTEN), encoding="utf-8")
    assert recall_costs(path, NOW) == COSTS


@pytest.mark.parametrize(
    "content",
    [
        "",
        "nothing",
        "[]",
        "{}",
        " " * (MAX_FILE + 1),
        with_changes(schema=1),  # with times of calls that compiled something
        with_changes(schema=3),
        with_changes(verify=[]),
        with_changes(step=[{"tokens": 0, "seconds": 0.1}]),
        with_changes(step=[{"tokens": 1, "seconds": -0.1}]),
        with_changes(step=[{"tokens": 1, "seconds": float("nan")}]),
    ],
)
def test_a_file_that_makes_no_sense_is_reported_in_a_line_and_replaced(
    content: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = kept()
    path.write_text(content, encoding="utf-8")
    assert recall_costs(path, NOW) is None
    (line,) = caplog.messages
    assert str(path) in line
    assert "\n" not in line
    assert recall_costs(kept(), NOW) == COSTS


def test_where_nothing_was_kept_nothing_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert recall_costs(costs_file(HERE, "alone"), NOW) is None
    assert caplog.messages == []


def test_a_disk_that_takes_nothing_is_not_a_trouble(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    path = kept()
    monkeypatch.setattr(os, "fsync", full)
    keep_costs(path, NOW + 1, *COSTS)
    (line,) = caplog.messages
    assert "No space left" in line
    assert recall_costs(path, NOW) == COSTS
    assert list(path.parent.iterdir()) == [path]


def test_files_of_other_days_go_when_one_is_written() -> None:
    old, fresh = kept(), kept(replace(HERE, context=16384))
    os.utime(old, (NOW - HOLDS_S - 1, NOW - HOLDS_S - 1))
    os.utime(fresh, (NOW - HOLDS_S + 1, NOW - HOLDS_S + 1))
    written = kept(replace(HERE, context=65536))
    assert set(written.parent.iterdir()) == {fresh, written}


def test_forgetting_a_pair_forgets_what_its_calls_cost() -> None:
    mine, other = kept(), kept(replace(HERE, target=replace(TARGET, fingerprint="cc")))
    forget(HERE)
    assert (mine.exists(), other.exists()) == (False, True)
    assert other.parent == data_dir() / "costs"


def test_llama_cpp_reports_what_costs_depend_on_here() -> None:
    facts = facts_here()
    assert facts.cores > 0
    assert facts.processor
    assert facts.llama_cpp


def test_a_file_that_cannot_be_looked_at_is_none(caplog: pytest.LogCaptureFixture) -> None:
    assert recall_costs(kept().parent / ("x" * 300), NOW) is None  # as in a folder of another user
    assert "cannot be used" in caplog.text
