"""Who writes where: the model, a repetition, or one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from localspec.decoding.drafters.drafter import DraftState
from localspec.decoding.drafters.model_drafter import ModelDrafter
from localspec.decoding.drafters.prompt_lookup import (
    LONGEST,
    PromptLookup,
    PromptLookupStats,
    SuffixIndex,
    longest_draft,
    values_of,
)
from localspec.decoding.drafters.proposer import Proposal
from localspec.decoding.policy import BINS, PRIOR_WEIGHT, AcceptanceBins, AcceptanceCalibration, LatencyModel
from localspec.types.drafts import DraftOrigin, VerifyOutcome
from localspec.types.request import EngineSettings, Sampling
from tests.decoding.toys import (
    GREEDY,
    PLAIN,
    assert_cache_follows,
    greedy_text,
    latency_model,
    policy_of,
    proposer_of,
    teach,
)
from tests.fake_model import FakeModel

SETTINGS = EngineSettings(mode="sd", draft_length=4, fallback="ngram")
BLOCK = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


class Bench:
    """A combined drafter on a toy model, and all that it learns."""

    def __init__(
        self,
        text: Sequence[int],
        *,
        settings: EngineSettings = SETTINGS,
        sampling: Sampling = GREEDY,
        costs: LatencyModel | None = None,
        seed: int = 0,
    ) -> None:
        self.model, self.lookup_stats, self.calibration = (
            FakeModel(),
            PromptLookupStats(),
            AcceptanceCalibration(),
        )
        self.draft_state = DraftState(self.model)
        proposer = proposer_of(sampling, settings, seed)
        self.policy = policy_of(
            costs, settings, deterministic=proposer.deterministic, calibration=self.calibration
        )
        self.lookup = PromptLookup(SuffixIndex(), self.policy, self.lookup_stats)
        self.drafter = ModelDrafter(
            self.draft_state, self.policy, proposer, settings.draft_length, self.lookup
        )
        self.drafter.begin(text[:-1])
        self.drafter.commit(VerifyOutcome(0, text[-1]))

    def teach(self, repetitions: float, model: float) -> None:
        """Let both have been accepted so often, many times."""
        teach(self.lookup_stats.repeated, repetitions)
        teach(self.calibration, model)


def judged(calibration: AcceptanceBins) -> float:
    """Return how many tokens it learned from."""
    return sum(calibration._judged) - BINS * PRIOR_WEIGHT


def test_a_text_that_repeats_itself_is_drafted_without_the_model() -> None:
    bench = Bench([*BLOCK, *BLOCK[:6]])
    draft = bench.drafter.draft(LONGEST)
    assert draft.origin is DraftOrigin.NGRAM
    assert draft.q is None
    assert draft.tokens[:6] == tuple(BLOCK[6:])
    assert len(draft.tokens) > SETTINGS.draft_length
    assert bench.model.calls == []


def test_the_model_reads_all_that_was_repeated_in_one_call() -> None:
    bench = Bench([*BLOCK, *BLOCK, *BLOCK[:4]])
    text = [*BLOCK, *BLOCK, *BLOCK[:4]]
    for _ in range(2):
        draft = bench.drafter.draft(4)
        assert draft.origin is DraftOrigin.NGRAM
        text += [*draft.tokens[:4], BLOCK[len(text) % 12 - 8]]
        bench.drafter.commit(VerifyOutcome(4, text[-1]))
    assert bench.model.calls == []
    bench.teach(repetitions=0.0, model=1.0)
    draft = bench.drafter.draft(4)
    assert draft.origin is DraftOrigin.FRESH
    assert draft.tokens == tuple(greedy_text(bench.model, text, 4))
    assert bench.model.calls == [len(text), 1, 1, 1]
    assert_cache_follows(bench.draft_state, bench.model)


@pytest.mark.parametrize(
    ("repetitions", "model", "step_s", "origin"),
    [
        (0.9, 0.5, 0.001, DraftOrigin.NGRAM),
        (0.5, 0.9, 0.001, DraftOrigin.FRESH),
        (0.7, 0.9, 0.5, DraftOrigin.NGRAM),  # a draft step is too expensive for what it adds
    ],
)
def test_whoever_is_worth_more_writes(
    repetitions: float, model: float, step_s: float, origin: DraftOrigin
) -> None:
    bench = Bench([*BLOCK, *BLOCK[:6]], costs=latency_model(step=step_s))
    bench.teach(repetitions, model)
    assert bench.drafter.draft(4).origin is origin


def test_a_repetition_is_sent_as_far_as_it_pays() -> None:
    lengths = []
    for slope in (0.0, 0.1, 0.5):
        bench = Bench([*BLOCK, *BLOCK[:6]], costs=latency_model(verify_slope=slope))
        bench.teach(0.8, 0.1)
        lengths.append(len(bench.drafter.draft(LONGEST).tokens))
    assert LONGEST == lengths[0] > lengths[1] > lengths[2] > 0


def into_repetition(**how: object) -> tuple[Bench, list[int]]:
    """Return a drafter whose model will write what the text holds, and what follows there.

    Nothing repeats before the model has begun.
    """
    model = FakeModel()
    written = greedy_text(model, [7, 2], 4)
    following = [11, 13, 11, 14, 12, 13]
    bench = Bench([0, *written, *following, 15, 7, 2], **how)  # type: ignore[arg-type]
    return bench, [*written, *following]


def test_a_repetition_continues_after_the_models_draft() -> None:
    bench, expected = into_repetition()
    bench.teach(0.9, 0.9)
    draft = bench.drafter.draft(10)
    assert draft.origin is DraftOrigin.FRESH
    assert (draft.tokens, draft.copied) == (tuple(expected), len(expected) - 4)
    assert bench.model.calls[1:] == [1, 1, 1]
    bench.drafter.commit(VerifyOutcome(7, 9))
    assert bench.draft_state.text[-8:] == [*expected[:7], 9]
    assert_cache_follows(bench.draft_state, bench.model)
    bench.drafter.draft(4)
    assert bench.model.calls[4] == 1 + 3 + 1  # the model's last token, three repeated ones and the target's


def test_a_repetition_after_a_draft_takes_no_more_room_than_there_is() -> None:
    bench, expected = into_repetition()
    bench.teach(0.9, 0.9)
    assert bench.drafter.draft(6).tokens == tuple(expected[:6])
    bench, expected = into_repetition()
    assert bench.drafter.draft(4).tokens == tuple(expected[:4])


@pytest.mark.slow
def test_a_repetition_after_drawn_tokens_is_certain_of_itself() -> None:
    for seed in range(40):
        bench, expected = into_repetition(
            sampling=PLAIN, settings=replace(SETTINGS, min_confidence=0.0), seed=seed
        )
        bench.teach(0.9, 0.9)
        draft = bench.drafter.draft(10)
        assert draft.q is not None
        assert len(draft.q) == len(draft.tokens)
        for token, q in list(zip(draft.tokens, draft.q, strict=True))[4:]:
            assert q.ids is not None
            assert (q.ids.tolist(), q.probs.tolist()) == ([token], [1.0])
        if len(draft.tokens) > 4:
            assert (draft.tokens, draft.copied) == (tuple(expected), len(expected) - 4)
            return
    raise AssertionError("the model never wrote what it is most sure of")


def test_there_is_not_a_repetition_after_a_draft_that_was_cut_for_being_unsure() -> None:
    for min_confidence, length in ((0.0, 10), (0.9999, 0)):
        settings = replace(SETTINGS, mode="ssd", min_confidence=min_confidence)  # with real confidences
        bench, _ = into_repetition(settings=settings)
        bench.teach(0.9, 0.9)
        assert len(bench.drafter.draft(10).tokens) == length


def drawn(confidences: Sequence[float]) -> list[Proposal]:
    return [Proposal(token, confidence, (), None) for token, confidence in enumerate(confidences, start=9)]


@pytest.mark.parametrize("deterministic", [True, False])
def test_whether_a_tail_saves_what_was_cut_is_decided_for_chosen_tokens_only(deterministic: bool) -> None:
    """A second token costs a lot to verify, further ones nothing: only a long draft pays."""
    costs = latency_model(verify_slope=0.001)
    costs.verify = type(costs.verify)({1: 1.0, 2: 1.9, 3: 1.9, 40: 1.9})
    policy = policy_of(costs, SETTINGS, deterministic=deterministic)
    lookup = PromptLookup(SuffixIndex(), policy, lookup_stats := PromptLookupStats())
    for _ in range(99):
        lookup_stats.repeated.observe([0.25, 0.4, 0.5, 0.57, 0.63, 0.67, 0.7, 0.73, 0.75, 0.77], 10)
    lookup.begin([9, 10, 11, 12, 13, 14, 15, 9, 10])
    assert bool(lookup.continuation([Proposal(11, 0.8, (), None)], 0, 9)) == deterministic
    assert lookup.continuation([Proposal(11, 0.8, (), None)], 1, 9) == (12, 13, 14, 15, 9, 10, 11, 12)


def test_a_prepared_draft_is_judged_by_what_was_known_before_it_was_drawn() -> None:
    verdicts: dict[bool, set[bool]] = {True: set(), False: set()}
    for deterministic, found in verdicts.items():
        policy = policy_of(latency_model(), SETTINGS, deterministic=deterministic)
        lookup = PromptLookup(SuffixIndex(), policy, PromptLookupStats())
        lookup.begin([*BLOCK, *BLOCK])
        guess = lookup.first(4)
        for others in ([], [0.9], [0.9, 0.9, 0.9], [0.02], [0.02, 0.02, 0.02]):
            found.add(lookup.model_draft_wins(guess, 4, drawn([0.95, *others])))
        assert not lookup.model_draft_wins(guess, 4, drawn([0.05]))  # known before
    assert verdicts == {True: {True, False}, False: {True}}


@pytest.mark.parametrize("step", [0.001, 0.1, 0.2, 0.3, 0.5, 1.0])
def test_how_much_of_a_drawn_draft_is_ready_does_not_decide_who_writes(step: float) -> None:
    """Whether a further token is there depends on those that were drawn before it."""
    policy = policy_of(latency_model(step=step), SETTINGS, deterministic=False)
    lookup = PromptLookup(SuffixIndex(), policy, PromptLookupStats())
    lookup.begin([*BLOCK, *BLOCK])
    guess = lookup.first(4)
    found = {lookup.model_draft_wins(guess, 4, drawn([0.6] * ready)) for ready in (1, 2, 3, 4)}
    assert len(found) == 1


@pytest.mark.parametrize("left", [[], [0.9, 0.9], [0.01]])
def test_what_is_left_of_an_earlier_draft_does_not_decide_who_writes(left: list[float]) -> None:
    bench = Bench([*BLOCK, *BLOCK[:6]], sampling=PLAIN, settings=replace(SETTINGS, acceptance="rejection"))
    bench.teach(0.9, 0.5)
    bench.draft_state.proposals = drawn(left)
    draft = bench.drafter.draft(6)
    assert draft.origin is DraftOrigin.NGRAM
    assert draft.tokens == tuple(BLOCK[6:])


def test_each_learns_from_its_own_tokens() -> None:
    bench, _ = into_repetition()
    bench.teach(0.9, 0.9)
    model, repeated = judged(bench.calibration), judged(bench.lookup_stats.repeated)
    draft = bench.drafter.draft(10)
    bench.drafter.commit(VerifyOutcome(len(draft.tokens), 1))
    assert judged(bench.calibration) == model + 4
    assert judged(bench.lookup_stats.repeated) == repeated
    assert judged(bench.lookup_stats.after_draft) == sum(bench.lookup_stats.after_draft._accepted) == 6

    bench = Bench([*BLOCK, *BLOCK[:6]])
    bench.teach(0.9, 0.5)
    model, repeated = judged(bench.calibration), judged(bench.lookup_stats.repeated)
    assert bench.drafter.draft(4).tokens == tuple(BLOCK[6:10])
    bench.drafter.commit(VerifyOutcome(2, 15))
    assert judged(bench.calibration) == model
    assert judged(bench.lookup_stats.repeated) == repeated + 3
    assert judged(bench.lookup_stats.after_draft) == 0


def test_a_repetition_that_was_not_sent_is_learned_from_too() -> None:
    for right in (True, False):
        bench = Bench([*BLOCK, *BLOCK[:6]])
        bench.teach(0.5, 1.0)
        before = bench.lookup_stats.repeated.chance(0.6), judged(bench.lookup_stats.repeated)
        assert bench.drafter.draft(4).origin is DraftOrigin.FRESH
        bench.drafter.commit(VerifyOutcome(0, BLOCK[6] if right else 15))
        assert judged(bench.lookup_stats.repeated) == before[1] + 1
        assert judged(bench.lookup_stats.chosen) == 1  # the model beside it


def test_a_model_that_fails_next_to_repetitions_leaves_them_the_place() -> None:
    bench = Bench([*BLOCK, *BLOCK[:6]])
    bench.teach(0.7, 0.9)
    guess = bench.lookup.first(4)
    assert bench.lookup.model_draft_wins(guess, 4)
    bench.lookup_stats.chosen.observe([guess.confidences[0]] * 30, 0)
    assert bench.lookup.model_draft_wins(guess, 4)  # one token was judged
    for _ in range(30):
        bench.lookup_stats.chosen.observe(guess.confidences[:1], 0)
    assert not bench.lookup.model_draft_wins(guess, 4)


def test_a_delay_is_lost_to_the_model() -> None:
    bench = Bench([*BLOCK, *BLOCK[:6]])
    bench.teach(0.7, 0.8)
    guess = bench.lookup.first(4)
    assert bench.lookup.model_draft_wins(guess, 4)
    assert not bench.lookup.model_draft_wins(guess, 4, delay_s=2.0)


def test_a_refinement_begins_with_the_default_chance_and_learns() -> None:
    found = AcceptanceBins(refines=True)
    assert found.chance(0.5, 0.3) == pytest.approx(0.3)
    for _ in range(50):
        found.observe([0.5, 0.9], 1)
    assert found.chance(0.5, 0.3) > 0.9
    assert found.chance(0.9, 0.8) < 0.1
    assert found.chance(0.1, 0.4) == pytest.approx(0.4)


def test_the_value_of_a_draft_is_what_it_saves() -> None:
    policy = policy_of(latency_model(verify_slope=0.1))
    assert values_of(policy, []) == [0.0]
    found = values_of(policy, [(0.5, 0.0), (0.5, 0.2)])
    assert found == pytest.approx([0.0, 0.5 - 0.1, 0.4 + 0.25 - 0.1 - 0.2])
    assert values_of(policy, [(0.5, 0.0)], start=3, reach=0.4) == pytest.approx([0.0, 0.2 - 0.1])


def test_only_where_repetitions_help_the_model_a_draft_may_be_longer_than_the_models() -> None:
    assert longest_draft(SETTINGS) == longest_draft(replace(SETTINGS, mode="ssd")) == LONGEST
    assert longest_draft(replace(SETTINGS, draft_length=LONGEST + 9)) == LONGEST + 9
    assert longest_draft(replace(SETTINGS, fallback="just-in-time")) == SETTINGS.draft_length
    assert longest_draft(replace(SETTINGS, mode="ngram")) == SETTINGS.draft_length
