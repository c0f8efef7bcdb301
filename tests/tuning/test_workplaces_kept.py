"""What is left of the study of workplaces: attempts on file, and flags that settle something."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning import load_options
from localspec.tuning.load_options import possible
from tests.tuning.test_workplaces import ROOM, USUAL, Bench, run


def test_a_kept_attempt_stands_for_its_own_workplace_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_options, "_is_late", lambda done, _budget_s: len(done) > 1)
    first = run(tmp_path, Bench())
    monkeypatch.undo()  # now there is more time
    bench = Bench()
    attempts = run(tmp_path, bench)
    assert [each.workplace for each in first] == [
        USUAL,
        LoadOptions(draft_threads=1),
        USUAL,
        first[1].workplace,
    ]
    assert attempts[:2] == first[:2]
    assert LoadOptions(draft_threads=4) in bench.opened


def test_what_a_person_has_settled_is_left_as_it_is() -> None:
    room = replace(ROOM, fixed=("threads", "micro_batch"))
    assert {each.threads for each in possible(room)} == {0}
    assert {each.micro_batch for each in possible(room)} == {USUAL.micro_batch}
    assert {each.draft_threads for each in possible(room)} > {None}
    without_cache = possible(replace(ROOM, fixed=("draft_kv_type",)))
    assert {each.draft_kv_type for each in without_cache} == {"f16"}
