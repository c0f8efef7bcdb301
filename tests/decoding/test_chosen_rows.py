"""Models whose devices choose the likeliest tokens: the same contract, and the same decisions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from localspec.decoding.constraint import TokenRules
from localspec.decoding.engine import Engine
from localspec.errors import DraftError, LogitsError
from localspec.types.candidates import FullRows
from localspec.types.request import EngineSettings, Sampling
from tests import contract
from tests.contract import GREEDY, OFF, PLAIN, EngineContract, Toy
from tests.fake_model import FakeModel

NUCLEUS = Sampling(temperature=0.8, top_k=6, top_p=0.9, min_p=0.02)
PENALISED = replace(NUCLEUS, presence_penalty=0.8, repetition_penalty=1.2, penalty_window=5)
SD = EngineSettings(mode="sd", draft_length=4, min_confidence=0.0)
SSD = EngineSettings(mode="ssd", draft_length=4, fan_out_budget=8, min_confidence=0.0)


@dataclass
class ChoosingToy(Toy):
    """A pair of fake models on devices that give no more candidates than were asked for."""

    chooses: bool = True


class ChoosingContract(EngineContract):
    """The contract for candidates from devices."""

    @pytest.fixture(autouse=True)
    def toys_choose(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(contract, "Toy", ChoosingToy)


class TestSdNucleus(ChoosingContract):
    settings = SD
    sampling = NUCLEUS


class TestSsdPenalised(ChoosingContract):
    settings = SSD
    sampling = PENALISED


@pytest.mark.parametrize("sampling", [GREEDY, NUCLEUS, PENALISED, replace(PENALISED, temperature=0.0), PLAIN])
@pytest.mark.parametrize("settings", [OFF, SD, replace(SD, acceptance="match"), replace(SD, mode="ngram")])
def test_decisions_are_those_of_whole_rows(settings: EngineSettings, sampling: Sampling) -> None:
    for seed in range(3):
        found, expected = (
            list(toy.rounds([1, 2, seed], settings, sampling, 60, seed)) for toy in (ChoosingToy(), Toy())
        )
        assert [round_.tokens for round_ in found] == [round_.tokens for round_ in expected]
        assert [round_.provenance for round_ in found] == [round_.provenance for round_ in expected]


@pytest.mark.parametrize("sampling", [GREEDY, NUCLEUS])
def test_drafts_prepared_from_candidates_change_nothing(sampling: Sampling) -> None:
    settings = replace(SSD, acceptance="match")
    assert ChoosingToy().answer([1, 2], settings, sampling, 60) == Toy().answer([1, 2], OFF, sampling, 60)


def test_what_needs_all_logits_gets_them_for_its_answer_alone() -> None:
    toy = ChoosingToy(vocabulary=16)
    seen: list[type] = []
    evaluate = toy.target.evaluate

    def watched(tokens: list[int], logits: int = 1) -> object:
        rows = evaluate(tokens, logits)
        seen.append(type(rows))
        return rows

    toy.target.evaluate = watched  # type: ignore[assignment, method-assign]
    for rules, sampling, is_full in (
        (None, NUCLEUS, False),
        (TokenRules(((3, 2.0),)), NUCLEUS, True),
        (None, NUCLEUS, False),
        (None, PLAIN, True),
        (None, replace(NUCLEUS, presence_penalty=-1.0), True),
        (None, GREEDY, False),
    ):
        toy.rules = rules
        seen.clear()
        toy.answer([1, 2, 3], SD, sampling, 20)
        assert {kind is FullRows for kind in seen} == {is_full}


def test_a_draft_model_with_more_tokens_gives_all_logits() -> None:
    """Those that the target lacks could be all that a device chooses."""
    toy = ChoosingToy()
    toy.draft = FakeModel(24, sharpness=1.5, sequences=18, chooses=True)
    toy.engine = Engine(toy.target, toy.draft)
    assert toy.answer([1, 2], SD, GREEDY, 40) == Toy().answer([1, 2], OFF, GREEDY, 40)
    assert toy.draft._chosen == 0


@pytest.mark.parametrize("settings", [SD, SSD])
@pytest.mark.parametrize("which", ["target", "draft"])
def test_candidates_that_are_not_numbers_are_noticed(settings: EngineSettings, which: str) -> None:
    toy = ChoosingToy()
    model: FakeModel = getattr(toy, which)
    append = model._append
    model._append = lambda entries: append(entries) * np.float32(np.nan)  # type: ignore[method-assign]
    with pytest.raises(LogitsError if which == "target" else DraftError, match="not numbers"):
        toy.answer([1, 2], settings, NUCLEUS, 40)
