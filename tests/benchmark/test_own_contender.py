"""Open models as contenders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from localspec.benchmark.harness import (
    ANCHOR_TEXTS,
    ANCHOR_TOKENS,
    OwnContender,
    Question,
    _linux_peak,
    _windows_peak,
    memory_peak,
    plain_anchor,
)
from localspec.demo import bundled_pair
from localspec.errors import Cancelled, EngineDied, EngineError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.types.drafts import DraftOrigin
from localspec.types.events import Finished, GenerationEvent, RoundDone, RoundStats, Summary
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Request, Sampling
from tests.scripted import PLAIN_TOKENS_PER_S, ScriptedModels, says

OFF = EngineSettings(mode="off")
SD = EngineSettings(mode="sd", draft_length=4, min_confidence=0.0)
HELLO = Question("any", Request("Hello", max_tokens=9, seed=3, steps_down=True, reuses_cache=False))


def test_an_answer_is_asked_for_as_the_question_says_and_in_its_mode_to_the_end() -> None:
    models = ScriptedModels(says("one two three"))
    contender = OwnContender("sd K=4", models, SD)
    summary = contender.answer(HELLO)
    assert models.requests == [replace(HELLO.request, settings=SD, steps_down=False, measures_first=True)]
    assert (summary.tokens, contender.name) == (3, "sd K=4")


def test_settings_may_be_those_of_the_task() -> None:
    models = ScriptedModels()
    contender = OwnContender("tuned", models, {"any": SD, "other": OFF})
    for task in ("any", "other"):
        contender.answer(replace(HELLO, task=task))
    assert [request.settings for request in models.requests] == [SD, OFF]


def test_what_goes_wrong_is_an_error() -> None:
    dying = OwnContender("off", ScriptedModels(says("a", EngineDied("gone"))), OFF)
    with pytest.raises(EngineDied):
        dying.answer(HELLO)
    with pytest.raises(EngineError, match="interrupted"):
        OwnContender("off", Told(), OFF).answer(HELLO)
    cancelled = OwnContender("off", Told(Finished("cancelled", Summary(tokens=3, decode_s=1.0))), OFF)
    with pytest.raises(Cancelled):
        cancelled.answer(HELLO)


class Told(ScriptedModels):
    """Models that yield given events for every answer."""

    def __init__(self, *events: GenerationEvent) -> None:
        super().__init__()
        self._events = events

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        self.requests.append(request)
        yield from self._events


def rounds(*seconds: float) -> tuple[GenerationEvent, ...]:
    spent = [RoundStats(0, 0, DraftOrigin.NONE, each - 0.001, 0.0, 0.0, 0.001) for each in seconds]
    return (*(RoundDone(stats, 1) for stats in spent), Finished("length", Summary(tokens=len(seconds))))


def test_the_anchor_decodes_the_same_plainly_and_greedily_each_time() -> None:
    models = ScriptedModels(says("on and on " * ANCHOR_TOKENS))
    anchor = plain_anchor(models)
    assert anchor() == anchor() == pytest.approx(1 / PLAIN_TOKENS_PER_S)
    first, second = models.requests
    assert first == second
    assert (first.prompt, first.max_tokens) == (ANCHOR_TEXTS[0], ANCHOR_TOKENS + 1)
    assert (first.settings.mode, first.sampling.temperature, first.reuses_cache) == ("off", 0.0, False)


def test_the_anchor_is_the_median_and_leaves_out_the_prompt() -> None:
    hiccup = rounds(9.0, *[0.02] * (ANCHOR_TOKENS - 3), 5.0, 7.0, 6.0)
    assert plain_anchor(Told(*hiccup))() == pytest.approx(0.02)
    assert plain_anchor(Told(*rounds(9.0, 0.02, 0.03, 0.05)))() == pytest.approx(0.03)


def test_the_anchor_continues_with_other_texts_where_a_model_ends_early() -> None:
    models = Told(*rounds(9.0, 0.02, 0.03))
    plain_anchor(models)()
    texts = [request.prompt for request in models.requests]
    assert texts[:3] == list(ANCHOR_TEXTS)
    assert len(texts) == ANCHOR_TOKENS / 2  # of two tokens each


def test_the_anchor_takes_long_enough_to_outlast_a_moment() -> None:
    quick = Told(*rounds(9.0, *[0.001] * 40))
    plain_anchor(quick, least_s=0.5)()
    assert len(quick.requests) == 13  # 40 ms each


def test_models_that_never_continue_have_no_pace() -> None:
    with pytest.raises(EngineError, match="large ends every text at once"):
        plain_anchor(Told(*rounds(9.0)))()


@pytest.mark.slow
def test_the_bundled_pair_contends() -> None:
    target, draft = (ModelOptions(path, context=512) for path in bundled_pair())
    greedy = Sampling(temperature=0.0)
    request = Request((Message("user", "Tell me a story."),), greedy, max_tokens=24, reuses_cache=False)
    question = Question("any", request)
    with Runtime.open(OpenPlan(target, draft)) as models:
        plain = OwnContender("off", models, OFF).answer(question)
        sd = OwnContender("sd", models, SD).answer(question)
        pace = plain_anchor(models)()
    assert (plain.tokens, plain.drafted, plain.cached_tokens) == (24, 0, 0)
    assert (sd.tokens, sd.cached_tokens) == (24, 0)
    assert sd.drafted > 0
    assert pace > 0


STATUS = "Name:\tpython\nVmPeak:\t  900 kB\nVmHWM:\t   512 kB\nVmRSS:\t 300 kB\n"


def test_linux_reports_the_peak_in_its_status_file(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text(STATUS)
    assert _linux_peak(status) == 512 * 1024
    status.write_text(re.sub("VmHWM.*\n", "", STATUS))  # a process that has ended
    assert _linux_peak(status) is None
    assert _linux_peak(tmp_path / "none") is None


def test_windows_reports_the_peak_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        peak_wset = 4096

    class Process:
        def __init__(self, pid: int) -> None:
            if pid != 17:
                raise psutil.NoSuchProcess(pid)

        def memory_info(self) -> Memory:
            return Memory()

    monkeypatch.setattr(psutil, "Process", Process)
    assert _windows_peak(17) == 4096
    assert _windows_peak(18) is None


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux keeps this file")
def test_the_peak_of_this_process_is_plausible() -> None:
    peak = memory_peak(os.getpid())
    assert OwnContender("off", ScriptedModels(), OFF).memory_peak() is not None
    assert peak is not None
    assert peak >= psutil.Process().memory_info().rss * 0.5
