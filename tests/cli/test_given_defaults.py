"""A flag that is given counts before config.toml, the profile and what was tuned, also with its default."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from localspec.cli import run
from localspec.cli.shared.answer_request import session_request
from localspec.cli.shared.arguments import pair_request
from localspec.storage.paths import config_dir
from localspec.storage.profiles import Speculation
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Request, Sampling
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import FakeRuntime
from tests.cli.requests import unplaced

PROFILE = """
title = "Other"
description = "Everything other than usual."
task = "dialogue"
system_prompt = "Be other."
thinking_budget = 9
[sampling]
temperature = 0.1
top_k = 2
top_p = 0.3
min_p = 0.4
repetition_penalty = 1.5
presence_penalty = 0.6
frequency_penalty = 0.7
penalty_window = 8
[speculation]
mode = "off"
draft_length = 3
fan_out_budget = 5
fan_out_shape = "uniform"
draft_temperature = 2
saguaro_c = 0.5
acceptance = "match"
min_confidence = 0.9
fallback = "just-in-time"
"""
CONFIG = "[models]\ncontext = 512\n[chat]\nignore_circles = true\n"
S, E, R = Sampling(), EngineSettings(), Request("")
OF_PROFILE: dict[str, tuple[list[str], Callable[[Request], object], object]] = {
    "temperature": (["--temp", str(S.temperature)], lambda r: r.sampling.temperature, S.temperature),
    "top_k": (["--top-k", str(S.top_k)], lambda r: r.sampling.top_k, S.top_k),
    "top_p": (["--top-p", str(S.top_p)], lambda r: r.sampling.top_p, S.top_p),
    "min_p": (["--min-p", str(S.min_p)], lambda r: r.sampling.min_p, S.min_p),
    "repetition_penalty": (["--repeat-penalty", "1"], lambda r: r.sampling.repetition_penalty, 1),
    "presence_penalty": (["--presence-penalty", "0"], lambda r: r.sampling.presence_penalty, 0),
    "frequency_penalty": (["--frequency-penalty", "0"], lambda r: r.sampling.frequency_penalty, 0),
    "penalty_window": (
        ["--repeat-last-n", str(S.penalty_window)],
        lambda r: r.sampling.penalty_window,
        S.penalty_window,
    ),
    "mode": (["--mode", "auto"], lambda r: r.settings.mode, "sd"),  # what the fake measures
    "draft_length": (
        ["--draft-length", str(E.draft_length)],
        lambda r: r.settings.draft_length,
        E.draft_length,
    ),
    "fan_out_budget": (
        ["--fan-out", str(E.fan_out_budget)],
        lambda r: r.settings.fan_out_budget,
        E.fan_out_budget,
    ),
    "fan_out_shape": (
        ["--fan-out-shape", E.fan_out_shape],
        lambda r: r.settings.fan_out_shape,
        E.fan_out_shape,
    ),
    "draft_temperature": (["--draft-temperature", "1"], lambda r: r.settings.draft_temperature, 1),
    "saguaro_c": (["--saguaro-c", "1"], lambda r: r.settings.saguaro_c, 1),
    "acceptance": (["--acceptance", E.acceptance], lambda r: r.settings.acceptance, E.acceptance),
    "min_confidence": (["--min-confidence", "0"], lambda r: r.settings.min_confidence, 0),
    "fallback": (["--fallback", "ngram"], lambda r: r.settings.fallback, "ngram"),
    "thinking_budget": (["--reasoning-budget", "-1"], lambda r: r.thinking_budget, -1),
    "system_prompt": (["-sys", ""], lambda r: len(r.prompt), 1),
    "ignore_circles": (["--no-ignore-circles"], lambda r: r.ignores_circles, False),  # of config.toml
}


@pytest.fixture
def others() -> Path:
    """A profile and a config.toml in which everything is other than usual."""
    folder = config_dir()
    (folder / "profiles").mkdir(exist_ok=True, parents=True)
    (folder / "profiles" / "other.toml").write_text(PROFILE, encoding="utf-8")
    (folder / "config.toml").write_text(CONFIG, encoding="utf-8")
    return folder


def test_all_that_a_profile_settles_has_its_flag() -> None:
    settled_there = {field.name for kind in (Sampling, Speculation) for field in fields(kind)}
    assert settled_there | {"system_prompt", "thinking_budget", "ignore_circles"} == set(OF_PROFILE)


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("name", OF_PROFILE)
def test_a_given_default_beats_the_profile_and_config_toml(
    fake: FakeRuntime, invoke: Invoke, name: str
) -> None:
    flags, of, usual = OF_PROFILE[name]
    assert invoke("run", "Hi", "--profile", "other").code == 0
    assert of(fake.requests[-1]) != usual
    assert invoke("run", "Hi", "--profile", "other", *flags).code == 0
    assert of(fake.requests[-1]) == usual


def arguments(*flags: str) -> argparse.Namespace:
    return run.parser().parse_args(["Hi", *flags])


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize(("flags", "context"), [([], 512), (["-c", "0"], 0), (["-c", "1024"], 1024)])
def test_a_context_of_zero_is_one(flags: list[str], context: int) -> None:
    assert unplaced(arguments(*flags)).target.context == context


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize(("flags", "goes"), [([], True), (["--no-ignore-circles"], False)])
def test_circles_have_a_flag_either_way(flags: list[str], goes: bool) -> None:
    assert session_request(arguments(*flags)).answer.ignores_circles == goes


TUNED = {  # flags with the value that is usual without them, and what of a tuning they put aside
    ("-t", "0"): ("threads",),
    ("-td", "1"): ("draft_threads",),
    ("-b", "2048"): ("micro_batch", "micro_batch_factor"),
    ("-ub", "512"): ("micro_batch", "micro_batch_factor"),
    ("-ncmoe", "0"): ("more_experts_at_home",),
    ("-ctk", "f16"): ("target_kv_type",),
    ("-ctv", "f16"): ("target_kv_type",),
    ("-fa", "off"): ("target_kv_type", "draft_flash_attention"),
    ("-fa", "auto"): ("draft_flash_attention",),
    ("-ctkd", "f16"): ("draft_kv_type",),
    ("-ctvd", "f16"): ("draft_kv_type",),
    ("-ngld", "auto"): ("draft_on_cpu",),
    ("-devd", "none"): ("draft_on_cpu",),
}


@pytest.mark.parametrize("flags", TUNED, ids=" ".join)
def test_a_given_default_beats_what_was_tuned(flags: tuple[str, str]) -> None:
    assert pair_request(arguments()).fixed == ()
    if flags != ("-ngld", "auto"):  # None represents both: what the plan decides
        assert pair_request(arguments(*flags)).fixed == TUNED[flags]


@pytest.mark.parametrize(
    "flags",
    [
        ["-c", "0"], ["-t", "0"], ["-b", "2048"], ["-ub", "512"], ["-fa", "auto"], ["-ngl", "auto"],
        ["-ctk", "f16"], ["-ctv", "f16"], ["-sm", "layer"], ["-mg", "0"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_defaults_that_are_given_open_the_same_models(flags: list[str]) -> None:
    usual: Any = unplaced(arguments())
    assert unplaced(arguments(*flags)) == usual
    assert usual.target == ModelOptions(usual.target.path)
