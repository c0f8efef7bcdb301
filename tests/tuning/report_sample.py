"""A made-up tuning run with figures as they could be, to look at and to test the report with."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime

from localspec.decoding.measurements import CallCosts, Costs, Overhead
from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning.events import (
    Attempt,
    ConfirmedContender,
    Evidence,
    LoadOptionsChosen,
    TaskResult,
)
from localspec.tuning.report.page import ReportInput, ReportModel
from localspec.types import EngineSettings, Interval, TaskType

CODING = EngineSettings("ssd", 5, 12, "best-first", 0.85, 0.7, "rejection")
WRITING = EngineSettings("sd", 2, draft_temperature=1.25, acceptance="rejection", min_confidence=0.35)
OFF = EngineSettings("off")
LLAMA = EngineSettings("sd", 16, acceptance="match", min_confidence=0.75)


def _calls(depth: int, together: bool) -> CallCosts:
    slow = (1.0 + depth / 8000) * (1.16 if together else 1.0)
    verify = tuple((m, slow * (0.0131 + 0.00105 * (m - 1) + (0.004 if m > 8 else 0))) for m in range(1, 17))
    widths = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    step = tuple((n, slow * (0.0021 + 0.000062 * n + (0.0012 if n > 16 else 0))) for n in widths)
    return CallCosts(depth, together, verify, step, drift=1.01 + depth / 200_000, spread=0.02)


COSTS = Costs(
    tuple(_calls(depth, together) for together in (False, True) for depth in (128, 2048)),
    (Overhead("sd", 0.0006, 0.00004), Overhead("ssd", 0.0009, 0.00005, 1.03, 1.08, 0.00021)),
)


def _contender(
    name: str, settings: EngineSettings, rate: float, predicted: float | None
) -> ConfirmedContender:
    plain = 61.7
    return ConfirmedContender(
        name,
        settings,
        predicted,
        Interval(rate, rate * 0.972, rate * 1.026),
        Interval(rate / plain, rate / plain * 0.965, rate / plain * 1.034),
    )


def _task(
    task: TaskType,
    settings: EngineSettings,
    contenders: tuple[ConfirmedContender, ...],
    first: float,
    seed: int,
) -> TaskResult:
    dice = random.Random(seed)
    top = max(contender.rate.value for contender in contenders)
    budgets = (0, 2, 4, 6, 8, 12, 16, 24)
    landscape = tuple(
        (
            (k, budget),
            top * (1 - 0.03 * abs(k - settings.draft_length) - 0.004 * abs(budget - 12)) - 0.1 * k,
        )
        for k in range(1, 9)
        for budget in budgets
    )
    history = tuple(
        None if dice.random() < 0.02 else top * (1 - 0.45 * dice.random() ** (1 + step / 90))
        for step in range(400)
    )
    hits = tuple((b, 1 - 0.6 * b**-0.55) for b in (1, 2, 4, 6, 8, 12, 16, 24, 32))
    importance = (
        ("draft_length", 0.44),
        ("fan_out_budget", 0.22),
        ("draft_temperature", 0.16),
        ("min_confidence", 0.08),
        ("fan_out_shape", 0.05),
        ("saguaro_c", 0.03),
        ("acceptance", 0.015),
        ("fallback", 0.005),
    )
    return TaskResult(
        task,
        settings,
        "The interval lies above plain decoding's, and no other contender is surely better.",
        contenders,
        len(history),
        131.0,
        drift=0.99,
        evidence=Evidence(tuple(first * 0.985**k for k in range(8)), hits, history, landscape, importance),
    )


LOAD_OPTIONS = LoadOptionsChosen(
    LoadOptions(threads=1, draft_threads=1),
    (
        Attempt(LoadOptions(threads=1, draft_threads=1), 118.4, "ssd"),
        Attempt(LoadOptions(threads=2), 96.2, "sd"),
        Attempt(LoadOptions(threads=1, draft_threads=1, micro_batch=128), 101.0, "ssd"),
        Attempt(LoadOptions(threads=2, micro_batch=2048), None, failure="out of memory"),
    ),
    "One thread for each model was fastest: neither waits for the other's core.",
)


def sample() -> ReportInput:
    """Return a report with every part present."""
    coding = (
        _contender("plain", OFF, 61.7, 61.0),
        _contender("best", CODING, 118.4, 121.6),
        _contender("second", replace(CODING, draft_length=4), 115.0, 120.9),
        _contender("third", replace(CODING, fan_out_budget=8), 113.1, 119.8),
        _contender("llama.cpp", LLAMA, 88.9, None),
    )
    writing = (
        _contender("plain", OFF, 61.7, 61.0),
        _contender("best", WRITING, 71.2, 72.4),
        _contender("second", replace(WRITING, mode="ssd", fan_out_budget=6), 70.4, 72.2),
        _contender("third", replace(WRITING, draft_length=3), 69.9, 71.8),
        _contender("llama.cpp", LLAMA, 55.3, None),
    )
    return ReportInput(
        made=datetime(2026, 11, 22, 2, 5, tzinfo=UTC),
        machine=(
            ("Processor", "8 cores, AVX2, 32 GiB"),
            ("Graphics cards", "none"),
            ("Placement", "target and draft model on the processor, a core each"),
            ("llama.cpp", "llama-cpp-python 0.3.36"),
            ("LocalSpec", "0.1.0"),
        ),
        target=ReportModel("SmolLM2 1.7B Instruct Q4_K_M", 1_711_376_384, 1_055_609_536, "the processor"),
        draft=ReportModel("SmolLM2 135M Instruct Q8_0", 134_515_008, 144_811_072, "the processor"),
        costs=COSTS,
        results=(
            _task("coding", CODING, coding, 0.84, 1),
            _task("writing", WRITING, writing, 0.58, 2),
        ),
        load_options=LOAD_OPTIONS,
    )
