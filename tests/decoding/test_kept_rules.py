"""Rules that one careless line would break: what can be undone, which q is reported, what outlives what."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from localspec.decoding.constraint import TokenRules
from localspec.decoding.drafters.drafter import DraftState
from localspec.decoding.drafters.prompt_lookup import PromptLookup, PromptLookupStats, SuffixIndex
from localspec.decoding.drafters.proposer import RowProposer
from localspec.decoding.engine import Drafters
from localspec.decoding.rounds import DecodeParams, Round
from localspec.decoding.sampling import draft_distribution, penalised_row, probabilities
from localspec.types.candidates import FullRow, FullRows
from localspec.types.drafts import VerifyOutcome
from localspec.types.request import EngineSettings, Sampling
from tests.contract import GREEDY, NO_END, OFF, PLAIN, Toy, latency_model
from tests.decoding.toys import MadeConstraint, policy_of
from tests.fake_model import FakeModel

PENALISED = Sampling(
    temperature=0.9, top_k=12, top_p=0.98, min_p=0.0, repetition_penalty=1.6, frequency_penalty=0.4,
    presence_penalty=0.3, penalty_window=6,
)  # fmt: skip
SD = EngineSettings(mode="sd", draft_length=8, min_confidence=0.0)
SSD = EngineSettings(mode="ssd", draft_length=8, fan_out_budget=8, min_confidence=0.0)


@pytest.mark.parametrize("settings", [SD, SSD, replace(SD, fallback="ngram"), EngineSettings(mode="ngram")])
@pytest.mark.parametrize("most", [1, 3])
def test_no_draft_is_longer_than_the_target_can_take_back(settings: EngineSettings, most: int) -> None:
    toy = Toy(noise=0.1)
    toy.target.max_draft = most
    rounds = [*toy.rounds([1, 2, 3] * 6, settings, GREEDY, 60)]
    assert max(each.stats.drafted for each in rounds) <= most
    assert [token for each in rounds for token in each.tokens] == Toy().answer([1, 2, 3] * 6, OFF, GREEDY, 60)


@pytest.mark.parametrize("settings", [SD, SSD])
@pytest.mark.parametrize("most", [1, 3])
def test_no_draft_is_longer_than_the_draft_model_can_take_back(settings: EngineSettings, most: int) -> None:
    toy = Toy(noise=0.1)
    toy.draft.max_draft = most
    drafted = [each.stats.drafted for each in toy.rounds([1, 2, 3], settings, GREEDY, 60)]
    assert 0 < max(drafted) <= most


@pytest.mark.parametrize("mode", ["sd", "ssd"])
@pytest.mark.parametrize("is_ruled", [False, True])
def test_the_q_that_is_reported_is_what_was_drawn_from_under_penalties(mode: str, is_ruled: bool) -> None:
    settings = EngineSettings(mode, draft_temperature=1.3, saguaro_c=0.5)  # type: ignore[arg-type]
    constraint = MadeConstraint(40)
    rules = TokenRules(((3, 1.0),), constraint) if is_ruled else None
    draws = np.random.default_rng(4)
    random = np.random.default_rng(5)
    for start in (0, 5):
        proposer = RowProposer(PENALISED, settings, random, None, rules, start)
        for _ in range(20):
            row = (draws.normal(size=40) * 2).astype(np.float32)
            text = draws.integers(40, size=12).tolist()
            masked = row.copy()
            if is_ruled:
                masked[3] += 1.0
                masked[np.setdiff1d(np.arange(40), constraint.allowed(text))] = -np.inf
            history = text[max(start, len(text) - PENALISED.penalty_window) :]
            expected = draft_distribution(*FullRow(masked).top(16), PENALISED, settings, history)
            (proposal,) = proposer.propose(FullRows(row[None]), [text])
            assert proposal.q is not None
            everything = np.arange(40)
            found, wanted = probabilities(proposal.q, everything), probabilities(expected, everything)
            assert found == pytest.approx(wanted, abs=1e-9)
            assert found[proposal.token] > 0


def test_what_is_learned_of_copies_of_best_tokens_of_drawn_ones_and_under_rules_is_kept_apart() -> None:
    drafters, costs = Drafters(None), latency_model()

    def calibration(mode: str, *, deterministic: bool, ruled: bool) -> object:
        settings = EngineSettings(mode)  # type: ignore[arg-type]
        return drafters.policy(costs, settings, deterministic=deterministic, ruled=ruled).calibration

    kinds = [
        calibration(mode, deterministic=deterministic, ruled=ruled)
        for mode in ("sd", "ngram")
        for deterministic in (False, True)
        for ruled in (False, True)
    ]
    assert len({id(each) for each in kinds[:4]}) == 4
    assert len({id(each) for each in kinds}) == 6  # a copy is never drawn
    again = calibration("ssd", deterministic=True, ruled=False)
    assert again is calibration("sd", deterministic=True, ruled=False)


@pytest.mark.parametrize("is_ruled", [False, True])
def test_the_engine_reports_ruled_answers_from_free_ones(is_ruled: bool) -> None:
    toy = Toy(rules=TokenRules((), MadeConstraint(16)) if is_ruled else None)
    toy.answer([1, 2, 3], SD, PLAIN, 80)
    learned = toy.engine.drafters.policy(latency_model(), SD, deterministic=False, ruled=is_ruled)
    other = toy.engine.drafters.policy(latency_model(), SD, deterministic=False, ruled=not is_ruled)
    assert learned.calibration._recent_judged > other.calibration._recent_judged == 4.0


@pytest.mark.parametrize("settings", [OFF, SD, SSD, EngineSettings(mode="ngram")])
def test_penalties_see_the_answer_alone_and_continue_after_a_pause(settings: EngineSettings) -> None:
    """The text is what a plain loop over whole rows gives; the answer pauses after every second round."""
    greedy, prompt = replace(PENALISED, temperature=0.0, penalty_window=9), [5, 6, 7, 8, 9, 10, 11, 12]
    model, expected = Toy().target, list(prompt)
    for _ in range(40):
        history = expected[max(len(prompt), len(expected) - greedy.penalty_window) :]
        expected.append(int(penalised_row(model.logits_after(expected), greedy, history).argmax()))
    toy, text, segment = Toy(), list(prompt), 0
    while len(text) < len(expected):
        left = len(expected) - len(text)
        params = DecodeParams(greedy, "rejection", 8, left, NO_END, answer_start=len(prompt))
        rounds = toy.engine.rounds(list(text), settings, params, latency_model(), 1, segment)
        with closing(rounds):
            for event, _ in zip(rounds, range(2), strict=False):
                assert isinstance(event, Round)
                text += event.tokens
        segment += 1
    assert text == expected


def test_what_was_found_in_the_cache_is_that_of_the_prompt_though_the_answer_paused() -> None:
    toy, prompt = Toy(), list(range(12))
    toy.answer(prompt, OFF, GREEDY, 4)
    text = [*prompt, 3, 3]
    for segment in range(3):
        params = DecodeParams(GREEDY, "rejection", 4, 20, NO_END, answer_start=14)
        with closing(toy.engine.rounds(list(text), SD, params, latency_model(), 1, segment)) as rounds:
            event = next(rounds)
        assert isinstance(event, Round)
        text += event.tokens
        assert toy.engine.reused == len(prompt)


def test_each_of_some_tokens_is_accepted_by_the_text_before_it() -> None:
    constraint, draws = MadeConstraint(16), np.random.default_rng(6)
    rules = TokenRules((), constraint)
    lengths = set()
    for _ in range(200):
        text, tokens = draws.integers(16, size=3).tolist(), draws.integers(16, size=4).tolist()
        fits = [token in constraint.allowed([*text, *tokens[:at]]) for at, token in enumerate(tokens)]
        expected = fits.index(False) if False in fits else len(tokens)
        assert rules.accepts(text, tokens) == expected
        lengths.add(expected)
    assert lengths == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("settings", [EngineSettings(mode="ngram"), replace(SD, fallback="ngram")])
def test_rules_end_with_their_answer(settings: EngineSettings) -> None:
    toy, prompt = Toy(), [1, 2, 3] * 6
    toy.rules = TokenRules((), MadeConstraint(16))
    toy.answer(prompt, settings, GREEDY, 30)
    toy.rules = None
    found = [(each.tokens, each.stats.drafted) for each in toy.rounds(prompt, settings, GREEDY, 12)]
    other = Toy()  # which has seen as much of both models, without rules
    other.answer(prompt, settings, GREEDY, 30)
    assert found == [(each.tokens, each.stats.drafted) for each in other.rounds(prompt, settings, GREEDY, 12)]


@pytest.mark.parametrize("deterministic", [True, False])
def test_what_drafts_are_worth_next_to_copies_is_learned_apart_for_best_and_for_drawn_tokens(
    deterministic: bool,
) -> None:
    stats, text = PromptLookupStats(), [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4]
    lookup = PromptLookup(SuffixIndex(), policy_of(deterministic=deterministic), stats)
    for _ in range(40):
        lookup.begin(text)
        (confidence, *_) = lookup.first(4).confidences
        lookup.commit([9, 10, 11, 12], 4, VerifyOutcome(0, 13))
    refused, unseen = (stats.chosen, stats.drawn)[:: 1 if deterministic else -1]
    assert refused.chance(confidence, 0.7) < 0.2
    assert unseen.chance(confidence, 0.7) == pytest.approx(0.7)


def test_what_follows_adopted_tokens_fits_all_of_them() -> None:
    constraint, draws = MadeConstraint(16), np.random.default_rng(7)
    for _ in range(30):
        state = DraftState(FakeModel(16, sequences=2))
        proposer = RowProposer(GREEDY, SD, draws, None, TokenRules((), constraint))
        text, tokens = draws.integers(16, size=5).tolist(), draws.integers(16, size=2).tolist()
        state.begin(text)
        state.adopt(tokens, proposer)
        assert state.proposals[-1].token in constraint.allowed([*text, *tokens])
