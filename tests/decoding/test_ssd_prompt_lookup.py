"""Repetitions beside the drafter that works ahead; gates decide who is first, never the clock."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from localspec.decoding.drafters.draft_worker import in_thread
from localspec.decoding.drafters.drafter import DraftState
from localspec.decoding.drafters.prompt_lookup import PromptLookup, PromptLookupStats, SuffixIndex
from localspec.decoding.drafters.speculation_cache import SpeculationCache
from localspec.decoding.drafters.ssd import SSDDrafter
from localspec.decoding.policy import AcceptanceCalibration, LatencyModel
from localspec.types.drafts import Draft, DraftOrigin, VerifyOutcome
from localspec.types.request import EngineSettings
from tests.decoding.test_ssd import SEND_WHAT_IS_READY, Signalling, first_token
from tests.decoding.toys import (
    GREEDY,
    TIMEOUT_S,
    Gate,
    Watched,
    drafters,
    greedy_text,
    latency_model,
    policy_of,
    proposer_of,
    teach,
)
from tests.fake_model import FakeModel

SETTINGS = EngineSettings(mode="ssd", draft_length=4, fan_out_budget=4, fallback="ngram")
SHORT = replace(SETTINGS, draft_length=3)


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    assert drafters() == []


def ahead_of(
    model: FakeModel,
    repetitions: float,
    of_model: float,
    settings: EngineSettings = SETTINGS,
    costs: LatencyModel | None = None,
) -> SSDDrafter:
    """Return a drafter to whom both are known to be accepted with a chance."""
    known, lookup_stats = AcceptanceCalibration(), PromptLookupStats()
    teach(lookup_stats.repeated, repetitions)
    teach(known, of_model)
    policy = policy_of(costs, settings, calibration=known)
    lookup = PromptLookup(SuffixIndex(), policy, lookup_stats)
    cache = SpeculationCache(DraftState(model), policy, proposer_of(GREEDY, settings), settings)
    return SSDDrafter(in_thread(cache), settings.draft_length, lookup)


def repeating(model: FakeModel) -> list[int]:
    """Return a prompt whose next token the model is sure of, and after which the text would repeat itself."""
    bonus = first_token(model, [4, 5])
    return [4, 5, bonus, 7, 8, 9, 4, 5]


@pytest.mark.parametrize(
    ("prepared", "repetitions", "of_model", "origin"),
    [
        (True, 0.9, 0.3, DraftOrigin.NGRAM),
        (True, 0.6, 0.7, DraftOrigin.AHEAD),
        (False, 0.9, 0.3, DraftOrigin.NGRAM),
        (False, 0.3, 0.9, DraftOrigin.AHEAD),  # the drafter is asked, and has it
    ],
)
def test_whoever_is_worth_more_writes(
    prepared: bool, repetitions: float, of_model: float, origin: DraftOrigin
) -> None:
    with Gate(free_calls=3) as gate:
        model = FakeModel(sequences=5, delay=gate)
        prompt = repeating(model)
        settings = SETTINGS if prepared else replace(SETTINGS, fan_out_budget=0)
        drafter = ahead_of(model, repetitions, of_model, settings)
        drafter.worker.inbox = Signalling(gate.open)
        drafter.begin(prompt)
        gate.wait_until_closed()
        bonus = first_token(model, prompt)
        if not prepared:
            drafter.worker.prepared = (drafter.worker.prepared[0], {})
        drafter.commit(VerifyOutcome(0, bonus))
        draft = drafter.draft(4)
        drafter.end()
    assert draft.origin is origin
    from_text = draft.tokens == (7, 8, 9, 4)
    assert from_text == (origin is DraftOrigin.NGRAM)
    assert from_text or draft.tokens == tuple(greedy_text(model, [*prompt, bonus], 4))


def written_before(model: FakeModel, begin: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return a prompt that holds what the model writes after a beginning, and what follows that."""
    expected = [*greedy_text(model, begin, 3), 11, 13, 11, 14, 12, 13]
    return [0, *expected, 15, *begin[:-1]], expected


def test_a_repetition_continues_after_a_prepared_draft() -> None:
    with Gate(free_calls=4) as gate:
        model = FakeModel(sequences=5, delay=gate)
        bonus = first_token(model, [7, 2])
        prompt, expected = written_before(model, [7, 2, bonus])
        drafter = ahead_of(model, 0.9, 0.9, SHORT, SEND_WHAT_IS_READY)
        drafter.begin(prompt)
        gate.wait_until_closed()
        drafter.commit(VerifyOutcome(0, bonus))
        draft = drafter.draft(9)
        assert draft.origin is DraftOrigin.AHEAD
        assert draft.tokens == tuple(expected)
        gate.open()
        assert_goes_on(drafter, model, [*prompt, bonus, *draft.tokens[:5]], VerifyOutcome(5, 3))


def assert_goes_on(drafter: SSDDrafter, model: FakeModel, text: list[int], outcome: VerifyOutcome) -> None:
    """Check that after a verdict the model drafts what follows the text."""
    drafter.worker.policy.step = latency_model().step
    drafter.commit(outcome)
    draft = drafter.draft(3)
    assert draft.origin in {DraftOrigin.FRESH, DraftOrigin.AHEAD}
    assert draft.tokens == tuple(greedy_text(model, [*text, outcome.bonus], 3))
    drafter.end()


def test_a_repetition_continues_after_a_draft_that_was_asked_for() -> None:
    model = FakeModel(sequences=5)
    bonus = (first_token(model, [7, 2]) + 1) % 16
    prompt, expected = written_before(model, [7, 2, bonus])
    drafter = ahead_of(model, 0.9, 0.9, replace(SHORT, fan_out_budget=0))
    drafter.worker.inbox = inbox = Watched()
    with Gate(free_calls=1) as gate:
        model._delay = gate
        drafter.begin(prompt)
        gate.wait_until_closed()
        gate.open()
        drafter.commit(VerifyOutcome(0, bonus))
        draft = drafter.draft(9)
    assert draft.origin is DraftOrigin.FRESH
    assert draft.tokens == tuple(expected)
    assert inbox.idle.wait(TIMEOUT_S)
    (outcome,) = drafter.worker.prepared[1]
    assert outcome.accepted == len(draft.tokens)
    drafter.commit(outcome)
    following = drafter.look_up(3)
    drafter.end()
    assert following is not None  # what was prepared behind the repetition is found
    assert following.tokens == tuple(greedy_text(model, [*prompt, bonus, *draft.tokens, outcome.bonus], 3))


@pytest.mark.parametrize(("draft_length", "sent"), [(3, 9), (4, 3)])
def test_no_repetition_follows_a_draft_that_was_asked_for_and_cut(draft_length: int, sent: int) -> None:
    """The model is sure of three tokens and not of a fourth."""
    model = FakeModel(sequences=5)
    bonus = (first_token(model, [1, 11]) + 1) % 16
    prompt, expected = written_before(model, [1, 11, bonus])
    settings = replace(SETTINGS, draft_length=draft_length, fan_out_budget=0, min_confidence=0.3)
    drafter = ahead_of(model, 0.9, 0.9, settings)
    drafter.worker.inbox = inbox = Watched()
    drafter.begin(prompt)
    assert inbox.idle.wait(TIMEOUT_S)
    drafter.commit(VerifyOutcome(0, bonus))
    draft = drafter.draft(9)
    drafter.end()
    assert draft.origin is DraftOrigin.FRESH
    assert draft.tokens == tuple(expected[:sent])


def test_while_the_draft_model_still_reads_the_text_is_repeated_and_read_at_once_later() -> None:
    block = [3, 1, 4, 1, 5, 9, 2, 6, 8, 7]
    with Gate(free_calls=0) as gate:
        model = FakeModel(sequences=5, delay=gate)
        drafter = ahead_of(model, 0.9, 0.9)
        drafter.worker.inbox = inbox = Watched()
        text = [*block, *block[:4]]
        drafter.begin(text)
        gate.wait_until_closed()
        outcome = VerifyOutcome(0, block[4])
        for _ in range(5):
            drafter.commit(outcome)
            text.append(outcome.bonus)
            draft = drafter.draft(4)
            assert (draft.origin, len(draft.tokens)) == (DraftOrigin.NGRAM, 4)
            text += draft.tokens
            outcome = VerifyOutcome(4, block[len(text) % 10])
        assert len(model.calls) == 1
        gate.open()
        assert inbox.idle.wait(TIMEOUT_S)
    many = [size for size in model.calls if size > SETTINGS.fan_out_budget + 1]
    assert len(many) == 2  # the prompt, and all of the rest
    assert_goes_on(drafter, model, text, VerifyOutcome(4, 15))


@pytest.mark.parametrize(("repetitions", "of_model"), [(0.9, 0.3), (0.5, 0.95)])
def test_whatever_is_sent_and_accepted_the_model_follows(repetitions: float, of_model: float) -> None:
    """Drafts are accepted to a random length, and then some token follows that was expected or not."""
    random_ = random.Random(5)
    model = FakeModel(sequences=5)
    drafter = ahead_of(model, repetitions, of_model, replace(SETTINGS, fan_out_budget=2))
    drafter.worker.inbox = inbox = Watched()
    text = [4, 5, 6, 4, 5]
    drafter.begin(text)
    assert inbox.idle.wait(TIMEOUT_S)
    known, is_model = drafter.worker.policy.calibration, False
    outcome, kinds = VerifyOutcome(0, 6), set()
    for _ in range(300):
        judged = sum(known._judged)
        drafter.commit(outcome)
        assert is_model or sum(known._judged) == judged  # a repetition says nothing of the model
        text.append(outcome.bonus)
        draft = drafter.draft(8)
        is_model = draft.origin in {DraftOrigin.FRESH, DraftOrigin.AHEAD}
        kinds.add((is_model, len(draft.tokens) > 4))
        if is_model:
            written = draft.tokens[:4]
            assert written == tuple(greedy_text(model, text, len(written)))
        outcome = verdict(draft, text, model, random_)
        text += draft.tokens[: outcome.accepted]
    drafter.end()
    assert (of_model > repetitions, True) in kinds  # repetitions alone, or behind the model


def verdict(draft: Draft, text: Sequence[int], model: FakeModel, random_: random.Random) -> VerifyOutcome:
    accepted = random_.randrange(len(draft.tokens) + 1)
    if random_.random() < 0.5:
        return VerifyOutcome(accepted, random_.randrange(16))
    return VerifyOutcome(accepted, first_token(model, [*text, *draft.tokens[:accepted]]))
