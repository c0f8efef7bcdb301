"""No answer waits for a measurement: it begins with what is known, and what is not is measured afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from localspec.decoding.measure import measure
from localspec.decoding.policy import UNKNOWN_ROUNDS, CostCurve, LatencyModel, assumed_costs
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference import contexts
from localspec.inference.runtime import Runtime
from localspec.inference.worker.client import Worker
from localspec.inference.worker.wire import Measuring, Told
from localspec.types.events import RoundDone, TextDelta
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings
from localspec.units import UNMEASURED
from tests.decoding.toys import policy_of, stats
from tests.inference.runtimes import OFF, answer, greedy, open_pair

WAIT_S = 60.0
FLAT = LatencyModel(CostCurve({1: 0.030, 9: 0.032}), CostCurve({1: 0.006, 16: 0.008}))
MODES = (
    EngineSettings(mode="sd"),
    EngineSettings(mode="ssd"),
    EngineSettings(mode="ngram"),
    EngineSettings(mode="sd", fallback="ngram"),
)


@pytest.fixture
def fresh(demo_target_q8: Path, demo_draft: Path) -> Iterator[Runtime]:
    with open_pair(demo_target_q8, demo_draft) as opened:
        yield opened


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Count the measurements of costs."""
    calls, original = list[bool](), measure

    def counted(*models: object, together: bool, **how: object) -> object:
        calls.append(together)
        return original(*models, together=together, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(contexts, "measure", counted)
    return calls


@pytest.mark.parametrize("steps_down", [False, True])
@pytest.mark.parametrize("settings", MODES, ids=range(len(MODES)))
def test_an_answer_measures_nothing_and_is_right(
    fresh: Runtime, measured: list[bool], settings: EngineSettings, steps_down: bool
) -> None:
    expected, _ = answer(fresh, greedy(OFF, max_tokens=60))
    request = replace(greedy(settings, max_tokens=60), steps_down=steps_down, reuses_cache=False)
    assert answer(fresh, request)[0] == expected
    assert measured == []
    assert fresh.lacks_costs


def test_the_first_rounds_are_plain_and_give_the_costs_their_scale(fresh: Runtime) -> None:
    request = replace(greedy(EngineSettings(mode="sd"), max_tokens=30), steps_down=True)
    rounds = [event.stats for event in fresh.generate(request) if isinstance(event, RoundDone)]
    assert [each.drafted for each in rounds[: UNKNOWN_ROUNDS + 1]] == [0] * (UNKNOWN_ROUNDS + 1)
    usual = sorted(each.verify_s for each in rounds[1 : UNKNOWN_ROUNDS + 1])
    costs = fresh._engine.ready_costs(together=False)
    assert usual[0] / 3 < costs.verify(1) < 3 * usual[-1]


def test_settings_are_chosen_at_once_and_stand_until_costs_are_measured(
    fresh: Runtime, measured: list[bool]
) -> None:
    first = fresh.known_settings()
    assert measured == []
    assert (first[0].mode, first[1]) == ("off", UNMEASURED)
    answer(fresh, replace(greedy(first[0]), steps_down=True))
    assert fresh.known_settings() == first
    fresh.measure_between_answers(lambda: False)
    assert False in measured
    assert "measured costs" in fresh.known_settings()[1]
    assert fresh.known_settings() == fresh.known_settings()


def test_both_models_at_once_are_measured_where_drafting_ahead_may_be_fastest(
    fresh: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[bool]()

    def flat(*_models: object, together: bool, **_how: object) -> LatencyModel:
        calls.append(together)
        return FLAT

    monkeypatch.setattr(contexts, "measure", flat)
    settings, _ = fresh.known_settings()
    answer(fresh, greedy(settings, max_tokens=4))
    fresh.measure_between_answers(lambda: False)
    assert calls == [False, True]
    assert fresh.known_settings()[0].mode == "ssd"


@pytest.mark.parametrize("limit_s", [0.0, WAIT_S])
def test_what_takes_too_long_before_leaving_is_dropped(
    demo_target_q8: Path, demo_draft: Path, monkeypatch: pytest.MonkeyPatch, limit_s: float
) -> None:
    options = ModelOptions(demo_target_q8, context=256, threads=1)
    plan = OpenPlan(options, replace(options, path=demo_draft), max_fan_out=4, remembers_costs=True)
    with Runtime.open(plan) as runtime:
        settings, _ = runtime.known_settings()
        answer(runtime, greedy(settings, max_tokens=4))
        if not limit_s:
            monkeypatch.setattr("localspec.decoding.measure.PASSES", 10**9)
            monkeypatch.setattr(contexts, "MEASURE_S", 1e9)
        else:  # what a busy machine takes may be implausible, and is not kept then
            monkeypatch.setattr(contexts, "measure", lambda *_models, **_how: FLAT)
        runtime.measure_before_leaving(limit_s)
        assert runtime.lacks_costs is not bool(limit_s)
    with Runtime.open(plan) as again:
        assert (again.known_settings()[1] == UNMEASURED) is not bool(limit_s)


def test_what_is_measured_between_answers_leaves_the_conversation_in_the_cache(
    fresh: Runtime, measured: list[bool]
) -> None:
    request = replace(greedy(EngineSettings(mode="sd"), max_tokens=20), steps_down=True)
    expected, _ = answer(fresh, request)
    held = list(fresh._engine.decoder.cached_tokens())
    fresh.measure_between_answers(lambda: False)
    assert not fresh.lacks_costs
    assert measured == [False]
    assert (fresh._engine.decoder.cached_tokens(), fresh._contexts.target.length()) == (held, len(held))
    found, end = answer(fresh, request)
    assert found == expected
    assert end.summary.cached_tokens == end.summary.prompt_tokens - 1


def test_a_question_ends_the_measurement(fresh: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    request = replace(greedy(EngineSettings(mode="sd"), max_tokens=20), steps_down=True)
    expected, _ = answer(fresh, request)
    fresh.measure_between_answers(lambda: True)
    assert fresh.lacks_costs

    def interrupted(*_: object, **__: object) -> None:
        fresh.cancel()
        fresh._contexts.target.evaluate([1])

    monkeypatch.setattr(contexts, "measure", interrupted)
    fresh.measure_between_answers(lambda: False)
    assert fresh.lacks_costs
    assert answer(fresh, request)[0] == expected


def test_the_draft_model_does_not_read_the_prompt_next_to_the_target_on_one_cpu(
    fresh: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft, seen = fresh._contexts.draft, list[str]()
    assert draft is not None
    for name in ("evaluate", "step"):
        call: Callable[..., object] = getattr(draft, name)

        def noted(call: Callable[..., object], *arguments: object) -> object:
            seen.append("draft")
            return call(*arguments)

        monkeypatch.setattr(draft, name, partial(noted, call))
    request = replace(greedy(EngineSettings(mode="ssd"), max_tokens=60), steps_down=True)
    for event in fresh.generate(request):
        if isinstance(event, TextDelta | RoundDone):
            seen.append("text")
    assert seen[0] == "text"
    assert "draft" in seen


def test_assumed_costs_draft_nothing_before_they_have_their_scale() -> None:
    costs = assumed_costs(0.1, on_card=False)
    policy = policy_of(costs, EngineSettings(mode="sd"))
    for _ in range(UNKNOWN_ROUNDS):
        assert not policy.worth_drafting([], 8)
        assert policy.length_to_send([1.0, 1.0], 8) == 0
        policy.observe(stats(each_s=0.01), 1)
    policy.step.observe(1, 0.001)
    assert costs.verify(1) == pytest.approx(0.01)
    assert costs.verify(9) == pytest.approx(0.02)
    assert costs.step(16) == pytest.approx(0.0015)
    assert costs.seconds_per_token == pytest.approx(0.04)
    assert policy.worth_drafting([], 8)


def test_a_confidence_that_was_asked_for_needs_no_costs() -> None:
    policy = policy_of(assumed_costs(0.1, on_card=False), EngineSettings(mode="sd", min_confidence=0.0))
    assert policy.worth_drafting([], 8)


@pytest.mark.slow
def test_the_process_of_the_models_measures_while_nobody_asks(
    demo_target: Path, demo_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ModelOptions(demo_target, context=256, threads=1)
    with Worker.open(OpenPlan(options, replace(options, path=demo_draft), max_fan_out=4)) as worker:
        measured = threading.Event()
        deliver = worker._process._deliver

        def watched(reply: Told) -> None:
            deliver(reply)
            if isinstance(reply, Measuring) and not reply.is_under_way:
                measured.set()

        monkeypatch.setattr(worker._process, "_deliver", watched)
        request = replace(greedy(EngineSettings(mode="sd"), max_tokens=5), steps_down=True)
        first = [event for event in worker.generate(request) if isinstance(event, TextDelta)]
        assert "until the speed" in worker.known_settings()[1]
        again = [event for event in worker.generate(request) if isinstance(event, TextDelta)]
        assert again == first
        while "measured costs" not in worker.known_settings()[1]:
            assert measured.wait(WAIT_S)  # in peace: a question would end the measurement
            measured.clear()
