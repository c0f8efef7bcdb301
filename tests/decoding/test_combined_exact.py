"""Repetitions among drawn drafts leave the distribution as it is; each rule for them, broken, changes it.

The text before the answer holds about half of all runs of three tokens, so that whether there is something
to repeat depends on every single token.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from localspec.decoding.drafters import drafter, prompt_lookup
from localspec.decoding.drafters.model_drafter import ModelDrafter
from localspec.decoding.drafters.prompt_lookup import LookupDraft, PromptLookup
from localspec.decoding.drafters.proposer import Proposal
from localspec.decoding.policy import CostCurve, LatencyModel, SpeculationPolicy
from localspec.types.drafts import Distribution, Draft, DraftOrigin
from localspec.types.request import EngineSettings
from tests import contract
from tests.chi_square import chi_square_p_value
from tests.contract import PLAIN, SIGNIFICANT
from tests.fake_model import Hold, Pacing

pytestmark = pytest.mark.slow

SD = EngineSettings(mode="sd", draft_length=1, min_confidence=0.0, fallback="ngram")
SSD = replace(SD, mode="ssd", fan_out_budget=8)
VOCABULARY = 5
TEXT = random.Random(4).choices(range(VOCABULARY), k=70)
LENGTH, ANSWERS = 3, 1500
both = pytest.mark.parametrize("settings", [SD, SSD])


def p_value(settings: EngineSettings, origin: DraftOrigin) -> float:
    """Return how likely the first tokens of many answers are, if they are the target's own.

    Enough of the first drafts must come from an origin.
    """
    toy = contract.Toy(vocabulary=VOCABULARY, noise=2.0)
    target_s = 2e-3 if settings.mode == "ssd" else 0.0  # time to prepare something for most outcomes
    toy.target.hold, toy.draft.hold = Hold(Pacing(target_s, 0.0)), None
    answers, origins = [], []
    for seed in range(ANSWERS):
        rounds = list(toy.rounds(TEXT, settings, PLAIN, LENGTH + 1, seed))
        origins.append(rounds[1].stats.origin)
        answers.append([token for round_ in rounds for token in round_.tokens])
    assert origins.count(origin) > ANSWERS / 4
    return min(beginnings_p_value(toy, answers, length) for length in range(2, LENGTH + 1))


def beginnings_p_value(toy: contract.Toy, answers: Sequence[Sequence[int]], length: int) -> float:
    texts = list(itertools.product(range(VOCABULARY), repeat=length))
    counts = Counter(tuple(answer[:length]) for answer in answers)
    expected = []
    for text in texts:
        before = [[*TEXT, *text[:end]] for end in range(length)]
        chances = [toy.exact(known, PLAIN).probs[token] for known, token in zip(before, text, strict=True)]
        expected.append(float(np.prod(chances)))
    return chi_square_p_value([counts[text] for text in texts], expected)


@pytest.fixture(autouse=True)
def repeat_at_every_opportunity(monkeypatch: pytest.MonkeyPatch) -> None:
    def more_is_better(
        _: SpeculationPolicy, further: Iterable[tuple[float, float]], *_others: float
    ) -> list[float]:
        return [float(length) for length in range(len(list(further)) + 1)]

    costs = LatencyModel(CostCurve({1: 1.0, 64: 1.001}), CostCurve({1: 0.05, 17: 0.06}))
    monkeypatch.setattr(contract, "latency_model", lambda: costs)
    monkeypatch.setattr(prompt_lookup, "values_of", more_is_better)


@pytest.fixture
def only_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model write first."""
    monkeypatch.setattr(PromptLookup, "model_draft_wins", lambda *_, **_options: True)


@pytest.mark.usefixtures("only_behind")
@pytest.mark.parametrize(("settings", "origin"), [(SD, DraftOrigin.FRESH), (SSD, DraftOrigin.AHEAD)])
def test_a_repetition_after_a_drawn_token(settings: EngineSettings, origin: DraftOrigin) -> None:
    assert p_value(settings, origin) > SIGNIFICANT


@both
def test_a_repetition_instead_of_a_drawn_token(settings: EngineSettings) -> None:
    assert p_value(settings, DraftOrigin.NGRAM) > SIGNIFICANT


@pytest.mark.usefixtures("only_behind")
def test_a_repetition_that_is_judged_as_if_it_had_been_drawn_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half(token: int) -> Distribution:
        return Distribution(np.array([token, (token + 1) % VOCABULARY], np.int64), np.array([0.5, 0.5]))

    monkeypatch.setattr(drafter, "one_point", half)
    assert p_value(SD, DraftOrigin.FRESH) < SIGNIFICANT


@pytest.mark.usefixtures("only_behind")
def test_a_drawn_token_that_is_only_sent_with_a_repetition_after_it_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether there is one depends on that token."""
    continued = ModelDrafter._continued

    def fastidious(self: ModelDrafter, limit: int) -> Draft:
        draft = continued(self, limit)
        if draft.copied:
            return draft
        self._sent = []
        return Draft((), None, DraftOrigin.FRESH)

    monkeypatch.setattr(ModelDrafter, "_continued", fastidious)
    assert p_value(SD, DraftOrigin.FRESH) < SIGNIFICANT


def test_a_repetition_that_stands_in_for_what_was_drawn_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prepared draft is dropped for its first token."""

    beaten = PromptLookup.model_draft_wins

    def choosy(
        self: PromptLookup,
        guess: LookupDraft,
        length: int,
        ready: Sequence[Proposal] = (),
        delay_s: float = 0.0,
    ) -> bool:
        if not ready:
            return beaten(self, guess, length, ready, delay_s)
        return not guess.length or ready[0].token == ready[0].guesses[0][0]

    monkeypatch.setattr(PromptLookup, "model_draft_wins", choosy)
    assert p_value(SSD, DraftOrigin.AHEAD) < SIGNIFICANT
