"""What real rounds take beside their calls."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from localspec.decoding.measurements import CallCosts, Costs, Overhead
from localspec.errors import Cancelled
from localspec.tuning.costs import RealRound, fit, measure, real_rounds
from localspec.tuning.simulator.call_times import Timing
from localspec.types.drafts import DraftOrigin
from localspec.types.events import (
    Finished,
    FinishReason,
    GenerationEvent,
    RoundDone,
    RoundStats,
    Summary,
    TextDelta,
)
from localspec.types.models import ModelInfo, ModelOptions
from localspec.types.request import EngineSettings, Mode, Request, Sampling
from tests.fake_model import Pacing
from tests.inference.runtimes import QUESTION
from tests.paced_pair import open_paced
from tests.tuning.fake_models import open_once

INFO = ModelInfo(Path("m.gguf"), "m", "llama", 1, 1, 4096, 4096, 16, ("CPU",))
REQUESTS = [Request(QUESTION, max_tokens=32, seed=seed) for seed in range(4)]


def calls_of(depth: int, *, together: bool) -> CallCosts:
    """Return costs that grow with the size, the depth and the company."""
    scale = (1.0 + depth / 1000) * (1.3 if together else 1.0)
    verify = tuple((size, scale * (0.02 + 0.001 * size)) for size in range(1, 17))
    return CallCosts(depth, together, verify, ((1, scale * 0.004), (8, scale * 0.006)))


CALLS = tuple(calls_of(depth, together=together) for depth in (100, 1100) for together in (False, True))
TRUTH: dict[Mode, Overhead] = {
    "off": Overhead("off", 3e-4, 0.0, 1.05),
    "ngram": Overhead("ngram", 5e-4, 4e-5, 0.97),
    "sd": Overhead("sd", 4e-4, 2e-4, 1.1, 0.8),
    "ssd": Overhead("ssd", 6e-4, 5e-5, 0.9, 0.85, 3e-4),
}


TEXT_S = 1e-4  # of a round, to make text of its tokens


def rounds_of(mode: Mode, count: int = 200, noise: float = 0.05) -> list[RealRound]:
    """Return rounds as the truth has them, some of them disturbed."""
    rng, truth, found = random.Random(3), TRUTH[mode], []
    for number in range(count):
        settings = EngineSettings(mode, draft_length=rng.randrange(1, 9), min_confidence=0.0)
        drafted = 0 if mode == "off" else settings.draft_length
        depth = rng.randrange(100, 1500)
        cost_s = (1.0 + depth / 1000) * (1.3 if mode == "ssd" else 1.0)
        slower = rng.uniform(1 - noise, 1 + noise) * (20.0 if noise and number % 25 == 0 else 1.0)
        hit = rng.random() < 0.5
        waits = mode == "ssd" and not hit
        first_call = rng.choice((1, 2))  # tokens: after a draft that was accepted in full there is one more
        steps_s = 0.004 * drafted + (first_call - 1) * 0.002 / 7
        stats = RoundStats(
            drafted=drafted,
            accepted=0,
            origin=DraftOrigin.AHEAD if mode == "ssd" and hit else DraftOrigin.FRESH,
            verify_s=slower * truth.verify * cost_s * (0.02 + 0.001 * (drafted + 1)),
            draft_s=slower * truth.step * cost_s * steps_s if mode == "sd" or waits else 0.0,
            wait_s=2 * truth.handoff_s + TRUTH["sd"].token_s * drafted + rng.choice((0, 0, 4e-3))
            if waits
            else 0.0,
            python_s=slower * (truth.round_s + truth.token_s * drafted) - TEXT_S,
        )
        found.append(RealRound(settings, depth, stats, stats.python_s + TEXT_S, first_call))
    return found


def misfit(costs: Costs, rounds: Sequence[RealRound]) -> float:
    """Return the predicted time of rounds of one mode in the real one, less 1; the drafter is left out."""
    mode = rounds[0].settings.mode
    predicted = real = 0.0
    for each in rounds:
        times, stats = Timing(costs, mode).at(each.depth), each.stats
        predicted += times.verify(stats.drafted + 1) + times.round_s + times.token_s * stats.drafted
        real += stats.verify_s + each.python_s
        if mode == "sd" and stats.drafted:
            predicted += times.waited_step(each.first_call) + times.waited_step(1) * (stats.drafted - 1)
            real += stats.draft_s
    return predicted / real - 1.0


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_fit_finds_what_the_rounds_were_made_of(noise: float) -> None:
    rounds = [each for mode in TRUTH for each in rounds_of(mode, noise=noise)]
    found = {overhead.mode: overhead for overhead in fit(CALLS, rounds)}
    assert set(found) == set(TRUTH)
    for mode, truth in TRUTH.items():
        assert found[mode].round_s == pytest.approx(truth.round_s, rel=0.15, abs=2e-5)
        assert found[mode].token_s == pytest.approx(truth.token_s, rel=0.15, abs=2e-5)
        assert found[mode].verify == pytest.approx(truth.verify, rel=0.02)
        assert found[mode].step == pytest.approx(truth.step, rel=0.02)
        assert found[mode].handoff_s == pytest.approx(truth.handoff_s, rel=0.3)
        costs = Costs(CALLS, (found[mode],))
        assert abs(misfit(costs, rounds_of(mode, noise=0.0))) < 0.02


def test_an_overhead_is_never_negative() -> None:
    settings = EngineSettings("sd", min_confidence=0.0)
    for python_s in ((8e-3, 7e-3, 5e-3, 1e-3), (0.0, 0.0, 0.0, 4e-3)):
        drafted = zip((1, 2, 4, 8), python_s, strict=True)
        stats = [RoundStats(n, 0, DraftOrigin.FRESH, 0.02, 0.01, 0.0, took_s) for n, took_s in drafted]
        (found,) = fit(CALLS, [RealRound(settings, 100, each, each.python_s) for each in stats])
        assert min(found.round_s, found.token_s) >= 0
        total_s = sum(found.round_s + found.token_s * each.drafted for each in stats)
        assert total_s == pytest.approx(sum(each.python_s for each in stats))


@dataclass
class Answering:
    """Models that write the same few rounds to every request."""

    has_draft: bool = True
    reason: FinishReason = "length"
    prepares: bool = True
    asked: list[Request] = field(default_factory=list)

    @property
    def target(self) -> ModelInfo:
        return INFO

    @property
    def draft(self) -> ModelInfo | None:
        return INFO if self.has_draft else None

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        self.asked.append(request)
        for number in range(4):
            yield TextDelta(())
            stats = RoundStats(number, number, DraftOrigin.FRESH, 9.0 if not number else 0.02, 0.0, 0.0, 1e-3)
            yield RoundDone(stats, number + 1)
        yield Finished(self.reason, Summary(prompt_tokens=50, misses=3 if self.prepares else 0))

    def modes(self) -> list[str]:
        return [request.settings.mode for request in self.asked]


def real(models: Answering, budget_s: float = 60.0) -> tuple[RealRound, ...]:
    return real_rounds(open_once(models), REQUESTS, budget_s)


def test_every_possible_mode_answers_alternately() -> None:
    models = Answering()
    rounds = real(models)
    assert models.modes() == ["off", "ngram", "sd", "ssd"] * 4
    assert [each.depth for each in rounds[:3]] == [51, 53, 56]  # the round that read the prompt is left out
    assert len(rounds) == 16 * 3
    assert len({request.settings.draft_length for request in models.asked}) > 2
    assert {request.max_tokens for request in models.asked} == {32}
    alone = Answering(has_draft=False)
    real(alone)
    assert set(alone.modes()) == {"off", "ngram"}


def test_without_time_every_mode_answers_once() -> None:
    models = Answering()
    real(models, budget_s=0.0)
    assert models.modes() == ["off", "ngram", "sd", "ssd"]


def test_what_cannot_draft_ahead_has_no_such_overhead() -> None:
    found = fit(CALLS, real_rounds(open_once(Answering(prepares=False)), REQUESTS))
    assert [overhead.mode for overhead in found] == ["off", "ngram", "sd"]


@dataclass
class OnCard(Answering):
    """Models on a GPU, which compiles something in the first round of each kind."""

    compiled: set[tuple[str, int]] = field(default_factory=set)

    @property
    def target(self) -> ModelInfo:
        return replace(INFO, devices=("Vulkan0",))

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        for event in super().generate(request):
            if isinstance(event, RoundDone) and event.stats.verify_s < 1:
                call = request.settings.mode, event.stats.drafted
                stats = event.stats if call in self.compiled else replace(event.stats, verify_s=50.0)
                self.compiled.add(call)
                yield replace(event, stats=stats)
            else:
                yield event


def test_what_a_gpu_compiles_is_not_an_overhead() -> None:
    models = OnCard()
    rounds = real(models)
    assert models.modes() == ["off", "ngram", "sd", "ssd"] * 5
    assert len(rounds) == 16 * 3
    assert {each.stats.verify_s for each in rounds} == {0.02}
    hurried = OnCard()
    assert len(real(hurried, budget_s=0.0)) == 4 * 3  # the answers that compile take none of the time


def test_a_cancel_is_passed_on() -> None:
    with pytest.raises(Cancelled):
        real(Answering(reason="cancelled"))


@pytest.mark.slow
def test_real_answers_on_pretended_gpus_are_explained(demo_target: Path, demo_draft: Path) -> None:
    target = ModelOptions(demo_target, context=512)
    sampling = Sampling(temperature=0.0)
    requests = [replace(request, sampling=sampling, max_tokens=16) for request in REQUESTS[:2]]
    with open_paced(
        target, replace(target, path=demo_draft), Pacing(0.02, 0.02), Pacing(0.005, 0.01)
    ) as models:
        calls = tuple(measure(open_once(models), depths=(32,), budget_s=0.2))
        found = fit(calls, real_rounds(open_once(models), requests))
    assert [overhead.mode for overhead in found] == ["off", "ngram", "sd", "ssd"]
    assert min(overhead.verify for overhead in found) > 0
    assert {overhead.step for overhead in found if overhead.mode != "sd"} == {1.0}
