"""Tokens that an EAGLE-3 or MTP head has drafted follow the target, through llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localspec.benchmark.exactness import DRAFTED, FULL, SIGNIFICANCE, Judged, _rows, judge, verdict
from localspec.decoding.verify import Uniforms, verify
from localspec.inference.runtime import Runtime
from localspec.types.drafts import Distribution, Draft, VerifyOutcome
from localspec.types.request import Acceptance, EngineSettings, Message, Request
from tests.chi_square import chi_square_p_value
from tests.inference.runtimes import open_pair

pytestmark = pytest.mark.slow

PROMPTS = (
    "Tell me of a goat.",
    "Write a loop that prints the even numbers from 0 to 20.",
    "What is 17 times 6?",
)
TOKENS, BINS = 240, 10


@pytest.fixture(scope="module", params=["eagle", "mtp"])
def runtime(
    request: pytest.FixtureRequest, made_hybrid: Path, demo_target_q8: Path, made_eagle3: Path
) -> Iterator[Runtime]:
    pair = (made_hybrid, made_hybrid) if request.param == "mtp" else (demo_target_q8, made_eagle3)
    with open_pair(*pair) as opened:
        yield opened


def sampled(runtime: Runtime, temperature: float, acceptance: Acceptance, tokens: int) -> list[Judged]:
    """Return what the target says of N tokens that were drawn with drafts of the head."""
    settings = EngineSettings(mode="sd", draft_length=4, min_confidence=0.0, acceptance=acceptance)
    sampling, uniforms = replace(FULL, temperature=temperature), np.random.default_rng(7)
    found = list[Judged]()
    seed = 0
    while len(found) < tokens:
        prompt, seed = PROMPTS[seed % len(PROMPTS)], seed + 1
        request = Request((Message("user", prompt),), sampling, settings, max_tokens=60, seed=seed)
        answer = list(runtime.generate_tokens(request))
        for place, row in _rows(runtime, prompt, [token for token, *_ in answer]):
            token, provenance, _ = answer[place]
            warm = row / np.float32(temperature)
            found.append(judge(warm, token, uniforms.random(), drafted=provenance in DRAFTED))
    return found


def p_values(found: list[Judged]) -> tuple[float, float]:
    """Return the p-value of `verify`, and that of the transforms' counts in equal parts."""
    first = verdict("", "all", found).p_value
    assert first is not None
    counts = np.histogram([transform for transform, *_ in found], BINS, (0, 1))[0]
    return first, chi_square_p_value(counts.tolist(), [1 / BINS] * BINS)


@pytest.mark.parametrize("acceptance", ["rejection", "match"])
@pytest.mark.parametrize("temperature", [0.8, 1.0])
def test_sampled_tokens_follow_the_target(
    runtime: Runtime, temperature: float, acceptance: Acceptance
) -> None:
    found = sampled(runtime, temperature, acceptance, TOKENS)
    assert sum(drafted for *_, drafted in found) > TOKENS / 10
    assert min(p_values(found)) > SIGNIFICANCE


def test_self_test_detects_unverified_drafts(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(
        draft: Draft, target: Callable[[int], Distribution], acceptance: Acceptance, random: Uniforms
    ) -> VerifyOutcome:
        believed = len(draft.tokens)
        return replace(verify(Draft(), lambda _: target(believed), acceptance, random), accepted=believed)

    monkeypatch.setattr("localspec.decoding.verify.verify", trusting)
    assert min(p_values(sampled(runtime, 1.0, "rejection", TOKENS))) < SIGNIFICANCE
