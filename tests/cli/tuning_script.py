"""Runs of the tuner with scripted events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from localspec.benchmark.statistics import Interval
from localspec.decoding.measurements import ComparedPass
from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning.events import (
    Attempt,
    BestSoFar,
    ConfirmedContender,
    DistributionShift,
    LoadOptionsChosen,
    PassesCompared,
    StageBegan,
    StageProgress,
    TaskResult,
    TuneEvent,
)
from localspec.types.request import EngineSettings, TaskType

PLAIN = EngineSettings(mode="off")
SSD = EngineSettings("ssd", 6, 12, "best-first", 0.8, 0.9)
LLAMA = EngineSettings("sd", 3, acceptance="match")
REASON = "the best of 150 settings reached 0.97 of plain decoding (95% between 0.94 and 0.99)"


def around(value: float, half: float) -> Interval:
    return Interval(value, value - half, value + half)


def result(task: TaskType = "coding", *, pays: bool = True) -> TaskResult:
    plain = ConfirmedContender("plain", PLAIN, 60.0, around(60.0, 1.0), around(1.0, 0.0))
    best = ConfirmedContender("best", SSD, 84.0, around(85.2, 3.0), around(1.42, 0.05))
    llama = ConfirmedContender("llama.cpp", LLAMA, None, around(71.0, 2.0), around(1.18, 0.04))
    if not pays:
        best = replace(best, gain=Interval(0.97, 0.94, 0.99))
    reason = "SSD is 1.42 times as fast as plain decoding" if pays else REASON
    return TaskResult(task, SSD if pays else PLAIN, reason, (plain, best, llama), 150, 80.0)


def machine() -> Iterator[TuneEvent]:
    yield StageBegan("machine", None, 4)
    for done in range(1, 5):
        yield StageProgress("machine", None, done, 4, 200.0 - done, f"{done} threads")
    chosen = LoadOptions(threads=1, draft_threads=1, draft_flash_attention=True)
    attempts = (
        Attempt(LoadOptions(), 60.0, "off"),
        Attempt(chosen, 66.0, "ssd"),
        Attempt(LoadOptions(threads=2), 48.0, "sd"),
        Attempt(LoadOptions(micro_batch=4096), None, failure="out of memory"),
    )
    yield LoadOptionsChosen(chosen, attempts, "a thread for each model is 10% faster than two for both")


def cache_chosen() -> LoadOptionsChosen:
    shift = DistributionShift(384, 0.00123, 0.0156, 0.0078)
    return LoadOptionsChosen(LoadOptions(target_kv_type="q8_0"), (), "faster", shift)


def compared() -> PassesCompared:
    pairs = ((1, 0.01, 0.01), (2, 0.019, 0.02), (3, 0.027, 0.03), (5, 0.04, 0.05))
    return PassesCompared(tuple(ComparedPass(*pair) for pair in pairs))


def task(name: TaskType, *, pays: bool = True, trials: int = 20) -> Iterator[TuneEvent]:
    yield StageBegan("traces", name, 8)
    yield StageProgress("traces", name, 8, 8, 150.0)
    yield StageBegan("study", name, trials)
    for done in range(1, trials + 1):
        yield BestSoFar(name, SSD, 60.0 + done)
        yield StageProgress("study", name, done, trials, 100.0)
    yield StageBegan("confirm", name, 12)
    yield BestSoFar(name, SSD, 84.0, around(85.2, 3.0))
    yield StageProgress("confirm", name, 12, 12, 40.0)
    yield result(name, pays=pays)


def whole() -> Iterator[TuneEvent]:
    yield from machine()
    yield from task("coding")
    yield from task("writing", pays=False)
