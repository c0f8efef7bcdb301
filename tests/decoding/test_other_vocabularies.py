"""Masks, biases and penalties meet a draft of another vocabulary, size or order."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Literal, get_args

import numpy as np
import pytest

from localspec.decoding.constraint import TokenRules
from localspec.decoding.engine import Engine
from localspec.types.candidates import Logits
from localspec.types.request import EngineSettings, Sampling
from tests import contract
from tests.contract import GREEDY, OFF, PLAIN, SIGNIFICANT, EngineContract, Toy
from tests.decoding.test_constrained import Forced
from tests.decoding.test_heads import HeadToy
from tests.decoding.toys import BIAS, MadeConstraint
from tests.fake_model import FakeModel

pytestmark = pytest.mark.slow

Kind = Literal["few", "one", "smaller", "larger", "reordered", "same"]
PENALISED = Sampling(
    temperature=0.9, top_k=8, top_p=0.95, min_p=0.0, repetition_penalty=1.4, frequency_penalty=0.3,
    penalty_window=8,
)  # fmt: skip
SD = EngineSettings(mode="sd", draft_length=4, min_confidence=0.0)
SSD = EngineSettings(mode="ssd", draft_length=4, fan_out_budget=8)
DRAFTERS = {
    "ngram": EngineSettings(mode="ngram"),
    "sd": SD,
    "sd match": replace(SD, acceptance="match"),
    "sd copying": replace(SD, fallback="ngram"),
    "ssd": SSD,
    "ssd match": replace(SSD, acceptance="match", min_confidence=0.0),
    "ssd copying": replace(SSD, fallback="ngram"),
    "head": SD,
    "head match": replace(SD, acceptance="match"),
}
RULES = {
    "none": (None, PLAIN),
    "schema": (partial(TokenRules, (), MadeConstraint(16)), PLAIN),
    "grammar": (partial(TokenRules, (), Forced()), PLAIN),
    "logit bias": (partial(TokenRules, (*BIAS, (7, -100.0), (15, 3.0))), PLAIN),
    "penalties": (None, PENALISED),
    "all": (partial(TokenRules, BIAS, MadeConstraint(16)), PENALISED),
}


def few(model: FakeModel, *chosen: int) -> None:
    """Let a model give these tokens alone a chance."""
    append = model._append

    def reduced(entries: list[tuple[int, int]]) -> Logits:
        rows = append(entries)
        found = np.full_like(rows, -np.inf)
        found[:, list(chosen)] = rows[:, list(chosen)]
        return found

    model._append = reduced  # type: ignore[method-assign]


def change(toy: Toy, kind: Kind) -> None:
    """Give a toy's draft another vocabulary."""
    if kind == "few":
        few(toy.draft, 2, 5, 11)
    elif kind == "one":
        few(toy.draft, 6)
    elif kind == "reordered":
        order = np.random.default_rng(3).permutation(toy.vocabulary)
        toy.draft._last = toy.draft._last[:, order]
    elif kind != "same" and not toy.draft.is_head:
        size = {"smaller": 11, "larger": 21}[kind]
        toy.draft = FakeModel(size, sharpness=toy.sharpness, sequences=18)
        toy.engine = Engine(toy.target, toy.draft)


def toy_of(drafter: str, kind: Kind, rules: str) -> Toy:
    """Return a pair with such a draft, whose answers follow such rules."""
    toy = HeadToy() if drafter.startswith("head") else Toy()
    change(toy, kind)
    make, _ = RULES[rules]
    toy.rules = None if make is None else make()
    return toy


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_text_is_that_of_plain_decoding(drafter: str, rules: str, kind: Kind) -> None:
    _, sampling = RULES[rules]
    greedy = replace(sampling, temperature=0.0)
    for seed in range(2):
        prompt = random.Random(seed).choices(range(16), k=6 + 5 * seed)
        expected = toy_of(drafter, kind, rules).answer(prompt, OFF, greedy, 40)
        assert toy_of(drafter, kind, rules).answer(prompt, DRAFTERS[drafter], greedy, 40) == expected


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_sampled_tokens_follow_the_target_though_the_draft_knows_few(
    drafter: str, rules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = EngineContract()
    suite.settings, suite.sampling = DRAFTERS[drafter], RULES[rules][1]
    monkeypatch.setattr(contract, "Toy", partial(toy_of, drafter, "few", rules))
    assert any(suite.lowest_p_value(400, first_seed) > SIGNIFICANT for first_seed in contract.LOOKS)


def test_what_must_follow_is_drafted_though_the_draft_does_not_know_it() -> None:
    toy = toy_of("head", "one", "grammar")
    rounds = [*toy.rounds([1, 2, 3], SD, GREEDY, 60)]
    assert sum(each.stats.accepted for each in rounds) == sum(each.stats.drafted for each in rounds) > 30
