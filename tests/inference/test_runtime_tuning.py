"""The runtime on the bundled pair: what the tuner gets from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.decoding.measurements import CostRequest, TraceSegment
from localspec.decoding.sampling import distribution, probability
from localspec.errors import Cancelled, ContextFullError, UserError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.llama.context import Context
from localspec.tuning.costs import call_costs
from localspec.tuning.trace import trace
from localspec.types.candidates import FullRow, top_candidates
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Request, Sampling
from tests.inference.runtimes import LONG_STORY, OFF, QUESTION, answer, greedy, open_pair
from tests.llama import tiny

PLAIN = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
PENALISED = replace(PLAIN, top_k=30, temperature=0.9, repetition_penalty=1.2)
WISH = CostRequest(depth=100, together=False, budget_s=0.0)


@pytest.fixture(scope="module")
def runtime(demo_target_q8: Path, demo_draft: Path) -> Iterator[Runtime]:
    with open_pair(demo_target_q8, demo_draft) as opened:
        yield opened


def held(runtime: Runtime) -> tuple[int, int]:
    contexts = runtime._contexts
    assert contexts.draft is not None
    return contexts.target.length(), contexts.draft.length()


def test_a_greedy_trace_is_plain_greedy_text(runtime: Runtime) -> None:
    request = greedy(EngineSettings(mode="ssd"))
    segment = trace(runtime, request)
    expected = [token for token, *_ in runtime.generate_tokens(replace(request, settings=OFF))]
    assert segment.tokens.tolist() == expected
    assert list(segment.prompt) == runtime.encode(QUESTION)
    assert segment.target_of_token.tolist() == [1.0] * 40
    assert segment.target_ids[:, 0].tolist() == expected
    agreed = segment.draft_ids == segment.tokens[:, None]
    assert np.array_equal(segment.target_of_draft == 1.0, agreed)
    assert 0.3 < agreed[:, 0].mean() < 1.0
    assert segment.decode_s > 0


@pytest.mark.parametrize("sampling", [PLAIN, PENALISED])
def test_a_trace_agrees_with_the_scores_of_both_models(
    runtime: Runtime, demo_draft: Path, sampling: Sampling
) -> None:
    request = Request(QUESTION, sampling, OFF, 60, seed=5)
    segment = trace(runtime, request)
    text = [*segment.prompt, *segment.tokens.tolist()]
    first = len(segment.prompt)
    for end, row in enumerate(runtime.score(text[:-1]), start=1):
        if end >= first:
            p, place = distribution(FullRow(row), sampling, text[first:end]), end - first
            assert segment.target_of_token[place] == pytest.approx(probability(p, text[end]), rel=1e-3)
            found = [probability(p, token) for token in segment.draft_ids[place].tolist()]
            assert segment.target_of_draft[place] == pytest.approx(found, rel=1e-3, abs=1e-6)
    options = ModelOptions(demo_draft, context=2048, flash_attention=False, threads=1)
    with Runtime.open(OpenPlan(options)) as draft:
        for end, row in enumerate(draft.score(text[:-1]), start=1):
            if end >= first:
                ids, logits = top_candidates(row[None], 8)
                place = end - first
                assert segment.draft_logits[place, :8] == pytest.approx(logits[0] - logits[0, 0], abs=0.05)
                assert segment.draft_ids[place, 0] in ids[0, :2]


def test_sampled_traces_repeat_and_are_accepted_as_often_as_they_should(runtime: Runtime) -> None:
    requests = [Request(QUESTION, PLAIN, OFF, 150, seed=seed) for seed in range(4)]
    segments = [trace(runtime, request) for request in requests]
    again = trace(runtime, requests[0])
    assert again.tokens.tolist() == segments[0].tokens.tolist()
    expected = [token for token, *_ in runtime.generate_tokens(requests[0])]
    assert again.tokens.tolist() == expected
    differences = np.concatenate([_accepted(segment) - _overlap(segment) for segment in segments])
    error = differences.std() / np.sqrt(len(differences))
    assert error < 0.02
    assert abs(differences.mean()) < 4 * error


Floats = NDArray[np.float64]


def _q(segment: TraceSegment) -> Floats:
    weights = np.exp(segment.draft_logits.astype(np.float64))
    q: Floats = weights / weights.sum(axis=1, keepdims=True)
    return q


def _overlap(segment: TraceSegment) -> Floats:
    overlap: Floats = np.minimum(_q(segment), segment.target_of_draft).sum(axis=1)
    return overlap


def _accepted(segment: TraceSegment) -> Floats:
    of_token = (_q(segment) * (segment.draft_ids == segment.tokens[:, None])).sum(axis=1)
    accepted: Floats = np.minimum(1.0, of_token / segment.target_of_token)
    return accepted


def test_an_answer_after_a_trace_is_what_it_always_is(runtime: Runtime) -> None:
    settings = EngineSettings(mode="ssd", min_confidence=0.2)
    expected, _ = answer(runtime, greedy(settings))
    trace(runtime, greedy(max_tokens=10))
    assert held(runtime) == (0, 0)
    text, end = answer(runtime, greedy(settings))
    assert text == expected
    assert end.summary.cached_tokens == 0
    assert runtime.measure_plain() is not None
    trace(runtime, greedy(max_tokens=10))
    assert runtime.measure_plain() is None


def test_a_prompt_that_cannot_be_traced_says_why(runtime: Runtime) -> None:
    with pytest.raises(ContextFullError):
        trace(runtime, greedy(prompt=LONG_STORY * 3))
    with pytest.raises(UserError, match="empty"):
        trace(runtime, greedy(prompt=""))


@pytest.mark.parametrize("together", [True, False])
def test_costs_are_measured_without_a_trace_in_the_caches(runtime: Runtime, together: bool) -> None:
    expected, _ = answer(runtime, greedy())
    found = call_costs(runtime, replace(WISH, together=together))
    assert (found.depth, found.together) == (100, together)
    assert {1, 2, 16} <= {size for size, _ in found.verify}
    assert {1, 2} <= {width for width, _ in found.step}
    assert max(width for width, _ in found.step) <= 17
    assert min(seconds for _, seconds in (*found.verify, *found.step)) > 0
    assert found.drift > 0
    assert held(runtime) == (0, 0)
    text, end = answer(runtime, greedy())
    assert text == expected
    assert end.summary.cached_tokens == 0


def test_branches_that_are_impossible_are_not_measured(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime._contexts, "can_branch", False)
    assert [width for width, _ in call_costs(runtime, WISH).step] == [1]


def test_a_depth_beyond_the_context_is_cut(demo_target: Path) -> None:
    with Runtime.open(OpenPlan(ModelOptions(demo_target, context=96, threads=1))) as alone:
        found = call_costs(alone, replace(WISH, depth=5000, together=True))
        assert (found.depth, found.together, found.step) == (80, False, ())
        segment = trace(alone, Request("the sea", PLAIN, OFF, seed=1))
        assert segment.draft_ids.shape == (len(segment.tokens), 0)


def test_a_model_with_a_recurrent_state_is_traced_and_measured(tmp_path: Path) -> None:
    with Runtime.open(OpenPlan(ModelOptions(tiny.recurrent(tmp_path / "recurrent.gguf")))) as opened:
        assert len(trace(opened, greedy(prompt="abc", max_tokens=5)).tokens)
        assert {1, 2, 16} <= dict(call_costs(opened, WISH).verify).keys()


@pytest.mark.parametrize("call", ["trace", "measure", "measure together"])
def test_a_cancel_ends_it_and_leaves_nothing_after(
    runtime: Runtime, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = answer(runtime, greedy())
    calls, evaluate = [0], Context.evaluate

    def cancelling(self: Context, tokens: list[int], logits: int = 1) -> object:
        calls[0] += 1
        if calls[0] == 8:
            runtime.cancel()
        return evaluate(self, tokens, logits)

    def work() -> object:
        if call == "trace":
            return trace(runtime, greedy(max_tokens=300))
        return call_costs(runtime, replace(WISH, together=call == "measure together", budget_s=30.0))

    with monkeypatch.context() as patched:
        patched.setattr(Context, "evaluate", cancelling)
        with pytest.raises(Cancelled):
            work()
    assert answer(runtime, greedy())[0] == expected
