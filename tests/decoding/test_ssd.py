"""The drafter's thread and its caller; gates and queues decide who is first, never the clock."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from queue import SimpleQueue

import pytest

from localspec.decoding.drafters.draft_worker import in_thread
from localspec.decoding.drafters.drafter import DraftState
from localspec.decoding.drafters.prompt_lookup import PromptLookup, PromptLookupStats, SuffixIndex
from localspec.decoding.drafters.speculation_cache import SpeculationCache
from localspec.decoding.drafters.ssd import SSDDrafter
from localspec.decoding.policy import CostCurve, LatencyModel
from localspec.errors import Cancelled, EngineError
from localspec.types.drafts import DraftOrigin, VerifyOutcome
from localspec.types.request import EngineSettings
from tests.decoding.toys import (
    GREEDY,
    TIMEOUT_S,
    Gate,
    Watched,
    broken,
    drafters,
    greedy_text,
    policy_of,
    proposer_of,
)
from tests.fake_model import FakeModel

PROMPT = [1, 2, 3]
SETTINGS = EngineSettings(mode="ssd", draft_length=4, fan_out_budget=4)
SEND_WHAT_IS_READY = LatencyModel(CostCurve({1: 1.0, 2: 1.001}), CostCurve({1: 5.0, 16: 5.0}))

Delay = Callable[[], None]


class Signalling(SimpleQueue):  # type: ignore[type-arg]
    """A queue that calls back after each message."""

    def __init__(self, then: Delay) -> None:
        super().__init__()
        self.then = then

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        super().put(item)
        self.then()


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    assert drafters() == []


def ahead_of(
    model: FakeModel,
    costs: LatencyModel | None = None,
    settings: EngineSettings = SETTINGS,
) -> SSDDrafter:
    return drafter_on(DraftState(model), costs, settings)


def drafter_on(state: DraftState, costs: LatencyModel | None, settings: EngineSettings) -> SSDDrafter:
    cache = SpeculationCache(state, policy_of(costs, settings), proposer_of(GREEDY, settings), settings)
    return SSDDrafter(in_thread(cache), settings.draft_length)


def first_token(model: FakeModel, prompt: Sequence[int] = PROMPT) -> int:
    return greedy_text(model, prompt, 1)[0]


def test_a_prepared_draft_is_sent_while_the_drafter_is_still_at_work() -> None:
    with Gate(free_calls=4) as gate:
        model = FakeModel(sequences=5, delay=gate)
        drafter = ahead_of(model, SEND_WHAT_IS_READY)
        drafter.begin(PROMPT)
        gate.wait_until_closed()
        drafter.commit(VerifyOutcome(0, first_token(model)))
        draft = drafter.draft(4)
        assert draft.origin is DraftOrigin.AHEAD
        assert draft.tokens
        assert draft.tokens == tuple(greedy_text(model, PROMPT, 5)[1:])[: len(draft.tokens)]
        assert drafter.wait_s == drafter.busy_s == 0.0
        gate.open()
        drafter.end()


def test_the_limit_cuts_a_prepared_draft() -> None:
    with Gate(free_calls=5) as gate:
        model = FakeModel(sequences=5, delay=gate)
        drafter = ahead_of(model, SEND_WHAT_IS_READY)
        drafter.begin(PROMPT)
        gate.wait_until_closed()
        drafter.commit(VerifyOutcome(0, first_token(model)))
        assert len(drafter.draft(2).tokens) == 2
        gate.open()
        drafter.end()


def test_a_prepared_draft_is_cut_where_the_draft_model_is_unsure() -> None:
    settings = replace(SETTINGS, min_confidence=0.9)
    with Gate(free_calls=5) as gate:
        model = FakeModel(sequences=5, delay=gate)
        drafter = ahead_of(model, settings=settings)
        drafter.begin(PROMPT)
        gate.wait_until_closed()
        bonus = first_token(model)
        drafter.commit(VerifyOutcome(0, bonus))
        ready = drafter.worker.prepared[1][VerifyOutcome(0, bonus)].proposals
        sure = next(place for place, proposal in enumerate(ready) if proposal.confidence < 0.9)
        assert drafter.draft(4).tokens == tuple(proposal.token for proposal in ready[:sure])
        gate.open()
        drafter.end()


def test_a_short_prepared_draft_is_sent_as_it_is_while_the_draft_model_is_long_busy() -> None:
    for busy_until, lengths in ((0.0, {4}), (1e9, {1, 2, 3})):
        with Gate(free_calls=3) as gate:
            model = FakeModel(sequences=5, delay=gate)
            drafter = ahead_of(model)
            drafter.worker.inbox = Signalling(gate.open)
            drafter.begin(PROMPT)
            gate.wait_until_closed()
            drafter.worker.cache.busy_until = busy_until
            drafter.commit(VerifyOutcome(0, first_token(model)))
            assert len(drafter.draft(4).tokens) in lengths
            drafter.end()


def test_an_outcome_that_was_not_prepared_is_drafted_while_the_target_waits() -> None:
    model = FakeModel(sequences=5)
    drafter = ahead_of(model, settings=replace(SETTINGS, fan_out_budget=0))
    with Gate(free_calls=1) as gate:
        model._delay = gate
        drafter.begin(PROMPT)
        gate.wait_until_closed()
        bonus = (first_token(model) + 1) % 16
        gate.open()
        drafter.commit(VerifyOutcome(0, bonus))
        draft = drafter.draft(4)
    assert draft.origin is DraftOrigin.FRESH
    assert draft.tokens == tuple(greedy_text(model, [*PROMPT, bonus], 4))
    assert drafter.busy_s > 0
    drafter.commit(VerifyOutcome(4, 9))
    assert drafter.draft(3).tokens == tuple(greedy_text(model, [*PROMPT, bonus, *draft.tokens, 9], 3))
    drafter.end()


def test_after_a_draft_that_was_asked_for_its_verification_begins_again() -> None:
    """By the clock of the verdict before it there would be no time left to prepare anything."""
    model = FakeModel(sequences=5)
    costs = LatencyModel(CostCurve({1: 1.0}), CostCurve({1: 0.5}))
    settings = replace(SETTINGS, fan_out_budget=0, min_confidence=0.0)
    draft_state = DraftState(model, clock=lambda: 0.5 * len(model.calls))
    drafter = drafter_on(draft_state, costs, settings)
    drafter.worker.inbox = inbox = Watched()
    drafter.begin(PROMPT)
    assert inbox.idle.wait(TIMEOUT_S)
    drafter.commit(VerifyOutcome(0, (first_token(model) + 1) % 16))
    assert drafter.draft(4).origin is DraftOrigin.FRESH
    assert inbox.idle.wait(TIMEOUT_S)
    drafter.commit(next(iter(drafter.worker.prepared[1])))
    assert drafter.draft(1).origin is DraftOrigin.AHEAD
    drafter.end()


def test_a_branch_whose_first_token_is_being_drafted_is_worth_the_wait() -> None:
    with Gate(free_calls=1) as gate:
        model = FakeModel(sequences=5, delay=gate)
        drafter = ahead_of(model)
        drafter.worker.inbox = Signalling(gate.open)
        drafter.begin(PROMPT)
        gate.wait_until_closed()  # the prompt is read, the first branches are opened and hold nothing
        assert {len(branch.proposals) for branch in drafter.worker.prepared[1].values()} == {0}
        drafter.commit(VerifyOutcome(0, first_token(model)))
        draft = drafter.draft(4)
        assert draft.origin is DraftOrigin.AHEAD
        assert draft.tokens == tuple(greedy_text(model, PROMPT, 5)[1:])
        drafter.end()


def test_what_was_prepared_for_one_round_does_not_serve_the_next() -> None:
    with Gate(free_calls=4) as gate:
        model = FakeModel(sequences=5, delay=gate)
        drafter = ahead_of(model)
        drafter.worker.inbox = inbox = Signalling(lambda: None)
        drafter.begin(PROMPT)
        gate.wait_until_closed()
        bonus = first_token(model)
        drafter.commit(VerifyOutcome(0, bonus))
        assert drafter.draft(1).origin is DraftOrigin.AHEAD
        inbox.then = gate.open
        drafter.commit(VerifyOutcome(0, bonus))  # the same outcome, before the drafter has seen the first
        assert drafter.draft(3).tokens == tuple(greedy_text(model, [*PROMPT, bonus, bonus], 3))
        drafter.end()


def test_a_short_prepared_draft_is_lengthened_while_that_pays() -> None:
    with Gate(free_calls=3) as gate:
        model = FakeModel(sequences=5, delay=gate)
        drafter = ahead_of(model)
        drafter.worker.inbox = Signalling(gate.open)
        drafter.begin(PROMPT)
        gate.wait_until_closed()
        drafter.commit(VerifyOutcome(0, first_token(model)))
        draft = drafter.draft(4)
        assert (draft.origin, len(draft.tokens)) == (DraftOrigin.AHEAD, 4)
        drafter.end()


def test_an_error_while_the_caller_waits_reaches_the_caller() -> None:
    with Gate(free_calls=1) as gate:
        model = FakeModel(sequences=5, delay=gate)
        drafter = ahead_of(model)

        def break_it() -> None:
            model._delay = broken
            gate.open()

        drafter.worker.inbox = Signalling(break_it)
        drafter.begin(PROMPT)
        gate.wait_until_closed()
        drafter.commit(VerifyOutcome(0, (first_token(model) + 1) % 16))
        with pytest.raises(EngineError, match="the card fell out"):
            drafter.draft(4)
        with pytest.raises(EngineError, match="the card fell out"):
            drafter.draft(4)
        drafter.end()


def test_an_error_before_the_caller_asks_reaches_the_caller() -> None:
    model = FakeModel(sequences=5, delay=broken)
    drafter = ahead_of(model)
    drafter.begin(PROMPT)
    assert drafter._threaded._thread is not None
    drafter._threaded._thread.join(TIMEOUT_S)
    drafter.commit(VerifyOutcome(0, 5))
    with pytest.raises(EngineError, match="the card fell out"):
        drafter.draft(4)
    drafter.end()


def test_ending_stops_a_draft_model_that_reads_a_long_prompt() -> None:
    reading = threading.Event()
    model = FakeModel(sequences=5)

    def read_until_cancelled() -> None:
        reading.set()
        assert model._cancelled.wait(TIMEOUT_S)
        raise Cancelled

    model._delay = read_until_cancelled
    drafter = ahead_of(model)
    drafter.begin(PROMPT)
    assert reading.wait(TIMEOUT_S)
    drafter.end()
    assert drafters() == []
    assert isinstance(drafter._threaded.failure, Cancelled)
    drafter.end()

    model._delay = None
    second = ahead_of(model)
    second.begin(PROMPT)
    second.commit(VerifyOutcome(0, 5))
    second.end()


def test_while_a_round_opens_nothing_is_to_be_had_under_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller may look at any moment: a branch of the last round under the next one's number is wrong."""
    model = FakeModel(sequences=5)
    worker = ahead_of(model).worker
    worker.state.begin(PROMPT)
    worker._open_round(0, math.inf)
    while worker.cache.step():
        continue
    before = worker.prepared
    seen = []
    opening = worker.cache.open_round

    def watched(sent: int, since: float) -> None:
        seen.append(worker.prepared)
        opening(sent, since)
        seen.append(worker.prepared)

    monkeypatch.setattr(worker.cache, "open_round", watched)
    worker.cache.apply_result(VerifyOutcome(0, first_token(model)))
    worker._open_round(1, math.inf)
    assert [number for number, _ in seen] == [before[0]] * 2
    assert all(branches is before[1] for _, branches in seen)
    assert worker.prepared[0] == before[0] + 1
    assert worker.prepared[1] is worker.cache.branches
    assert worker.prepared[1] is not before[1]


@pytest.mark.parametrize("least", [0.0, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("limit", [1, 2, 4])
def test_what_is_prepared_next_follows_as_many_tokens_as_were_sent(least: float, limit: int) -> None:
    model = FakeModel(sequences=5)
    state = DraftState(model, clock=lambda: 1e-6 * len(model.calls))  # never too late to prepare
    drafter = drafter_on(state, None, replace(SETTINGS, min_confidence=least))
    drafter.worker.inbox = inbox = Watched()
    drafter.begin(PROMPT)
    assert inbox.idle.wait(TIMEOUT_S)
    bonus = first_token(model)
    drafter.commit(VerifyOutcome(0, bonus))
    ready = drafter.worker.prepared[1][VerifyOutcome(0, bonus)].proposals
    draft = drafter.look_up(limit)
    assert draft is not None
    assert len(draft.tokens) <= min(limit, len(ready))
    assert inbox.idle.wait(TIMEOUT_S)
    number, branches = drafter.worker.prepared
    drafter.end()
    assert number == 1
    assert max(outcome.accepted for outcome in branches) == len(draft.tokens)
    text = [*PROMPT, bonus, *draft.tokens]
    assert VerifyOutcome(len(draft.tokens), first_token(model, text)) in branches


def test_a_draft_that_a_repetition_follows_is_reported_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, what the draft model is unsure of would be cut off."""
    model = FakeModel(sequences=5)
    state = DraftState(model, clock=lambda: 1e-6 * len(model.calls))
    threaded = drafter_on(state, None, replace(SETTINGS, min_confidence=0.9))._threaded
    worker = threaded.worker
    lookup = PromptLookup(SuffixIndex(), worker.policy, PromptLookupStats())
    monkeypatch.setattr(lookup, "continuation", lambda *_: (7, 8))
    drafter = SSDDrafter(threaded, SETTINGS.draft_length, lookup)
    worker.inbox = inbox = Watched()
    drafter.begin(PROMPT)
    assert inbox.idle.wait(TIMEOUT_S)
    outcome = VerifyOutcome(0, first_token(model))
    ready = [proposal.token for proposal in worker.prepared[1][outcome].proposals[: SETTINGS.draft_length]]
    drafter.commit(outcome)
    draft = drafter.look_up(9)
    assert draft is not None
    assert draft.tokens == (*ready, 7, 8)
    assert inbox.idle.wait(TIMEOUT_S)
    branches = worker.prepared[1]
    drafter.end()
    assert max(each.accepted for each in branches) == len(draft.tokens)
    assert tuple(each.token for each in state.proposals[: len(draft.tokens)]) == draft.tokens
