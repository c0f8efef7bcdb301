"""Where the draft model is in an answer, and what it thinks there."""

from __future__ import annotations

import pytest

from localspec.decoding.drafters.proposer import Proposal
from localspec.tuning.simulator.call_times import Timing
from localspec.tuning.simulator.replay import Shape, replays
from localspec.tuning.simulator.replayed_model import ReplayedModel, ReplayedProposer
from localspec.tuning.simulator.virtual_time import VirtualClock
from localspec.types.request import EngineSettings
from tests.tuning.virtual import toy

ONE = toy(60, agreement=0.6, varied=True)
REPLAYED = replays(ONE.trace())[0]
SCRIPT = REPLAYED.script(Shape.of(ONE.trace().sampling, EngineSettings()))
START = len(ONE.prompt)
RIGHT = [p.token == token for p, token in zip(SCRIPT.judged, ONE.tokens, strict=True)]
WRONG = next(place for place in range(5, 40) if not RIGHT[place] and RIGHT[place + 1])


@pytest.fixture
def model() -> ReplayedModel:
    """Return a model that has read the answer up to a place where its own token would be wrong."""
    model = ReplayedModel(VirtualClock(), 3)
    model.begin(REPLAYED, SCRIPT, Timing(ONE.costs(), "ssd").at(START))
    model.evaluate([*ONE.prompt, *ONE.tokens[:WRONG]])
    return model


def proposed(model: ReplayedModel, tokens: list[int], count: int = 1) -> list[Proposal]:
    return ReplayedProposer(model, deterministic=True).after(model, tokens, count)


def test_on_the_answer_a_proposal_belongs_to_the_next_place(model: ReplayedModel) -> None:
    found = proposed(model, ONE.tokens[WRONG : WRONG + 3], 2)
    assert found == list(SCRIPT.judged[WRONG + 2 : WRONG + 4])


def test_its_own_mistake_leads_astray_for_good(model: ReplayedModel) -> None:
    own = SCRIPT.judged[WRONG].token
    found = proposed(model, [own, ONE.tokens[WRONG + 1]], 2)
    assert found == list(SCRIPT.astray[WRONG + 1 : WRONG + 3])
    model.truncate(START + WRONG)
    assert proposed(model, [ONE.tokens[WRONG]]) == [SCRIPT.judged[WRONG + 1]]


def test_a_token_that_surprises_it_is_like_the_right_one_there(model: ReplayedModel) -> None:
    surprise = next(t for t in range(99) if t not in {ONE.tokens[WRONG], SCRIPT.judged[WRONG].token})
    found = proposed(model, [surprise, ONE.tokens[WRONG + 1]], 2)
    assert found == [SCRIPT.judged[WRONG + 1], SCRIPT.astray[WRONG + 2]]


def test_a_branch_continues_from_where_it_was_shared(model: ReplayedModel) -> None:
    model.evaluate([SCRIPT.judged[WRONG].token])
    model.share(0, 1, START + WRONG)
    model.share(0, 2, START + WRONG + 1)
    proposer = ReplayedProposer(model, deterministic=True)
    found = proposer.step(model, [ONE.tokens[WRONG], ONE.tokens[WRONG + 1]], [1, 2])
    assert found == [SCRIPT.judged[WRONG + 1], SCRIPT.astray[WRONG + 2]]


@pytest.mark.parametrize("more", [0, 1, 2])
def test_another_tail_than_it_has_read_is_as_right_as_it_is(model: ReplayedModel, more: int) -> None:
    own, right = SCRIPT.judged[WRONG].token, ONE.tokens[WRONG : WRONG + 3]
    model.evaluate([own, *right[1:]][: more + 1])
    model.rewrite(right, START + WRONG)
    assert model.length() == START + WRONG + more + 1
    assert model.append(ONE.tokens[WRONG + more + 1]) == WRONG + more + 2
    model.rewrite([own], START + WRONG)
    assert model.append(right[1]) < 0


def test_a_tail_that_it_has_not_read_is_still_to_be_read(model: ReplayedModel) -> None:
    model.rewrite(ONE.tokens[WRONG : WRONG + 2], START + WRONG)
    assert model.length() == START + WRONG


def test_astray_it_is_as_sure_as_after_right_tokens() -> None:
    after_right = {SCRIPT.judged[place + 1] for place in range(59) if RIGHT[place]}
    assert set(SCRIPT.astray) <= after_right
    assert len(set(SCRIPT.astray)) > 5
