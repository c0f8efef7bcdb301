"""What everyday answers leave behind: small, private, fading, and of use to the tuner."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from filelock import FileLock

from localspec.errors import StoreError
from localspec.storage import usage_stats as module
from localspec.storage.usage_stats import (
    MOST_BUDGETS,
    MOST_JUDGED,
    MOST_POSITIONS,
    UsageStats,
    learn,
    learned,
    starting_points,
)
from localspec.types import EngineSettings, Mode, Summary, TaskType

SSD = EngineSettings(mode="ssd", fan_out_budget=16)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "learned" / "pair.json"


def answer(
    accepted: tuple[int, ...] = (90, 70, 40),
    drafted: tuple[int, ...] = (100, 90, 70),
    hits: int = 80,
    misses: int = 20,
    tokens: int = 101,
    decode_s: float = 2.0,
) -> Summary:
    return Summary(
        prompt_tokens=500, tokens=tokens, model_accepted_at=accepted, model_drafted_at=drafted,
        hits=hits, misses=misses, decode_s=decode_s,
    )  # fmt: skip


def known(path: Path, task: TaskType = "coding") -> UsageStats:
    found = learned(path, task)
    assert found is not None
    return found


def test_without_a_file_nothing_is_known(path: Path) -> None:
    assert learned(path, "coding") is None


def test_answers_add_up_and_tasks_stay_apart(path: Path) -> None:
    for _ in range(2):
        learn(path, "coding", SSD, answer(), steady=True)
    learn(path, "writing", SSD, answer((10,), (100,)), steady=True)
    coding = known(path)
    assert (coding.answers, coding.accepted_at, coding.drafted_at) == (2, (180, 140, 80), (200, 180, 140))
    assert coding.acceptance == pytest.approx((0.9, 140 / 180, 80 / 140))
    assert [(row.budget, row.hits, row.misses) for row in coding.ahead] == [(16, 160, 40)]
    assert known(path, "writing").acceptance == (0.1,)


def test_pace_is_kept_by_mode_and_depth_and_only_of_steady_answers(path: Path) -> None:
    learn(path, "coding", SSD, answer(), steady=True)
    learn(path, "coding", SSD, answer(tokens=5001), steady=True)
    learn(path, "coding", EngineSettings(mode="off"), answer((), (), 0, 0), steady=True)
    learn(path, "coding", SSD, answer(), steady=False)
    learn(path, "coding", SSD, answer(tokens=3), steady=True)
    paces = [(row.mode, row.depth, row.tokens, row.seconds) for row in known(path).paces]
    assert paces == [("ssd", 512, 100, 2), ("ssd", 2048, 5000, 2), ("off", 512, 100, 2)]


def test_drafts_that_repeat_the_text_say_nothing_of_the_draft_model(path: Path) -> None:
    learn(path, "coding", EngineSettings(mode="ngram"), answer(hits=0, misses=0), steady=True)
    assert (known(path).drafted_at, known(path).ahead) == ((), ())


def test_old_answers_fade(path: Path) -> None:
    many = MOST_JUDGED
    for _ in range(5):
        learn(path, "coding", SSD, answer((many,), (many,), many, 0), steady=True)
    for _ in range(5):
        learn(path, "coding", SSD, answer((0,), (many,), 0, many), steady=True)
    assert known(path).acceptance[0] < 0.05
    assert known(path).drafted_at[0] <= MOST_JUDGED
    [row] = known(path).ahead
    assert row.hits / row.rounds < 0.05


def test_file_stays_small_and_private(path: Path) -> None:
    for budget in range(1, 65):
        settings = EngineSettings(mode="ssd", fan_out_budget=budget)
        learn(path, "coding", settings, answer((9,) * 200, (9,) * 200), steady=True)
    assert len(known(path).accepted_at) == MOST_POSITIONS
    assert len(known(path).ahead) == MOST_BUDGETS
    assert path.stat().st_size < 8 * 1024
    assert [stat.S_IMODE(file.stat().st_mode) for file in sorted(path.parent.iterdir())] == [0o600, 0o600]


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"version": 2, "tasks": []}', '{"version": 1, "tasks": [{"task": "cooking"}]}',
        '{"version": 1, "tasks": [{"task": "coding", "accepted_at": [1, 2], "drafted_at": [1]}]}',
        '{"version": 1, "tasks": [{"task": "coding", "accepted_at": [NaN], "drafted_at": [1]}]}',
        '{"version": 1, "tasks": [{"task": "coding", "accepted_at": [1], "drafted_at": [-1]}]}',
        "[" * 100_000,
    ],
)  # fmt: skip
def test_damaged_file_is_noticed_and_begun_anew(
    path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    assert learned(path, "coding") is None
    assert "cannot be used" in caplog.text
    learn(path, "coding", SSD, answer(), steady=True)
    assert known(path).answers == 1


def test_answer_is_left_out_while_another_program_writes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn(path, "coding", SSD, answer(), steady=True)
    with FileLock(path.with_suffix(".lock")):
        monkeypatch.setattr("filelock.FileLock.acquire", _busy)
        with pytest.raises(StoreError, match="another program holds it"):
            learn(path, "coding", SSD, answer(), steady=True)
    assert known(path).answers == 1


def _busy(lock: FileLock, *_: object, **__: object) -> None:
    from filelock import Timeout

    raise Timeout(lock.lock_file)


def test_file_is_named_after_the_pair() -> None:
    assert module.file_of("abc").name == "abc.json"


@pytest.mark.parametrize(("share", "least", "most"), [(0.97, 6, 12), (0.6, 2, 5), (0.1, 1, 1)])
def test_good_drafts_begin_long_and_bad_ones_short(path: Path, share: float, least: int, most: int) -> None:
    judged = tuple(round(1000 * share**position) for position in range(5))
    accepted = tuple(round(share * count) for count in judged)
    learn(path, "coding", SSD, answer(accepted, judged), steady=True)
    lengths = [settings.draft_length for settings in starting_points(known(path))]
    assert least <= max(lengths) <= most
    assert min(lengths) >= 1


@pytest.mark.parametrize(("hits", "budget"), [(50, 53), (85, 16), (100, 8)])
def test_many_misses_ask_for_more_outcomes(path: Path, hits: int, budget: int) -> None:
    learn(path, "coding", SSD, answer(hits=hits, misses=100 - hits), steady=True)
    assert {settings.fan_out_budget for settings in starting_points(known(path))} == {budget}


@pytest.mark.parametrize("fast", ["sd", "ssd"])
def test_the_mode_that_was_fastest_comes_first(path: Path, fast: Mode) -> None:
    modes: tuple[Mode, ...] = ("sd", "ssd")
    for mode in modes:
        settings = EngineSettings(mode=mode)
        learn(path, "coding", settings, answer(decode_s=1 if mode == fast else 2), steady=True)
    assert starting_points(known(path))[0].mode == fast


def test_too_few_answers_are_no_place_to_start(path: Path) -> None:
    learn(path, "coding", SSD, answer((3,), (4,), 1, 1), steady=True)
    assert starting_points(known(path)) == ()


def test_a_file_that_cannot_be_looked_at_is_as_good_as_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert learned(tmp_path / ("x" * 300), "coding") is None
    assert "cannot be used" in caplog.text
