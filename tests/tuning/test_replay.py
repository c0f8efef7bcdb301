"""Precomputed proposals against the engine's own, and the coins against the theory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.decoding.drafters.proposer import CANDIDATES, Proposal
from localspec.decoding.sampling import probability
from localspec.decoding.verify import verify
from localspec.tuning.simulator.replay import Shape, candidates
from localspec.types.drafts import Draft
from localspec.types.request import EngineSettings, Sampling
from tests.tuning.written import PROMPT, Written

GREEDY = Sampling(temperature=0.0)
USUAL = Sampling()
PLAIN = Sampling(1.0, 0, 1.0, 0.0)
PENALISED = Sampling(presence_penalty=1.5, frequency_penalty=0.2, penalty_window=8)
SSD = EngineSettings(mode="ssd")


def weights(proposals: Sequence[Proposal]) -> NDArray[np.float64]:
    return np.array([weight for proposal in proposals for _, weight in proposal.guesses])


@pytest.mark.parametrize("sampling", [GREEDY, USUAL, PLAIN, PENALISED], ids=lambda s: f"{s}"[:40])
@pytest.mark.parametrize("acceptance", ["match", "rejection"])
@pytest.mark.parametrize(
    "shape", [{}, {"draft_temperature": 0.6}, {"draft_temperature": 1.4, "saguaro_c": 0.4}]
)
def test_drafts_and_confidences_are_those_of_the_proposer(
    sampling: Sampling, acceptance: str, shape: dict[str, float]
) -> None:
    written = Written(sampling)
    settings = replace(SSD, acceptance=acceptance, **shape)  # type: ignore[arg-type]
    expected = written.proposals(settings)
    found = written.replay().script(Shape.of(sampling, settings)).judged
    assert [tuple(t for t, _ in p.guesses) for p in found] == [
        tuple(t for t, _ in p.guesses) for p in expected
    ]
    np.testing.assert_allclose(weights(found), weights(expected), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(
        [p.confidence for p in found], [p.confidence for p in expected], rtol=1e-5, atol=1e-9
    )
    if sampling.temperature <= 0 or acceptance == "match":
        assert [p.token for p in found] == [p.token for p in expected]


def test_penalties_see_nothing_of_the_prompt() -> None:
    harsh = Sampling(presence_penalty=10.0)
    segment = Written(harsh).segment()
    best = segment.draft_ids[0, :CANDIDATES].tolist()
    ids, _ = candidates(replace(segment, prompt=(best[0],)), harsh)
    assert ids[0].tolist() == best


def test_settings_that_choose_alike_share_a_script() -> None:
    for one, other in [
        (SSD, replace(SSD, draft_length=3, fan_out_budget=9)),
        (replace(SSD, acceptance="match"), replace(SSD, acceptance="match", draft_temperature=0.5)),
    ]:
        assert Shape.of(USUAL, one) == Shape.of(USUAL, other)
    for one, other in [(SSD, replace(SSD, mode="sd")), (SSD, replace(SSD, saguaro_c=0.5))]:
        assert Shape.of(USUAL, one) != Shape.of(USUAL, other)


def test_confidence_of_the_best_token_alone_is_close_to_that_of_a_folded_row() -> None:
    """Of the columns of a folded row only some have a traced candidate; the rest is estimated."""
    written = Written(GREEDY, tokens=200, vocabulary=4096)
    settings = replace(SSD, mode="sd")
    expected = np.array([p.confidence for p in written.proposals(settings)])
    script = written.replay().script(Shape.of(GREEDY, settings))
    found = np.array([p.confidence for p in script.judged])
    assert np.abs(np.log(found / expected)).mean() < 0.1
    untailed = np.array([p.confidence for p in script.judged])
    assert untailed.min() > 0
    assert [p.token for p in script.judged] == [p.token for p in written.proposals(settings)]


@pytest.mark.parametrize("sampling", [USUAL, PLAIN, PENALISED], ids=lambda s: f"{s}"[:40])
def test_as_many_drawn_tokens_are_accepted_as_the_engine_accepts(sampling: Sampling) -> None:
    settings = replace(SSD, draft_temperature=0.8)
    accepted, real, places = 0, 0, 0
    for seed in range(12):
        written = Written(sampling, tokens=150, seed=seed)
        script = written.replay().script(Shape.of(sampling, settings))
        tokens = written.text[len(PROMPT) :]
        accepted += sum(p.token == token for p, token in zip(script.judged, tokens, strict=True))
        uniforms = np.random.default_rng(seed)
        for p, proposal in zip(written.p, written.proposals(settings), strict=True):
            assert proposal.q is not None
            draft = Draft((proposal.token,), (proposal.q,))
            real += verify(draft, lambda _, p=p: p, "rejection", uniforms).accepted  # type: ignore[misc]
        places += len(tokens)
    assert accepted / places == pytest.approx(real / places, abs=0.035)


def test_unjudged_tokens_know_nothing_of_the_text() -> None:
    """The bonus token after a full draft is drawn from p, the draft from q: they meet by chance only."""
    met, expected, places = 0, 0.0, 0
    for seed in range(12):
        written = Written(PLAIN, tokens=150, seed=seed)
        proposals = written.proposals(SSD)
        script = written.replay().script(Shape.of(PLAIN, SSD))
        for p, proposal, guess, token in zip(
            written.p, proposals, script.unjudged, written.text[len(PROMPT) :], strict=True
        ):
            assert proposal.q is not None
            assert proposal.q.ids is not None
            expected += sum(
                q * probability(p, t)
                for t, q in zip(proposal.q.ids.tolist(), proposal.q.probs.tolist(), strict=True)
            )
            met += guess.token == token
        places += len(script.unjudged)
    assert met / places == pytest.approx(expected / places, abs=0.035)


def test_rejected_tokens_are_drawn_where_the_draft_model_says_too_much() -> None:
    written = Written(PLAIN, tokens=300)
    script = written.replay().script(Shape.of(PLAIN, SSD))
    proposals = written.proposals(SSD)
    tokens = written.text[len(PROMPT) :]
    rejected = 0
    for p, proposal, judged, token in zip(written.p, proposals, script.judged, tokens, strict=True):
        if judged.token != token:
            rejected += 1
            assert proposal.q is not None
            assert probability(proposal.q, judged.token) > probability(p, judged.token)
    assert rejected > 20


def test_all_settings_replay_the_same_random_numbers() -> None:
    """A setting that accepts with a smaller chance everywhere never accepts what the other rejects."""
    written = Written(PLAIN, tokens=200)
    replay, tokens = written.replay(), written.text[len(PROMPT) :]

    def accepted(settings: EngineSettings) -> set[int]:
        script = replay.script(Shape.of(PLAIN, settings))
        return {n for n, (p, token) in enumerate(zip(script.judged, tokens, strict=True)) if p.token == token}

    again = Written(PLAIN, tokens=200).replay().script(Shape.of(PLAIN, SSD))
    assert again == replay.script(Shape.of(PLAIN, SSD))
    sharp, usual = accepted(replace(SSD, draft_temperature=0.3)), accepted(SSD)
    assert len(usual & sharp) / min(len(usual), len(sharp)) > 0.9
