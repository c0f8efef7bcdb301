"""Each rule of exactness is broken on purpose, and the contract notices."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from localspec.decoding import sampling, verify
from localspec.decoding.drafters import model_drafter, proposer
from localspec.decoding.drafters.proposer import Guesses, Proposal, RowProposer
from localspec.decoding.verify import Target, Uniforms
from localspec.types.drafts import Distribution, Draft, DraftOrigin, VerifyOutcome
from localspec.types.request import Acceptance, EngineSettings
from tests.contract import SIGNIFICANT, EngineContract

pytestmark = pytest.mark.slow

SD = EngineSettings(mode="sd", draft_length=4, min_confidence=0.0)
SSD = EngineSettings(mode="ssd", draft_length=4, fan_out_budget=8, min_confidence=0.0)
Drawn = Callable[[RowProposer, list[int], list[float], Guesses], Proposal]

both = pytest.mark.parametrize("settings", [SD, SSD])


def lowest_p_value(settings: EngineSettings, tokens: int = 2000) -> float:
    contract = EngineContract()
    contract.settings = settings
    return contract.lowest_p_value(tokens)


def test_prepared_drafts_are_really_judged() -> None:
    contract = EngineContract()
    contract.settings = SSD
    judged = 0
    for _ in range(10):  # on a busy machine few drafts are prepared
        judged += len(contract.uniform_values(tokens=2000)[DraftOrigin.AHEAD])
        if judged > 500:
            return
    raise AssertionError(f"only {judged} tokens of prepared drafts were judged")


@both
def test_an_accept_test_with_another_q_is_noticed(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scaled(p: Distribution, token: int) -> float:
        is_q = p.ids is not None  # p spans the vocabulary here
        return sampling.probability(p, token) * (0.5 if is_q else 1.0)

    monkeypatch.setattr(verify, "probability", scaled)
    contract = EngineContract()
    contract.settings = settings
    with pytest.raises(AssertionError):
        contract.test_every_sampled_token_follows_the_target()


@both
def test_a_residual_that_is_the_target_itself_is_noticed(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def whole(p: Distribution, _: Distribution | int) -> Distribution:
        return p

    monkeypatch.setattr(verify, "residual", whole)
    assert lowest_p_value(settings) < SIGNIFICANT


@both
def test_accepting_whatever_the_target_likes_best_is_noticed(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greedily(draft: Draft, target: Target, _: Acceptance, rng: Uniforms) -> VerifyOutcome:
        for accepted, token in enumerate(draft.tokens):
            p = target(accepted)
            if token != int(p.probs.argmax()):
                return VerifyOutcome(accepted, sampling.draw(p, rng.random()))
        accepted = len(draft.tokens)
        return VerifyOutcome(accepted, sampling.draw(target(accepted), rng.random()))

    monkeypatch.setattr(verify, "verify", greedily)
    assert lowest_p_value(settings) < SIGNIFICANT


@pytest.mark.parametrize("settings", [replace(SD, saguaro_c=0.05), replace(SSD, saguaro_c=0.05)])
def test_a_q_without_its_down_weighting_is_noticed(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    original: Drawn = proposer.RowProposer._drawn

    def forgetful(self: RowProposer, ids: list[int], logits: list[float], guesses: Guesses) -> Proposal:
        told = sampling.draft_distribution(ids, logits, self._sampling, EngineSettings(saguaro_c=1.0), ())
        return original(self, ids, logits, guesses)._replace(q=told)

    monkeypatch.setattr(proposer.RowProposer, "_drawn", forgetful)
    assert lowest_p_value(settings) < SIGNIFICANT


def test_a_draft_shortened_by_its_own_tokens_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_unlikely(proposals: Sequence[Proposal], origin: DraftOrigin, _copied: Sequence[int]) -> Draft:
        kept = []
        for proposal in proposals:
            assert proposal.q is not None
            assert proposal.q.ids is not None
            if proposal.token != proposal.q.ids[0]:
                break
            kept.append(proposal)
        q = tuple(proposal.q for proposal in kept if proposal.q is not None)
        return Draft(tuple(proposal.token for proposal in kept), q, origin) if kept else Draft()

    monkeypatch.setattr(model_drafter, "draft_of", without_unlikely)
    assert lowest_p_value(SD, tokens=6000) < SIGNIFICANT


def test_one_random_stream_for_both_models_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twin:
        def __init__(self, _: int) -> None:
            pass

        def spawn(self, count: int) -> list[int]:
            return [5] * count

    monkeypatch.setattr(np.random, "SeedSequence", Twin)
    assert lowest_p_value(SD, tokens=12000) < SIGNIFICANT
