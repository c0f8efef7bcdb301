"""Small things that the tests of the engines are made of."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from queue import SimpleQueue
from typing import Self

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.decoding.constraint import TokenRules
from localspec.decoding.drafters.draft_worker import CopiedTokens, VerifyResult
from localspec.decoding.drafters.drafter import DraftState
from localspec.decoding.drafters.proposer import RowProposer
from localspec.decoding.policy import (
    AcceptanceBins,
    AcceptanceCalibration,
    CostCurve,
    LatencyModel,
    SpeculationPolicy,
)
from localspec.decoding.sampling import distribution
from localspec.errors import EngineError
from localspec.types.candidates import FullRow
from localspec.types.drafts import Distribution, DraftOrigin, TokenMask
from localspec.types.events import RoundStats
from localspec.types.request import EngineSettings, Sampling
from tests import contract
from tests.fake_model import FakeModel

GREEDY = Sampling(temperature=0.0)
PLAIN = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
BIAS = ((1, 1.5), (3, -2.0))
TIMEOUT_S = 30.0  # a test that waits so long has failed


def latency_model(verify_slope: float = 0.001, step: float = 0.001) -> LatencyModel:
    """Return costs of a target that takes a second for one token."""
    return LatencyModel(CostCurve({1: 1.0, 2: 1.0 + verify_slope}), CostCurve({1: step, 16: 1.5 * step}))


def policy_of(
    costs: LatencyModel | None = None,
    settings: EngineSettings = EngineSettings(),  # noqa: B008  it is frozen
    *,
    deterministic: bool = True,
    calibration: AcceptanceCalibration | None = None,
) -> SpeculationPolicy:
    """Return the stopping rules under costs that are cheap by default."""
    return SpeculationPolicy(
        costs or latency_model(), calibration or AcceptanceCalibration(), settings, deterministic
    )


def proposer_of(
    sampling: Sampling = GREEDY, settings: EngineSettings | None = None, seed: int = 0
) -> RowProposer:
    """Return a proposer with a random stream of its own."""
    return RowProposer(sampling, settings or EngineSettings(), np.random.default_rng(seed))


class MadeConstraint:
    """Refuses a third of the tokens, by the sum of the text, and sometimes all but one."""

    is_lazy = False

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def mask(self, text: Sequence[int]) -> TokenMask:
        """Say it one way or the other, by the length of the text."""
        allowed = self.allowed(text)
        refused = np.setdiff1d(np.arange(self.vocabulary), allowed)
        return TokenMask(refused, are_refused=True) if len(text) % 2 else TokenMask(allowed)

    def may_refuse(self, text: Sequence[int], drafted: Sequence[int]) -> bool:
        return True

    def allowed(self, text: Sequence[int]) -> NDArray[np.int64]:
        total, tokens = sum(text), np.arange(self.vocabulary)
        if total % 5 == 3:
            return tokens[[1 + total % (self.vocabulary - 1)]]
        left: NDArray[np.int64] = tokens[(tokens + total) % 3 != 0]
        return left

    def copy(self) -> Self:
        return type(self)(self.vocabulary)


class RuledToy(contract.Toy):
    """A pair whose answers follow a constraint, with a bias."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rules = TokenRules(BIAS, MadeConstraint(self.vocabulary))

    def exact(self, text: Sequence[int], sampling: Sampling) -> Distribution:
        """Return the distribution by another way than the loop's: a whole row, most of it minus infinity."""
        row = self.target.logits_after(text).copy()
        row[[token for token, _ in BIAS]] += np.array([value for _, value in BIAS], np.float32)
        masked = np.full_like(row, -np.inf)
        allowed = MadeConstraint(self.vocabulary).allowed(text)
        masked[allowed] = row[allowed]
        p = distribution(FullRow(masked), sampling, text)
        ids = np.arange(self.vocabulary) if p.ids is None else p.ids
        return Distribution(ids[p.probs > 0], p.probs[p.probs > 0])


def let_texts_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the contract's toys write texts that repeat themselves, and their target judge long drafts."""
    costs = LatencyModel(CostCurve({1: 1.0, 64: 1.001}), CostCurve({1: 0.05, 17: 0.06}))
    monkeypatch.setattr(contract, "latency_model", lambda: costs)
    monkeypatch.setattr(contract, "Toy", partial(contract.Toy, sharpness=2.5))


def stats(
    drafted: int = 0, accepted: int = 0, origin: DraftOrigin = DraftOrigin.NONE, each_s: float = 0.25
) -> RoundStats:
    """Return a round whose four parts took `each_s` seconds each."""
    return RoundStats(drafted, accepted, origin, each_s, each_s, each_s, each_s)


def greedy_text(model: FakeModel, text: Sequence[int], tokens: int) -> list[int]:
    """Return what a model writes after a text."""
    whole = list(text)
    for _ in range(tokens):
        whole.append(int(model.logits_after(whole).argmax()))
    return whole[len(text) :]


def teach(calibration: AcceptanceBins, chance: float) -> None:
    """Let tokens of every confidence have been accepted with a chance, early and late alike."""
    golden = 0.618034  # its multiples are spread evenly over 0 to 1, in every stretch
    for number in range(8000):
        calibration.observe([number % 40 / 40], number * golden % 1 < chance)


def assert_cache_follows(draft_state: DraftState, model: FakeModel) -> None:
    """Check that the trunk's cache holds a beginning of its text and proposals."""
    held = model.tokens()
    assert held == draft_state.whole()[: len(held)]


class Gate:
    """Lets N calls of a `FakeModel(delay=gate)` through and holds the next until it is opened."""

    def __init__(self, free_calls: int) -> None:
        self._free_calls = free_calls
        self._closed = threading.Event()
        self._opened = threading.Event()

    def __call__(self) -> None:
        """Be a call of the model."""
        self._free_calls -= 1
        if self._free_calls < 0:
            self._closed.set()
            assert self._opened.wait(TIMEOUT_S)

    def wait_until_closed(self) -> None:
        """Wait for the first call that is held."""
        assert self._closed.wait(TIMEOUT_S)

    def open(self) -> None:
        """Let everything through from now on."""
        self._opened.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()


class Watched(SimpleQueue[VerifyResult | CopiedTokens | None]):
    """An inbox that reports when its reader has done everything."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = threading.Event()
        self._changing = threading.Lock()

    def put(
        self, item: VerifyResult | CopiedTokens | None, block: bool = True, timeout: float | None = None
    ) -> None:
        with self._changing:
            self.idle.clear()
            super().put(item, block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> VerifyResult | CopiedTokens | None:
        with self._changing:
            if self.empty():
                self.idle.set()
        return super().get(block, timeout)


def drafters() -> list[threading.Thread]:
    """Return the drafters that are at work."""
    return [thread for thread in threading.enumerate() if thread.name == "drafter"]


def broken() -> None:
    """Be a call that fails."""
    raise EngineError("the card fell out")
