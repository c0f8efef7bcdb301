"""Answers that follow a constraint and a bias keep the engine contract: the target's masked distribution."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from localspec.benchmark.statistics import ks_uniform_p_value
from localspec.decoding.constraint import TokenRules
from localspec.decoding.rounds import DecodeParams, Round
from localspec.decoding.sampling import distribution, probabilities
from localspec.types.candidates import Candidates, FullRow
from localspec.types.drafts import TokenMask
from localspec.types.request import EngineSettings, Sampling
from tests import contract
from tests.contract import PLAIN, SIGNIFICANT, EngineContract
from tests.decoding.test_heads import HeadToy
from tests.decoding.toys import BIAS, GREEDY, MadeConstraint, RuledToy, let_texts_repeat

OFF = EngineSettings(mode="off")
NGRAM = EngineSettings(mode="ngram")
SD = EngineSettings(mode="sd", draft_length=4)
SSD = EngineSettings(mode="ssd", draft_length=4, fan_out_budget=8)
TRUNCATED = Sampling(temperature=1.3, top_k=6, top_p=0.9, repetition_penalty=1.2, penalty_window=8)


class Ruled(EngineContract):
    @pytest.fixture(autouse=True)
    def answers_follow_rules(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(contract, "Toy", RuledToy)


class TestSd(Ruled):
    settings = SD


class TestSsdCombined(Ruled):
    settings = replace(SSD, fallback="ngram")
    sampling = TRUNCATED

    @pytest.fixture(autouse=True)
    def texts_repeat(self, answers_follow_rules: None, monkeypatch: pytest.MonkeyPatch) -> None:
        let_texts_repeat(monkeypatch)


class TestNgram(Ruled):
    settings = NGRAM


def lowest_p_value(settings: EngineSettings, tokens: int = 1200) -> float:
    suite = EngineContract()
    suite.settings = settings
    return min(map(ks_uniform_p_value, suite.uniform_values(tokens).values()))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [OFF, replace(SD, acceptance="match")], ids=["off", "match"])
def test_other_ways_follow_the_masked_target(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "Toy", RuledToy)
    assert lowest_p_value(settings) > SIGNIFICANT


class RuledHeadToy(RuledToy, HeadToy):
    """A target with a head, whose answers follow rules."""


def test_a_head_follows_the_masked_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "Toy", RuledHeadToy)
    assert lowest_p_value(replace(SD, min_confidence=0.0)) > SIGNIFICANT


@pytest.mark.slow
@pytest.mark.parametrize("settings", [OFF, SD, SSD], ids=["off", "sd", "ssd"])
def test_a_mask_of_another_position_is_noticed(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "Toy", RuledToy)
    original = MadeConstraint.mask
    monkeypatch.setattr(TokenRules, "mask", lambda rules, text: original(rules.constraint, text[:-1]))
    assert lowest_p_value(settings) < SIGNIFICANT


@pytest.mark.slow
def test_a_bias_that_only_the_draft_model_gets_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class HalfRuled(RuledToy):
        def __post_init__(self) -> None:
            super().__post_init__()
            self.rules = OnlyDrafts(BIAS, MadeConstraint(self.vocabulary))

    monkeypatch.setattr(contract, "Toy", HalfRuled)
    assert lowest_p_value(SD) < SIGNIFICANT


class OnlyDrafts(TokenRules):
    """Rules that forget their bias for the target."""

    def biased(self, row: Candidates) -> Candidates:
        return row

    def copy(self) -> TokenRules:
        return TokenRules(BIAS, self.constraint)


def test_the_draft_model_is_masked_too() -> None:
    """Else more than a third of its tokens would be refused, and of the forced ones nearly all."""
    toy = RuledToy(noise=0.0)
    rounds = list(toy.rounds([1, 2, 3], replace(SD, min_confidence=0.0), PLAIN, 400))
    drafted, accepted = (
        sum(getattr(each.stats, name) for each in rounds) for name in ("drafted", "accepted")
    )
    assert accepted == drafted > 200


def test_what_is_forced_is_drafted_without_a_call() -> None:
    toy = RuledToy()
    toy.rules = TokenRules((), Forced())
    for settings in (NGRAM, SD):
        toy.draft.calls.clear()
        rounds = list(toy.rounds([0], settings, GREEDY, 40))
        tokens = [token for round_ in rounds for token in round_.tokens]
        assert tokens == [place % 16 for place in range(1, 41)]
        assert sum(round_.stats.accepted for round_ in rounds) == sum(
            round_.stats.drafted for round_ in rounds
        )
        assert len(rounds) < 12
        assert len(toy.draft.calls) <= len(rounds)


class Forced(MadeConstraint):
    """Counts on."""

    def __init__(self, vocabulary: int = 16) -> None:
        super().__init__(vocabulary)

    def mask(self, text: Sequence[int]) -> TokenMask:
        return TokenMask(np.array([(text[-1] + 1) % self.vocabulary]))


def test_a_banned_token_is_written_only_where_nothing_else_is_left() -> None:
    row = np.array([0.0, 9.0, 1.0], np.float32)
    rules = TokenRules(((1, -100.0), (7, 5.0)))
    p = distribution(rules.biased(FullRow(row)), PLAIN, ())
    assert p.probs[1] == 0.0
    assert row[1] == 9.0
    alone = distribution(rules.biased(FullRow(row)), PLAIN, (), TokenMask(np.array([1])))
    assert alone.ids is not None
    assert (alone.ids.tolist(), alone.probs.tolist()) == ([1], [1.0])


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN, TRUNCATED, replace(TRUNCATED, top_k=0)])
def test_a_masked_distribution_is_that_of_a_row_with_minus_infinity(sampling: Sampling) -> None:
    random = np.random.default_rng(3)
    for size in (8, 500):
        row = random.normal(size=size).astype(np.float32) * 3
        allowed = np.flatnonzero(random.random(size) < 0.3)
        masked = np.full_like(row, -np.inf)
        masked[allowed] = row[allowed]
        history = random.integers(0, size, 6).tolist()
        expected = distribution(FullRow(masked), sampling, history)
        ids = np.arange(size)
        for mask in (TokenMask(allowed), TokenMask(np.setdiff1d(ids, allowed), are_refused=True)):
            found = distribution(FullRow(row), sampling, history, mask)
            assert probabilities(found, ids) == pytest.approx(probabilities(expected, ids), abs=1e-6)


def test_scores_are_the_log_probabilities_of_the_target_alone() -> None:
    toy = RuledToy()
    for settings in (OFF, SD, NGRAM):
        params = DecodeParams(PLAIN, "rejection", 4, 60, contract.NO_END, toy.rules, top_logprobs=3)
        text = [1, 2, 3]
        for round_ in toy.engine.rounds(text[:], settings, params, contract.latency_model(), 5):
            assert isinstance(round_, Round)
            assert [each.token for each in round_.scores] == list(round_.tokens)
            for each in round_.scores:
                row = toy.target.logits_after(text).astype(np.float64)
                logprobs = row - np.log(np.exp(row).sum())
                assert each.logprob == pytest.approx(logprobs[each.token], abs=1e-12)
                best = np.argsort(-logprobs)[:3]
                assert [token for token, _, _ in each.top] == best.tolist()
                assert [logprob for *_, logprob in each.top] == pytest.approx(logprobs[best].tolist())
                text.append(each.token)
        assert len(text) == 63


@pytest.mark.parametrize("value", [1e10, 1e39, -1e39])
@pytest.mark.parametrize("settings", [OFF, SD, SSD, NGRAM], ids=["off", "sd", "ssd", "ngram"])
def test_a_bias_beyond_the_numbers_of_logits_is_as_good_as_a_large_one(
    settings: EngineSettings, value: float
) -> None:
    toy = contract.Toy(rules=TokenRules(((5, value),)))
    answer = toy.answer([1, 2, 3], settings, PLAIN, 20)
    assert set(answer) == {5} if value > 0 else 5 not in answer
