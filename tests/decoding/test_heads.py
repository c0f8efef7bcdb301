"""A head keeps the engine contract, and reads nothing but its own last draft without its target's state."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from localspec.decoding.drafters.drafter import DraftState
from localspec.decoding.drafters.model_drafter import HeadDrafter
from localspec.decoding.drafters.proposer import Proposal
from localspec.decoding.engine import Engine
from localspec.types.candidates import Rows
from localspec.types.drafts import VerifyOutcome
from localspec.types.request import EngineSettings, Sampling
from tests import contract
from tests.contract import EngineContract, Toy
from tests.decoding.toys import let_texts_repeat, policy_of, proposer_of
from tests.fake_model import FakeModel

SD = EngineSettings(mode="sd", draft_length=4)
WARM = Sampling(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0)


class Followed(FakeModel):
    """A target that passes its states to a head."""

    head: FakeHead

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        start, rows = self.length(), super().evaluate(tokens, logits)
        self.head.read(start, len(tokens))
        return rows

    def truncate(self, length: int, sequence: int = 0) -> None:
        if length < self.length():
            self.head.cut(length)
        super().truncate(length, sequence)


class FakeHead(FakeModel):
    """A head whose drafts get another taste with each that it bases on one of its own."""

    is_head = True

    def __init__(self, target: Followed, noise: float) -> None:
        super().__init__(target.vocabulary_size, noise=noise, sharpness=1.5)
        target.head = self
        self.following, self.known = False, 0  # known: leading tokens whose states the target has given
        self.true, self.guesses = 0, 0
        self._tastes = np.random.default_rng(7).normal(size=(8, target.vocabulary_size)).astype(np.float32)

    def follow(self, *, on: bool, kept: int = 64) -> None:
        self.following = on

    def read(self, start: int, count: int) -> None:
        self.cut(start)
        self.known = start + count if self.following else 0

    def cut(self, length: int) -> None:
        self.known = min(self.known, length)
        if self.following:
            self.truncate(min(self.length(), self.true, length + 1))

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        start = self.length()
        without = max(0, start + len(tokens) - 1 - self.known)
        assert without == 0 or (len(tokens) == 1 and self.guesses == start), "a state is missing"
        rows = super().evaluate(tokens, logits).logits.copy()
        self.true = self.true if without else self.length()
        self.guesses = self.length() if logits else 0
        rows += self._tastes[min(self.length() - self.true, 7)]
        return self.rows(rows)

    def truncate(self, length: int, sequence: int = 0) -> None:
        super().truncate(length, sequence)
        self.true, self.guesses = min(self.true, length), min(self.guesses, length)


class HeadToy(Toy):
    """A target with a head."""

    def __post_init__(self) -> None:
        target = Followed(self.vocabulary, sharpness=self.sharpness, context=self.context)
        self.target, self.draft = target, FakeHead(target, self.noise)
        self.engine = Engine(self.target, self.draft)


class HeadContract(EngineContract):
    """The contract for a head."""

    @pytest.fixture(autouse=True)
    def toys_have_heads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(contract, "Toy", HeadToy)


class TestHead(HeadContract):
    settings = SD


class TestHeadMatch(HeadContract):
    settings = EngineSettings(mode="sd", draft_length=4, acceptance="match")


class TestHeadCombinedWarm(HeadContract):
    """Either the head or a repetition may write, and one continue for the other."""

    sampling = WARM
    settings = EngineSettings(mode="sd", draft_length=3, fallback="ngram")

    @pytest.fixture(autouse=True)
    def texts_repeat(self, toys_have_heads: None, monkeypatch: pytest.MonkeyPatch) -> None:
        let_texts_repeat(monkeypatch)
        monkeypatch.setattr(contract, "Toy", partial(HeadToy, sharpness=2.5))


def test_nothing_that_was_drafted_outlives_its_verdict() -> None:
    toy = HeadToy(noise=0.3)
    head = toy.draft
    assert isinstance(head, FakeHead)
    for _ in toy.rounds([1, 2, 3], EngineSettings(mode="sd", min_confidence=0.0), WARM, 60):
        assert head.length() <= head.true


def test_a_head_is_let_go_with_its_answer() -> None:
    toy, seen = HeadToy(), list[bool]()
    head = toy.draft
    assert isinstance(head, FakeHead)
    rounds = toy.rounds([1, 2, 3], SD, WARM, 60)
    next(rounds)
    seen.append(head.following)
    rounds.close()
    seen.append(head.following)
    toy.answer([1, 2, 3], EngineSettings(mode="off"), WARM, 10)
    assert [*seen, head.following] == [True, False, False]


def test_what_was_drafted_after_the_bonus_token_is_drafted_again() -> None:
    head = HeadToy().draft
    state = DraftState(head)
    drafter = HeadDrafter(state, policy_of(), proposer_of(), 4)
    state.text = [1, 2, 3]
    state.proposals = [Proposal(token, 0.9, (), None) for token in (4, 5, 6)]
    drafter.commit(VerifyOutcome(1, 5))
    assert state.text == [1, 2, 3, 4, 5]
    assert state.proposals == []
