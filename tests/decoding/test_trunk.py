from __future__ import annotations

import random
from dataclasses import replace

import pytest

from localspec.decoding.drafters.draft_state import DraftState, common_prefix
from localspec.testing.fake import FakeModel
from localspec.types import EngineSettings, VerifyOutcome
from tests.decoding.toys import PLAIN, assert_cache_follows, greedy_text, pace_of, proposer_of

PACE = pace_of()


def drafted(text: list[int], count: int, *, sequences: int = 1) -> tuple[DraftState, FakeModel]:
    """Return a trunk with so many proposals."""
    model = FakeModel(sequences=sequences)
    trunk = DraftState(model)
    trunk.begin(text)
    for _ in range(count):
        trunk.extend(PACE, proposer_of())
    return trunk, model


@pytest.mark.parametrize(
    ("left", "right", "length"),
    [([1, 2, 3], [1, 2, 4], 2), ([1, 2], [1, 2, 3], 2), ([], [1], 0), ([5], [6], 0)],
)
def test_the_common_prefix(left: list[int], right: list[int], length: int) -> None:
    assert common_prefix(left, right) == length == common_prefix(right, left)


def test_a_trunk_drafts_what_the_model_would_write() -> None:
    trunk, model = drafted([1, 2, 3], 6)
    assert trunk.whole() == [1, 2, 3, *greedy_text(model, [1, 2, 3], 6)]
    assert_cache_follows(trunk, model)
    assert len(trunk.confidences()) == 6


def test_drafting_stops_at_the_limit_and_where_it_does_not_pay() -> None:
    trunk, _ = drafted([1, 2], 0)
    trunk.extend_while_worth(pace_of(None, EngineSettings(min_confidence=0.0)), proposer_of(), 5)
    assert len(trunk.proposals) == 5
    trunk, _ = drafted([1, 2], 0)
    trunk.extend_while_worth(pace_of(None, EngineSettings(min_confidence=1.1)), proposer_of(), 5)
    assert len(trunk.proposals) == 1


def test_a_new_text_keeps_the_common_beginning_proposals_included() -> None:
    trunk, model = drafted([1, 2, 3, 4], 4)
    answer = trunk.whole()[4:7]
    model.calls.clear()
    trunk.begin([1, 2, 3, 4, *answer, 9, 9])
    assert model.length() == 7
    trunk.begin([1, 2, 9, 4])
    assert model.tokens() == [1, 2]
    assert trunk.text == [1, 2, 9, 4]
    assert trunk.proposals == []
    assert model.calls == []


def test_the_last_token_of_a_text_is_read_again_for_its_logits() -> None:
    trunk, model = drafted([1, 2, 3, 4], 3)
    trunk.begin([1, 2, 3, 4])
    assert model.length() == 3
    trunk.extend(PACE, proposer_of())
    assert trunk.proposals[0].token == greedy_text(model, [1, 2, 3, 4], 1)[0]


def test_a_new_text_cuts_every_sequence() -> None:
    trunk, model = drafted([1, 2, 3, 4], 2, sequences=3)
    model.share(0, 1, 5)
    model.share(0, 2, 2)
    trunk.begin([1, 2, 3, 8, 8, 8])
    assert [model.tokens(sequence) for sequence in range(3)] == [[1, 2, 3], [1, 2, 3], [1, 2]]


def test_an_empty_text_empties_the_cache() -> None:
    trunk, model = drafted([1, 2, 3], 2)
    trunk.begin([])
    assert model.length() == 0


def test_proposals_behind_a_bonus_token_that_was_proposed_stay() -> None:
    trunk, model = drafted([1, 2, 3], 5)
    tokens = trunk.whole()[3:]
    trunk.settle(VerifyOutcome(2, tokens[2]))
    assert trunk.text == [1, 2, 3, *tokens[:3]]
    assert trunk.whole() == [1, 2, 3, *tokens]
    assert_cache_follows(trunk, model)


@pytest.mark.parametrize("accepted", [0, 1, 3, 5])
def test_another_bonus_token_ends_the_proposals(accepted: int) -> None:
    trunk, model = drafted([1, 2, 3], 5)
    tokens = trunk.whole()[3:]
    bonus = 0 if accepted == 5 else (tokens[accepted] + 1) % 16
    trunk.settle(VerifyOutcome(accepted, bonus))
    assert trunk.whole() == trunk.text == [1, 2, 3, *tokens[:accepted], bonus]
    assert model.length() <= len(trunk.text) - 1
    assert_cache_follows(trunk, model)


def test_a_foreign_draft_is_adopted_and_looked_beyond() -> None:
    trunk, model = drafted([1, 2, 3], 0)
    trunk.adopt([9, 8], proposer_of())
    assert [proposal.token for proposal in trunk.proposals[:2]] == [9, 8]
    assert trunk.proposals[2].token == greedy_text(model, [1, 2, 3, 9, 8], 1)[0]
    assert trunk.proposals[0].guesses[0][0] == greedy_text(model, [1, 2, 3], 1)[0]
    assert all(proposal.q is None for proposal in trunk.proposals)
    assert_cache_follows(trunk, model)


def test_penalties_on_what_follows_a_foreign_draft_look_no_further_than_to_its_place() -> None:
    strict = proposer_of(replace(PLAIN, presence_penalty=90.0), EngineSettings(acceptance="match"))
    trunk, model = drafted([1, 2, 3], 0)
    ranked = model.logits_after([1, 2, 3]).argsort()[::-1].tolist()
    first = next(token for token in ranked if token not in {1, 2, 3})
    trunk.adopt([first, 1], strict)
    assert trunk.proposals[0].guesses[0][0] == first
    assert trunk.proposals[1].guesses[0][0] not in {1, 2, 3, first}


def test_only_single_tokens_tell_what_a_step_costs() -> None:
    model = FakeModel()
    trunk = DraftState(model, clock=lambda: 7.0 * len(model.calls))
    trunk.begin([1, 2, 3])
    pace = pace_of()
    known = pace.step(1)
    trunk.extend(pace, proposer_of())
    assert pace.step(1) == known
    trunk.extend(pace, proposer_of())
    assert pace.step(1) > known


def test_a_foreign_draft_may_follow_the_first_proposals() -> None:
    trunk, model = drafted([1, 2, 3], 4)
    first = trunk.whole()[3:5]
    trunk.adopt([9, 8], proposer_of(), after=2)
    assert trunk.whole()[:7] == [1, 2, 3, *first, 9, 8]
    assert trunk.proposals[4].token == greedy_text(model, [1, 2, 3, *first, 9, 8], 1)[0]
    assert trunk.proposals[2].guesses[0][0] == greedy_text(model, [1, 2, 3, *first], 1)[0]
    assert_cache_follows(trunk, model)


@pytest.mark.parametrize(("proposals", "after"), [(0, 0), (3, 0), (3, 2), (3, 3)])
def test_a_foreign_draft_is_read_with_the_next_tokens(proposals: int, after: int) -> None:
    trunk, model = drafted([1, 2, 3], proposals)
    first = trunk.whole()[3 : 3 + after]
    calls = len(model.calls)
    trunk.take([9, 8, 7], after)
    assert trunk.whole() == [1, 2, 3, *first, 9, 8, 7]
    trunk.settle(VerifyOutcome(after + 2, 4))
    assert len(model.calls) == calls
    trunk.extend(PACE, proposer_of())
    assert len(model.calls) == calls + 1
    assert trunk.whole()[:-1] == [1, 2, 3, *first, 9, 8, 4]
    assert trunk.proposals[0].token == greedy_text(model, trunk.text, 1)[0]
    assert_cache_follows(trunk, model)


def test_whatever_happens_the_cache_holds_the_text() -> None:
    rng = random.Random(7)
    trunk, model = drafted([1, 2, 3], 0)
    for _ in range(400):
        for _ in range(rng.randrange(5)):
            trunk.extend(PACE, proposer_of())
        tokens = [proposal.token for proposal in trunk.proposals]
        match rng.randrange(8):
            case 0:
                trunk.begin([*trunk.whole()[: rng.randrange(1, 20)], rng.randrange(16)])
            case 1:
                after = rng.randrange(len(tokens) + 1)
                trunk.adopt([rng.randrange(16), rng.randrange(16)], proposer_of(), after)
            case _:
                accepted = rng.randrange(len(tokens) + 1)
                guessed = accepted < len(tokens) and rng.random() < 0.5
                trunk.settle(VerifyOutcome(accepted, tokens[accepted] if guessed else rng.randrange(16)))
        assert_cache_follows(trunk, model)
        if trunk.proposals:
            *before, last = trunk.whole()
            assert last == greedy_text(model, before, 1)[0]
