from __future__ import annotations

import random
from dataclasses import replace

import pytest

from localspec.decoding.drafters.drafter import DraftState
from localspec.decoding.prefixes import common_prefix
from localspec.types.drafts import VerifyOutcome
from localspec.types.request import EngineSettings
from tests.decoding.toys import PLAIN, assert_cache_follows, greedy_text, policy_of, proposer_of
from tests.fake_model import FakeModel

PACE = policy_of()


def drafted(text: list[int], count: int, *, sequences: int = 1) -> tuple[DraftState, FakeModel]:
    """Return a trunk with N proposals."""
    model = FakeModel(sequences=sequences)
    draft_state = DraftState(model)
    draft_state.begin(text)
    for _ in range(count):
        draft_state.extend(PACE, proposer_of())
    return draft_state, model


@pytest.mark.parametrize(
    ("left", "right", "length"),
    [([1, 2, 3], [1, 2, 4], 2), ([1, 2], [1, 2, 3], 2), ([], [1], 0), ([5], [6], 0)],
)
def test_the_common_prefix(left: list[int], right: list[int], length: int) -> None:
    assert common_prefix(left, right) == length == common_prefix(right, left)


def test_a_trunk_drafts_what_the_model_would_write() -> None:
    draft_state, model = drafted([1, 2, 3], 6)
    assert draft_state.whole() == [1, 2, 3, *greedy_text(model, [1, 2, 3], 6)]
    assert_cache_follows(draft_state, model)
    assert len(draft_state.confidences()) == 6


def test_drafting_stops_at_the_limit_and_where_it_does_not_pay() -> None:
    draft_state, _ = drafted([1, 2], 0)
    draft_state.extend_while_worth(policy_of(None, EngineSettings(min_confidence=0.0)), proposer_of(), 5)
    assert len(draft_state.proposals) == 5
    draft_state, _ = drafted([1, 2], 0)
    draft_state.extend_while_worth(policy_of(None, EngineSettings(min_confidence=1.1)), proposer_of(), 5)
    assert len(draft_state.proposals) == 1


def test_a_new_text_keeps_the_common_beginning_proposals_included() -> None:
    draft_state, model = drafted([1, 2, 3, 4], 4)
    answer = draft_state.whole()[4:7]
    model.calls.clear()
    draft_state.begin([1, 2, 3, 4, *answer, 9, 9])
    assert model.length() == 7
    draft_state.begin([1, 2, 9, 4])
    assert model.tokens() == [1, 2]
    assert draft_state.text == [1, 2, 9, 4]
    assert draft_state.proposals == []
    assert model.calls == []


def test_the_last_token_of_a_text_is_read_again_for_its_logits() -> None:
    draft_state, model = drafted([1, 2, 3, 4], 3)
    draft_state.begin([1, 2, 3, 4])
    assert model.length() == 3
    draft_state.extend(PACE, proposer_of())
    assert draft_state.proposals[0].token == greedy_text(model, [1, 2, 3, 4], 1)[0]


def test_a_new_text_cuts_every_sequence() -> None:
    draft_state, model = drafted([1, 2, 3, 4], 2, sequences=3)
    model.share(0, 1, 5)
    model.share(0, 2, 2)
    draft_state.begin([1, 2, 3, 8, 8, 8])
    assert [model.tokens(sequence) for sequence in range(3)] == [[1, 2, 3], [1, 2, 3], [1, 2]]


def test_an_empty_text_empties_the_cache() -> None:
    draft_state, model = drafted([1, 2, 3], 2)
    draft_state.begin([])
    assert model.length() == 0


def test_proposals_after_a_bonus_token_that_was_proposed_stay() -> None:
    draft_state, model = drafted([1, 2, 3], 5)
    tokens = draft_state.whole()[3:]
    draft_state.apply_result(VerifyOutcome(2, tokens[2]))
    assert draft_state.text == [1, 2, 3, *tokens[:3]]
    assert draft_state.whole() == [1, 2, 3, *tokens]
    assert_cache_follows(draft_state, model)


@pytest.mark.parametrize("accepted", [0, 1, 3, 5])
def test_another_bonus_token_ends_the_proposals(accepted: int) -> None:
    draft_state, model = drafted([1, 2, 3], 5)
    tokens = draft_state.whole()[3:]
    bonus = 0 if accepted == 5 else (tokens[accepted] + 1) % 16
    draft_state.apply_result(VerifyOutcome(accepted, bonus))
    assert draft_state.whole() == draft_state.text == [1, 2, 3, *tokens[:accepted], bonus]
    assert model.length() <= len(draft_state.text) - 1
    assert_cache_follows(draft_state, model)


def test_a_foreign_draft_is_adopted_and_looked_beyond() -> None:
    draft_state, model = drafted([1, 2, 3], 0)
    draft_state.adopt([9, 8], proposer_of())
    assert [proposal.token for proposal in draft_state.proposals[:2]] == [9, 8]
    assert draft_state.proposals[2].token == greedy_text(model, [1, 2, 3, 9, 8], 1)[0]
    assert draft_state.proposals[0].guesses[0][0] == greedy_text(model, [1, 2, 3], 1)[0]
    assert all(proposal.q is None for proposal in draft_state.proposals)
    assert_cache_follows(draft_state, model)


def test_penalties_on_what_follows_a_foreign_draft_look_no_further_than_to_its_place() -> None:
    strict = proposer_of(replace(PLAIN, presence_penalty=90.0), EngineSettings(acceptance="match"))
    draft_state, model = drafted([1, 2, 3], 0)
    ranked = model.logits_after([1, 2, 3]).argsort()[::-1].tolist()
    first = next(token for token in ranked if token not in {1, 2, 3})
    draft_state.adopt([first, 1], strict)
    assert draft_state.proposals[0].guesses[0][0] == first
    assert draft_state.proposals[1].guesses[0][0] not in {1, 2, 3, first}


def test_only_single_tokens_tell_what_a_step_costs() -> None:
    model = FakeModel()
    draft_state = DraftState(model, clock=lambda: 7.0 * len(model.calls))
    draft_state.begin([1, 2, 3])
    policy = policy_of()
    known = policy.step(1)
    draft_state.extend(policy, proposer_of())
    assert policy.step(1) == known
    draft_state.extend(policy, proposer_of())
    assert policy.step(1) > known


def test_a_foreign_draft_may_follow_the_first_proposals() -> None:
    draft_state, model = drafted([1, 2, 3], 4)
    first = draft_state.whole()[3:5]
    draft_state.adopt([9, 8], proposer_of(), after=2)
    assert draft_state.whole()[:7] == [1, 2, 3, *first, 9, 8]
    assert draft_state.proposals[4].token == greedy_text(model, [1, 2, 3, *first, 9, 8], 1)[0]
    assert draft_state.proposals[2].guesses[0][0] == greedy_text(model, [1, 2, 3, *first], 1)[0]
    assert_cache_follows(draft_state, model)


@pytest.mark.parametrize(("proposals", "after"), [(0, 0), (3, 0), (3, 2), (3, 3)])
def test_a_foreign_draft_is_read_with_the_next_tokens(proposals: int, after: int) -> None:
    draft_state, model = drafted([1, 2, 3], proposals)
    first = draft_state.whole()[3 : 3 + after]
    calls = len(model.calls)
    draft_state.take([9, 8, 7], after)
    assert draft_state.whole() == [1, 2, 3, *first, 9, 8, 7]
    draft_state.apply_result(VerifyOutcome(after + 2, 4))
    assert len(model.calls) == calls
    draft_state.extend(PACE, proposer_of())
    assert len(model.calls) == calls + 1
    assert draft_state.whole()[:-1] == [1, 2, 3, *first, 9, 8, 4]
    assert draft_state.proposals[0].token == greedy_text(model, draft_state.text, 1)[0]
    assert_cache_follows(draft_state, model)


def test_whatever_happens_the_cache_holds_the_text() -> None:
    rng = random.Random(7)
    draft_state, model = drafted([1, 2, 3], 0)
    for _ in range(400):
        for _ in range(rng.randrange(5)):
            draft_state.extend(PACE, proposer_of())
        tokens = [proposal.token for proposal in draft_state.proposals]
        match rng.randrange(8):
            case 0:
                draft_state.begin([*draft_state.whole()[: rng.randrange(1, 20)], rng.randrange(16)])
            case 1:
                after = rng.randrange(len(tokens) + 1)
                draft_state.adopt([rng.randrange(16), rng.randrange(16)], proposer_of(), after)
            case _:
                accepted = rng.randrange(len(tokens) + 1)
                guessed = accepted < len(tokens) and rng.random() < 0.5
                draft_state.apply_result(
                    VerifyOutcome(accepted, tokens[accepted] if guessed else rng.randrange(16))
                )
        assert_cache_follows(draft_state, model)
        if draft_state.proposals:
            *before, last = draft_state.whole()
            assert last == greedy_text(model, before, 1)[0]


def test_what_is_left_out_of_a_text_is_its_middle() -> None:
    state, model = drafted([1, 2, 3, 4], 1)
    model.truncate(4)
    whole = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    state.proposals = []
    state.most_read = 3
    state.begin(whole)
    assert (state.text, state.missing()) == ([1, 2, 3, 4, 7, 8, 9], [7, 8, 9])
    state.extend(PACE, proposer_of())
    state.most_read = None
    state.begin(whole)
    assert (state.text, state.missing()) == (whole, [5, 6, 7, 8, 9])
