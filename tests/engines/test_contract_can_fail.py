"""Each rule of exactness is broken on purpose, and the contract notices."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from localspec.engines import drafters, propose, verify
from localspec.engines.propose import Proposal
from localspec.engines.verify import Target, Uniforms
from localspec.sampling import draw
from localspec.testing.contract import SIGNIFICANT, EngineContract, ks_uniform_p_value
from localspec.types import Distribution, Draft, DraftOrigin, EngineSettings, VerifyOutcome

SD = EngineSettings(mode="sd", draft_length=4, min_confidence=0.0)
SSD = EngineSettings(mode="ssd", draft_length=4, fan_out_budget=8, min_confidence=0.0)


def lowest_p_value(settings: EngineSettings, tokens: int = 4000) -> float:
    contract = EngineContract()
    contract.settings = settings
    values = contract.uniform_values(tokens)
    pooled = [value for found in values.values() for value in found]
    return min(ks_uniform_p_value(found) for found in [*values.values(), pooled])


def test_prepared_drafts_are_really_judged() -> None:
    contract = EngineContract()
    contract.settings = SSD
    assert len(contract.uniform_values(tokens=2000)[DraftOrigin.AHEAD]) > 500


@pytest.mark.parametrize("settings", [SD, SSD])
def test_an_accept_test_with_another_q_is_noticed(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = verify.probability

    def scaled(p: Distribution, token: int) -> float:
        return whole(p, token) * (0.5 if p.ids is not None else 1.0)  # only q has a list of ids here

    monkeypatch.setattr(verify, "probability", scaled)
    assert lowest_p_value(settings) < SIGNIFICANT


@pytest.mark.parametrize("settings", [SD, SSD])
def test_a_residual_that_is_the_target_itself_is_noticed(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "residual", lambda p, q: p)
    assert lowest_p_value(settings) < SIGNIFICANT


@pytest.mark.parametrize("settings", [SD, SSD])
def test_accepting_whatever_the_target_likes_best_is_noticed(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greedily(draft: Draft, target: Target, rng: Uniforms) -> VerifyOutcome:
        for accepted, token in enumerate(draft.tokens):
            p = target(accepted)
            if token != int(p.probs.argmax()):
                return VerifyOutcome(accepted, draw(p, rng.random()))
        return VerifyOutcome(len(draft.tokens), draw(target(len(draft.tokens)), rng.random()))

    monkeypatch.setattr(verify, "_reject", greedily)
    assert lowest_p_value(settings) < SIGNIFICANT


@pytest.mark.parametrize("settings", [replace(SD, saguaro_c=0.05), replace(SSD, saguaro_c=0.05)])
def test_a_q_without_its_down_weighting_is_noticed(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = propose.draft_distribution

    def honest(ids: np.ndarray, logits: np.ndarray, sampling, **steps) -> Distribution:  # type: ignore[no-untyped-def]
        return whole(ids, logits, sampling, **{**steps, "saguaro_c": 1.0})

    def draw_weighted(self, ids, logits, history):  # type: ignore[no-untyped-def]
        drawn = original(self, ids, logits, history)
        steps = {"draft_temperature": 1.0, "saguaro_top": 2, "history": history}
        return replace(drawn, q=honest(ids, logits, self._sampling, **steps))

    original = propose.Proposer._drawn
    monkeypatch.setattr(propose.Proposer, "_drawn", draw_weighted)
    assert lowest_p_value(settings) < SIGNIFICANT


def test_a_draft_shortened_by_its_own_tokens_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_unlikely(proposals: Sequence[Proposal], origin: DraftOrigin) -> Draft:
        kept = []
        for proposal in proposals:
            if proposal.token != proposal.guesses[0][0]:
                break
            kept.append(proposal)
        q = tuple(proposal.q for proposal in kept if proposal.q is not None)
        return Draft(tuple(proposal.token for proposal in kept), q, origin) if kept else Draft()

    monkeypatch.setattr(drafters, "draft_of", without_unlikely)
    assert lowest_p_value(SD, tokens=16000) < SIGNIFICANT


def test_one_random_stream_for_both_models_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twin:
        def spawn(self, count: int) -> list[int]:
            return [5] * count

    monkeypatch.setattr(np.random, "SeedSequence", lambda seed: Twin())
    assert lowest_p_value(SD, tokens=16000) < SIGNIFICANT
