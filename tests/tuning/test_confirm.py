"""The confirmation: who answers what and when, what is kept, and what is concluded."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from localspec.benchmark.harness import MIN_PROMPTS, RunRecord
from localspec.errors import Cancelled, EngineDied, UserError
from localspec.tuning.confirm import ConfirmationPlan, ConfirmProgress, confirm, entrants
from localspec.tuning.events import FailedContender
from localspec.tuning.study import Trial
from localspec.types.request import EngineSettings, Request
from tests.tuning.fake_models import open_once
from tests.tuning.timed import (
    DEFAULTS,
    PLAIN_S,
    REQUESTS,
    SD,
    SSD,
    Pace,
    TimedModels,
    gains,
    run,
)


def test_everybody_answers_every_prompt_and_no_prompt_comes_twice_in_a_row() -> None:
    models = TimedModels(gains(sd=1.2))
    run(models, SD, SSD, DEFAULTS, budget_s=30.0)
    pairs = Counter((each.settings, each.prompt) for each in models.measured if each.settings.mode != "off")
    assert set(pairs.values()) == {1}
    assert len(pairs) == 3 * len(REQUESTS)
    drafting = [each.prompt for each in models.measured if each.settings.mode != "off"]
    assert all(one != next_ for one, next_ in pairwise(drafting))
    seeds = {(each.prompt, each.seed) for each in models.measured}
    assert len(seeds) == len(REQUESTS)  # the same seed for all contenders
    assert not any(each.steps_down for each in models.requests)


def test_who_begins_with_a_prompt_changes_from_prompt_to_prompt() -> None:
    models = TimedModels(gains())
    run(models, SD, SSD, budget_s=30.0)
    began: dict[object, EngineSettings] = {}
    for each in models.measured[2:]:  # the first are the anchor
        began.setdefault(each.prompt, each.settings)
    assert set(Counter(began.values()).values()) <= {2, 3}
    assert len(set(began.values())) == 3


def test_the_first_answer_of_each_is_not_counted() -> None:
    seen: set[EngineSettings] = set()

    def pace(request: Request, number: int) -> float:
        cold = request.settings not in seen
        seen.add(request.settings)
        return 100.0 if cold else gains(sd=1.4)(request, number)

    verdict = run(TimedModels(pace), SD)
    assert verdict.contenders[1].gain.value == pytest.approx(1.4, rel=0.01)
    assert verdict.drift == pytest.approx(1.0)


def test_one_slow_anchor_run_is_not_drift() -> None:
    def pace(request: Request, number: int) -> float:
        return gains(sd=1.4)(request, number) * (3 if number == 2 else 1)

    models = TimedModels(pace)
    verdict = run(models, SD)
    assert models.requests[2] == models.requests[3] == models.requests[-1]  # the anchor
    assert verdict.drift == pytest.approx(1.0)


def test_wide_intervals_ask_for_more_answers_and_narrow_ones_do_not() -> None:
    quiet, noisy = TimedModels(gains(sd=1.4)), np.random.default_rng(1)
    run(quiet, SD)
    plenty = TimedModels(lambda request, number: PLAIN_S * float(noisy.lognormal(0, 0.3)))
    run(plenty, SD)
    assert len(quiet.measured) == 6 + 2 * len(REQUESTS)
    assert len(plenty.measured) > 2 * len(quiet.measured)
    assert {each.seed for each in plenty.measured} > {each.seed for each in quiet.measured}


def test_the_time_is_kept_and_answers_are_as_long_as_it_allows() -> None:
    noise = np.random.default_rng(2)

    def spent(budget_s: float) -> tuple[float, set[int | None]]:
        models = TimedModels(lambda request, number: PLAIN_S * float(noise.lognormal(0, 0.5)))
        return run(models, SD, SSD, budget_s=budget_s).seconds, {each.max_tokens for each in models.measured}

    least_s, least_tokens = spent(1.0)
    short_s, short_tokens = spent(18.0)
    long_s, long_tokens = spent(60.0)
    assert least_s < 9.0
    assert 9.0 < short_s < 21.0
    assert 54.0 < long_s < 63.0
    assert least_tokens == {32}
    assert 32 < max(filter(None, short_tokens)) < 64
    assert long_tokens == {64}  # as the requests want


def test_a_contender_that_cannot_answer_is_dropped_with_its_reason() -> None:
    def pace(request: Request, number: int) -> float:
        if request.settings.mode == "ssd" and str(request.prompt).endswith("6"):
            raise UserError("the draft model's context is full")
        return gains(sd=1.3, ssd=2.0)(request, number)

    verdict = run(TimedModels(pace), SSD, SD)
    assert verdict.settings == SD.settings
    assert verdict.dropped == (FailedContender("second", "the draft model's context is full"),)
    assert [contender.name for contender in verdict.contenders] == ["plain", "best"]
    alone = run(TimedModels(pace), SSD)
    assert alone.settings.mode == "off"
    assert "context is full" in alone.reason


def test_plain_decoding_that_cannot_answer_ends_it() -> None:
    def pace(_request: Request, _number: int) -> float:
        raise UserError("the prompt is too long")

    with pytest.raises(UserError, match="too long"):
        run(TimedModels(pace), SD)
    with pytest.raises(UserError, match="too short to be timed"):
        run(TimedModels(gains(sd=1.2), tokens=3), SD)
    models = open_once(TimedModels(gains()))
    with pytest.raises(UserError, match="too few"):
        list(confirm(models, REQUESTS[: MIN_PROMPTS - 1], [SD], ConfirmationPlan("coding", 9.0)))


def dying(after: int, error: Exception) -> Pace:
    def pace(request: Request, number: int) -> float:
        if number == after:
            raise error
        return gains(sd=1.3, ssd=1.28)(request, number)

    return pace


def test_models_that_were_closed_to_stop_cost_no_contender_its_place(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    dies = TimedModels(dying(5, EngineDied("the models are closed")))
    models = open_once(dies, Cancelled("somebody stopped it"))
    with pytest.raises(Cancelled):
        list(confirm(models, REQUESTS, [SD, SSD], ConfirmationPlan("coding", 60.0, "key", file)))
    found = run(TimedModels(gains(sd=1.3)), SD, SSD, file=file)
    assert not found.dropped


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 5, 11, 17, 25])
@pytest.mark.parametrize("error", [EngineDied("gone"), Cancelled()])
def test_a_confirmation_continues_where_it_ended(tmp_path: Path, after: int, error: Exception) -> None:
    file = tmp_path / "runs.json"
    whole = TimedModels(gains(sd=1.3, ssd=1.28))
    expected = run(whole, SD, SSD)
    first, second = TimedModels(dying(after, error)), TimedModels(gains(sd=1.3, ssd=1.28))
    with pytest.raises(type(error)):
        run(first, SD, SSD, file=file)
    assert run(second, SD, SSD, file=file) == expected
    assert len(first.measured) + len(second.measured) <= len(whole.measured) + 1  # one answer was lost
    third = TimedModels(gains())
    assert run(third, SD, SSD, file=file) == expected
    assert third.requests == []


def test_a_killed_program_loses_no_finished_answer(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from localspec.benchmark.harness import Run, RunRecord
from localspec.types.events import Summary
record = RunRecord(Path(sys.argv[1]), "key")
record.set_tokens(40)
for prompt in range(3):
    record.add(Run("plain", "", prompt, 0, Summary(tokens=40, decode_s=0.5, first_token_s=0.1)))
os._exit(9)
"""
    file = tmp_path / "runs.json"
    done = subprocess.run([sys.executable, "-c", code, str(file)], check=False)
    assert done.returncode == 9
    kept = RunRecord(file, "key")
    assert kept.tokens == 40
    found = [(run.prompt, run.summary.decode_s, run.summary.seconds) for run in kept.of("plain")]
    assert found == [(0, 0.5, 0.6), (1, 0.5, 0.6), (2, 0.5, 0.6)]
    assert RunRecord(file, "another").runs == {}


def test_runs_of_another_key_and_damaged_files_are_not_used(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    expected = run(TimedModels(gains(sd=1.3)), SD, file=file)
    assert file.stat().st_mode & 0o777 == 0o600
    models = TimedModels(gains(sd=1.3))
    file.write_text(file.read_text()[:-30])
    assert run(models, SD, file=file).contenders == expected.contenders
    assert len(models.measured) == 6 + 2 * len(REQUESTS)
    other = TimedModels(gains(sd=1.3))
    run(other, replace(SD, settings=replace(SD.settings, draft_length=5)), file=file)
    assert len(other.measured) == 6 + 2 * len(REQUESTS)


def test_progress_counts_up_to_the_end_and_names_the_leader() -> None:
    models = open_once(TimedModels(gains(sd=1.3, ssd=1.5)))
    *progress, _ = confirm(models, REQUESTS, [SD, SSD], ConfirmationPlan("coding", 60.0))
    told = [each for each in progress if isinstance(each, ConfirmProgress)]
    assert [each.done for each in told] == sorted(each.done for each in told)
    assert told[-1].done == told[-1].steps
    assert told[0].leader is None
    assert told[-1].leader is not None
    assert told[-1].leader.name == "second"


def test_the_best_three_and_the_defaults_of_llama_cpp_take_part() -> None:
    candidates = [Trial(0, EngineSettings(draft_length=length), 100.0 - length) for length in (3, 4, 5, 6)]
    named = entrants(candidates, llama_cpp=80.0)
    assert [each.name for each in named] == ["best", "second", "third", "llama.cpp"]
    assert [each.predicted for each in named] == [97.0, 96.0, 95.0, 80.0]
    assert named[-1].settings.mode == "sd"
    off = Trial(0, EngineSettings(mode="off"), 50.0)
    assert [each.name for each in entrants([off, candidates[0]])] == ["second", "llama.cpp"]
