from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from localspec.decoding.drafters.proposer import Proposal, RowProposer
from localspec.decoding.sampling import probability
from localspec.errors import EngineError
from localspec.types.candidates import FullRows
from localspec.types.request import EngineSettings, Mode, Sampling
from tests.chi_square import chi_square_p_value
from tests.decoding.toys import GREEDY, PLAIN, proposer_of

ROWS = np.array([[0.0, 3.0, 1.0, 2.0, -1.0], [5.0, 0.0, 0.0, 4.0, 1.0]], dtype=np.float32)
MATCH = EngineSettings(acceptance="match")


@pytest.mark.parametrize(("sampling", "settings"), [(GREEDY, EngineSettings()), (PLAIN, MATCH)])
def test_greedy_and_match_take_the_best_token_without_chance(
    sampling: Sampling, settings: EngineSettings
) -> None:
    proposer = proposer_of(sampling, settings)
    assert proposer.deterministic
    first, second = proposer.propose(FullRows(ROWS))
    assert (first.token, second.token) == (1, 0)
    assert first.q is None
    assert [token for token, _ in first.guesses[:3]] == [1, 3, 2]
    softmax = np.exp(ROWS[0]) / np.exp(ROWS[0]).sum()
    assert dict(first.guesses) == pytest.approx(dict(enumerate(softmax)), abs=1e-5)
    assert first.confidence == pytest.approx(softmax[1], abs=1e-5)


@pytest.mark.parametrize("mode", ["sd", "ssd"])
@pytest.mark.parametrize("sampling", [GREEDY, PLAIN, replace(GREEDY, presence_penalty=0.5)])
def test_a_draft_model_without_numbers_is_an_error(mode: Mode, sampling: Sampling) -> None:
    rows = np.full((1, 400), np.nan, dtype=np.float32)
    with pytest.raises(EngineError, match="not numbers"):
        proposer_of(sampling, EngineSettings(mode)).propose(FullRows(rows), [[1, 3]])


def test_match_sees_the_chances_at_the_sampling_temperature() -> None:
    hot = proposer_of(replace(PLAIN, temperature=3.0), MATCH).propose(FullRows(ROWS))[0]
    cold = proposer_of(replace(PLAIN, temperature=0.3), MATCH).propose(FullRows(ROWS))[0]
    assert hot.confidence < proposer_of(PLAIN, MATCH).propose(FullRows(ROWS))[0].confidence < cold.confidence


def test_rejection_draws_from_the_very_q_that_it_hands_over() -> None:
    settings = EngineSettings(saguaro_c=0.4, draft_temperature=1.3)
    proposer = proposer_of(replace(PLAIN, top_k=4), settings)
    assert not proposer.deterministic
    counts = np.zeros(5)
    for _ in range(3000):
        proposal = proposer.propose(FullRows(ROWS[:1]))[0]
        counts[proposal.token] += 1
    q = proposal.q
    assert q is not None
    assert q.ids is not None
    expected = np.zeros(5)
    expected[q.ids] = q.probs
    assert len(q.ids) == 4
    assert chi_square_p_value(counts, expected) > 1e-4


@pytest.mark.parametrize("sampling", [PLAIN, replace(PLAIN, presence_penalty=0.5)])
def test_confidence_and_drafts_are_the_same_whatever_is_drawn(sampling: Sampling) -> None:
    proposals = [
        proposer_of(sampling, seed=seed).propose(FullRows(ROWS[:1]), [[1, 3]])[0] for seed in range(50)
    ]
    assert len({proposal.token for proposal in proposals}) > 2
    assert len({(proposal.confidence, proposal.guesses) for proposal in proposals}) == 1


def test_draws_differ_from_call_to_call_and_repeat_with_the_seed() -> None:
    def draws(proposer: RowProposer) -> list[int]:
        return [proposer.propose(FullRows(ROWS[:1]))[0].token for _ in range(40)]

    first = draws(proposer_of(PLAIN, seed=3))
    assert len(set(first)) > 1
    assert draws(proposer_of(PLAIN, seed=3)) == first
    assert draws(proposer_of(PLAIN, seed=4)) != first


def test_a_draft_temperature_flattens_and_saguaro_lowers_the_best() -> None:
    def chances(settings: EngineSettings) -> list[float]:
        q = proposer_of(PLAIN, settings).propose(FullRows(ROWS[:1]))[0].q
        assert q is not None
        return [probability(q, token) for token in range(5)]

    plain = chances(EngineSettings())
    assert chances(EngineSettings(draft_temperature=2.0))[1] < plain[1]
    lowered = chances(EngineSettings(saguaro_c=0.2, fan_out_budget=9, draft_length=8))
    assert lowered[1] < plain[1]
    assert lowered[4] > plain[4]


@pytest.mark.parametrize(
    "settings", [EngineSettings(), EngineSettings(draft_temperature=3.0, saguaro_c=0.2), MATCH]
)
def test_drafts_are_what_the_draft_model_thinks_whatever_is_drawn_from(settings: EngineSettings) -> None:
    """What replaces a rejected token is often one that q leaves out."""
    proposal = proposer_of(replace(PLAIN, top_k=2, min_p=0.3), settings).propose(FullRows(ROWS[:1]))[0]
    softmax = np.exp(ROWS[0]) / np.exp(ROWS[0]).sum()
    assert proposal.q is None or len(proposal.q.probs) == 2
    assert dict(proposal.guesses) == pytest.approx(dict(enumerate(softmax)), abs=1e-5)
    assert proposal.weight == pytest.approx(softmax[proposal.token], abs=1e-5)


def test_a_token_that_is_not_a_draft_has_no_weight() -> None:
    assert Proposal(7, 0.5, ((1, 0.5), (2, 0.2)), None).weight == 0.0


@pytest.mark.parametrize(
    ("sampling", "settings"), [(PLAIN, EngineSettings()), (PLAIN, MATCH), (GREEDY, EngineSettings())]
)
def test_penalties_look_at_the_history_of_each_row(sampling: Sampling, settings: EngineSettings) -> None:
    proposer = proposer_of(replace(sampling, presence_penalty=50.0), settings)
    assert proposer.needs_history
    first, second = proposer.propose(FullRows(ROWS), [[1, 4], [3]])
    assert [token for token, _ in first.guesses[:2]] == [3, 2]
    assert [token for token, _ in second.guesses[:2]] == [0, 4]


def test_penalties_see_nothing_before_the_answer() -> None:
    random = np.random.default_rng(0)
    proposer = RowProposer(replace(GREEDY, presence_penalty=50.0), EngineSettings(), random, answer_start=2)
    before, after = proposer.propose(FullRows(ROWS[:1].repeat(2, axis=0)), [[1, 4], [3, 3, 1]])
    assert before.token == 1
    assert after.token == 3


def test_without_penalties_no_history_is_needed() -> None:
    assert not proposer_of(PLAIN).needs_history
    assert not proposer_of(GREEDY).needs_history
