"""What drafters learn of the way in which their tokens are chosen and judged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.decoding import engine as module
from localspec.decoding.drafters.drafter import DraftState
from localspec.decoding.drafters.model_drafter import ModelDrafter
from localspec.decoding.drafters.prompt_lookup import PromptLookup
from localspec.decoding.drafters.proposer import Proposer
from localspec.decoding.engine import Engine
from localspec.decoding.policy import AcceptanceCalibration, SpeculationPolicy
from localspec.decoding.rounds import DecodeParams
from localspec.types.request import Acceptance, EngineSettings, Sampling
from tests.decoding.toys import GREEDY, PLAIN, latency_model
from tests.fake_model import FakeModel

SD = EngineSettings(mode="sd")
Sort = tuple[Sampling, Acceptance]


def test_drafts_are_cut_by_the_rules_and_the_experience_of_their_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A drawn draft that is cut as a chosen one would be is not exact."""
    told: list[tuple[bool, bool, AcceptanceCalibration]] = []

    class Watched(ModelDrafter):
        def __init__(
            self,
            draft_state: DraftState,
            policy: SpeculationPolicy,
            proposer: Proposer,
            draft_length: int,
            lookup: PromptLookup | None,
        ) -> None:
            super().__init__(draft_state, policy, proposer, draft_length, lookup)
            told.append((policy.deterministic, proposer.deterministic, policy.calibration))

    monkeypatch.setattr(module, "ModelDrafter", Watched)
    engine = Engine(FakeModel(), FakeModel())
    sorts: tuple[Sort, ...] = ((PLAIN, "rejection"), (PLAIN, "match"), (GREEDY, "rejection"))
    for sampling, acceptance in sorts:
        task = DecodeParams(sampling, acceptance, 4, 9, frozenset())
        list(engine.rounds([1], replace(SD, acceptance=acceptance), task, latency_model(), 0))
    assert [kind[:2] for kind in told] == [(False, False), (True, True), (True, True)]
    drawn, matched, greedy = (calibration for *_, calibration in told)
    assert drawn is not matched
    assert matched is greedy


def test_what_a_rest_left_out_is_read_in_part_but_by_heads_and_for_penalties() -> None:
    class Head(FakeModel):
        is_head = True

    text = [number % 16 for number in range(300)]
    for draft, sampling, segment, most in (
        (FakeModel(), GREEDY, 0, None),
        (FakeModel(), GREEDY, 1, module.CATCH_UP),
        (FakeModel(), replace(GREEDY, presence_penalty=0.5), 1, None),
        (Head(), GREEDY, 1, None),
    ):
        engine = Engine(FakeModel(), draft)
        task = DecodeParams(sampling, "rejection", 4, 9, frozenset())
        engine.rounds(text, SD, task, latency_model(), 0, segment).close()
        assert engine.drafters.state is not None
        assert engine.drafters.state.most_read == most
