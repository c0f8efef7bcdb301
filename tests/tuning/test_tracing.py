from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from localspec.decoding.engine import Engine
from localspec.decoding.measurements import TraceSegment
from localspec.decoding.model import LanguageModel
from localspec.decoding.policy import CostCurve, LatencyModel
from localspec.decoding.rounds import DecodeParams, Round
from localspec.decoding.sampling import distribution, probability
from localspec.errors import Cancelled
from localspec.tuning import trace
from localspec.tuning.trace import Tracer
from localspec.types.candidates import FullRow
from localspec.types.request import EngineSettings, Sampling
from tests.decoding.toys import GREEDY, PLAIN
from tests.fake_model import FakeModel

PROMPT = [3, 1, 4, 1, 5]
TRUNCATED = Sampling(temperature=0.8, top_k=9, top_p=0.9, min_p=0.02)
PENALISED = replace(TRUNCATED, repetition_penalty=1.3, presence_penalty=0.2, penalty_window=7)
SAMPLINGS = pytest.mark.parametrize("sampling", [GREEDY, PLAIN, TRUNCATED, PENALISED])


def task_of(sampling: Sampling, tokens: int, ends: frozenset[int] = frozenset()) -> DecodeParams:
    return DecodeParams(sampling, "rejection", 0, tokens, ends, answer_start=len(PROMPT))


def traced(
    sampling: Sampling,
    tokens: int = 100,
    *,
    target: FakeModel | None = None,
    draft: LanguageModel | None = None,
    candidates: int = 16,
) -> TraceSegment:
    target, draft = target or FakeModel(), draft or FakeModel(noise=1.0, sequences=4)
    return Tracer(target, draft, candidates).trace(PROMPT, task_of(sampling, tokens), seed=7)


@SAMPLINGS
def test_the_text_is_that_of_plain_decoding_with_the_same_seed(sampling: Sampling) -> None:
    rounds = Engine(FakeModel()).rounds(
        PROMPT,
        EngineSettings(mode="off"),
        task_of(sampling, 100),
        LatencyModel(CostCurve({1: 1.0}), CostCurve({1: 1.0})),
        seed=7,
    )
    expected = [token for event in rounds if isinstance(event, Round) for token in event.tokens]
    segment = traced(sampling)
    assert segment.tokens.tolist() == expected
    assert segment.prompt == tuple(PROMPT)
    assert not segment.ended


@SAMPLINGS
def test_every_row_is_what_both_models_think_there(sampling: Sampling) -> None:
    target, draft = FakeModel(), FakeModel(noise=1.0)
    segment = traced(sampling, 150, candidates=6)
    text = list(PROMPT)
    for row, token in enumerate(segment.tokens.tolist()):
        p = distribution(FullRow(target.logits_after(text)), sampling, text[len(PROMPT) :])
        logits = draft.logits_after(text)
        best = np.argsort(-logits)[:6]
        assert segment.draft_ids[row].tolist() == best.tolist()
        assert segment.draft_logits[row] == pytest.approx(logits[best] - logits.max(), abs=1e-6)
        expected = [probability(p, each) for each in best.tolist()]
        assert segment.target_of_draft[row] == pytest.approx(expected)
        assert segment.target_of_token[row] == pytest.approx(probability(p, token))
        ranked = sorted(((probability(p, each), each) for each in range(16)), reverse=True)
        kept = [(each, chance) for chance, each in ranked[:6] if chance > 0]
        found = zip(segment.target_ids[row].tolist(), segment.target_probs[row].tolist(), strict=True)
        assert [pair for pair in found if pair[1] > 0] == [(each, pytest.approx(p)) for each, p in kept]
        text.append(token)


def test_where_there_are_fewer_candidates_the_rest_is_marked() -> None:
    segment = traced(GREEDY, 20, draft=FakeModel(5, noise=1.0), candidates=8)
    assert segment.target_ids[:, 0].tolist() == segment.tokens.tolist()
    assert set(segment.target_ids[:, 1:].ravel().tolist()) == {-1}
    assert segment.target_probs.sum(axis=1).tolist() == [1.0] * 20
    assert set(segment.draft_ids[:, 5:].ravel().tolist()) == {-1}
    assert set(segment.draft_logits[:, 5:].ravel().tolist()) == {-np.inf}
    assert not segment.target_of_draft[:, 5:].any()
    dtypes = {segment.target_ids.dtype, segment.draft_ids.dtype, segment.tokens.dtype}
    assert dtypes == {np.dtype(np.int32)}


@pytest.mark.slow
@SAMPLINGS
def test_a_draft_token_is_accepted_as_often_as_the_distributions_overlap(sampling: Sampling) -> None:
    segment = traced(sampling, 1000)
    weights = np.exp(segment.draft_logits.astype(np.float64))
    q = weights / weights.sum(axis=1, keepdims=True)
    overlap = np.minimum(q, segment.target_of_draft).sum(axis=1)
    of_token = (q * (segment.draft_ids == segment.tokens[:, None])).sum(axis=1)
    accepted = np.minimum(1.0, of_token / segment.target_of_token)
    error = (accepted - overlap).std() / np.sqrt(len(accepted))
    assert 0.2 < overlap.mean() < 0.9
    assert abs((accepted - overlap).mean()) < 4 * error + 1e-6


def test_the_draft_model_may_follow_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, draft = traced(PLAIN, 200), FakeModel(noise=1.0)
    monkeypatch.setattr(trace, "MAX_WAITING", 400)
    parts = traced(PLAIN, 200, draft=draft)
    assert len(draft.calls) > 5
    assert np.array_equal(parts.draft_ids, whole.draft_ids)
    assert np.array_equal(parts.target_of_draft, whole.target_of_draft)


@pytest.mark.parametrize("vocabulary", [12, 20])
def test_vocabularies_may_differ_a_little(vocabulary: int) -> None:
    segment = traced(PLAIN, 200, draft=FakeModel(vocabulary, noise=1.0), candidates=12)
    assert 12 <= segment.tokens.max() < 16
    assert 0 <= segment.draft_ids.min() <= segment.draft_ids.max() < min(vocabulary, 16)


def test_without_a_draft_model_there_is_nothing_of_it() -> None:
    segment = Tracer(FakeModel(), None, 16).trace(PROMPT, task_of(PLAIN, 9), seed=1)
    arrays = (segment.draft_ids, segment.draft_logits, segment.target_of_draft)
    assert {array.shape for array in arrays} == {(9, 0)}


def test_an_end_token_is_the_last() -> None:
    end = traced(GREEDY, 30).tokens.tolist()[12]
    segment = Tracer(FakeModel(), FakeModel(), 4).trace(PROMPT, task_of(GREEDY, 30, frozenset([end])), 7)
    assert segment.ended
    assert segment.tokens.tolist().index(end) == len(segment.tokens) - 1


def test_the_time_is_that_of_plain_decoding_after_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = itertools.count()
    monkeypatch.setattr("localspec.decoding.loop.time.perf_counter", lambda: float(next(looks)))
    assert traced(GREEDY, 1).decode_s == 0.0
    assert traced(GREEDY, 30).decode_s == 29.0  # seconds: a round looks when it begins and when it ends


def test_a_long_answer_ends_with_the_context_and_a_cancel_at_once() -> None:
    assert len(traced(PLAIN, 999, target=FakeModel(context=40)).tokens) == 35
    target = FakeModel()
    target._delay = lambda: target.cancel() if len(target.calls) == 9 else None
    with pytest.raises(Cancelled):
        traced(PLAIN, 99, target=target)
