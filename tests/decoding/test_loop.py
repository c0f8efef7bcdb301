from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from localspec.decoding.drafters.drafter import Drafter
from localspec.decoding.loop import MIN_REREAD, READ_CHUNK, Decoder
from localspec.decoding.model import EFFICIENT_READ
from localspec.decoding.rounds import DecodeParams, Round
from localspec.errors import Cancelled, EngineError
from localspec.types.drafts import Draft, DraftOrigin, Provenance, VerifyOutcome
from localspec.types.events import PromptProgress
from tests.decoding.toys import GREEDY, greedy_text, policy_of
from tests.fake_model import FakeModel

PROMPT = [1, 2, 3]
TASK = DecodeParams(GREEDY, "rejection", draft_length=4, max_tokens=20, end_tokens=frozenset())
TARGET, ACCEPTED, BONUS = Provenance.TARGET, Provenance.ACCEPTED, Provenance.BONUS


class Oracle(Drafter):
    """Drafts the target's own text, with the mistakes that a test asks for; keeps what it was told."""

    def __init__(
        self, model: FakeModel, origin: DraftOrigin = DraftOrigin.FRESH, wrong: int | None = None
    ) -> None:
        super().__init__()
        self._model = model
        self._origin = origin
        self._wrong = wrong
        self._last = Draft()
        self.text: list[int] = []
        self.limits: list[int] = []
        self.outcomes: list[VerifyOutcome] = []
        self.ends = 0

    def begin(self, text: Sequence[int]) -> None:
        self.text = list(text)

    def commit(self, outcome: VerifyOutcome) -> None:
        self.outcomes.append(outcome)
        self.text += [*self._last.tokens[: outcome.accepted], outcome.bonus]

    def draft(self, limit: int) -> Draft:
        self.limits.append(limit)
        tokens = greedy_text(self._model, self.text, limit)
        if self._wrong is not None and self._wrong < limit:
            tokens[self._wrong] = (tokens[self._wrong] + 1) % 16
        self._last = Draft(tuple(tokens), None, self._origin) if tokens else Draft()
        return self._last

    def end(self) -> None:
        self.ends += 1


def decode(
    model: FakeModel,
    drafter: Oracle,
    params: DecodeParams = TASK,
    prompt: Sequence[int] = PROMPT,
    decoder: Decoder | None = None,
) -> list[PromptProgress | Round]:
    decoder = decoder or Decoder(model)
    return list(decoder.rounds(prompt, drafter, policy_of(), params, np.random.default_rng(0)))


def rounds_of(events: Sequence[PromptProgress | Round]) -> list[Round]:
    return [event for event in events if isinstance(event, Round)]


def tokens_of(events: Sequence[PromptProgress | Round]) -> list[int]:
    return [token for round_ in rounds_of(events) for token in round_.tokens]


def test_the_first_token_waits_for_no_one_and_then_drafts_are_accepted() -> None:
    model = FakeModel()
    drafter = Oracle(model)
    rounds = rounds_of(decode(model, drafter))
    assert [len(round_.tokens) for round_ in rounds] == [1, 5, 5, 5, 4]
    assert [round_.stats.drafted for round_ in rounds] == [0, 4, 4, 4, 3]
    assert [round_.stats.accepted for round_ in rounds] == [0, 4, 4, 4, 3]
    assert tokens_of(rounds) == greedy_text(model, PROMPT, 20)
    assert drafter.text == [*PROMPT, *tokens_of(rounds)[:16]]
    assert drafter.ends == 1


@pytest.mark.parametrize("wrong", [0, 1, 3])
def test_a_wrong_token_is_corrected(wrong: int) -> None:
    model = FakeModel()
    drafter = Oracle(model, wrong=wrong)
    rounds = rounds_of(decode(model, drafter))
    assert tokens_of(rounds) == greedy_text(model, PROMPT, 20)
    assert rounds[1].stats.accepted == wrong
    assert rounds[1].provenance == (*[ACCEPTED] * wrong, TARGET)
    assert drafter.outcomes[1] == VerifyOutcome(wrong, rounds[1].tokens[-1])


def test_every_token_says_where_it_comes_from() -> None:
    model = FakeModel()
    fresh, ahead = (
        rounds_of(decode(model, Oracle(model, origin))) for origin in (DraftOrigin.FRESH, DraftOrigin.AHEAD)
    )
    assert fresh[0].provenance == (TARGET,)
    assert fresh[1].provenance == (ACCEPTED,) * 4 + (BONUS,)
    assert ahead[1].provenance == (Provenance.PREPARED,) * 4 + (BONUS,)


@pytest.mark.parametrize("place", range(9))
def test_an_end_token_inside_an_accepted_run_is_the_last(place: int) -> None:
    model = FakeModel(vocabulary=64, seed=1)
    text = greedy_text(model, PROMPT, 9)
    assert len(set(text)) == 9
    decoder = Decoder(model)
    drafter = Oracle(model)
    events = decode(model, drafter, replace(TASK, end_tokens=frozenset([text[place]])), decoder=decoder)
    assert tokens_of(events) == text[: place + 1]
    last = rounds_of(events)[-1]
    assert len(last.provenance) == len(last.tokens)
    assert last.stats.accepted == min(len(last.tokens), last.stats.drafted)
    assert model.tokens() == [*PROMPT, *text[: place + 1]][: model.length()]
    assert decoder.cached([*PROMPT, *text[: place + 1], 1]) >= len(PROMPT) + place
    assert drafter.ends == 1


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 7])
def test_a_limit_is_kept_and_nothing_is_drafted_beyond_it(limit: int) -> None:
    model = FakeModel()
    drafter = Oracle(model)
    events = decode(model, drafter, replace(TASK, max_tokens=limit))
    assert tokens_of(events) == greedy_text(model, PROMPT, limit)
    for before, asked in zip((1, 6), drafter.limits, strict=False):
        assert asked == min(4, limit - before - 1)


def test_a_drafter_that_ignores_the_limit_cannot_break_it() -> None:
    class Eager(Oracle):
        def draft(self, limit: int) -> Draft:
            return super().draft(9)

    model = FakeModel()
    events = decode(model, Eager(model), replace(TASK, max_tokens=4))
    assert tokens_of(events) == greedy_text(model, PROMPT, 4)
    assert [round_.stats.accepted for round_ in rounds_of(events)] == [0, 3]


def test_an_answer_fills_the_context_and_no_more() -> None:
    model = FakeModel(context=12)
    events = decode(model, Oracle(model))
    assert tokens_of(events) == greedy_text(model, PROMPT, 9)


def test_the_start_and_the_end_of_the_prompt_are_told_if_asked() -> None:
    model = FakeModel()
    decoder, params = Decoder(model), replace(TASK, tells_reading=True)
    events = decode(model, Oracle(model), params, decoder=decoder)
    new = len(PROMPT)
    assert [event for event in events if isinstance(event, PromptProgress)] == [
        PromptProgress(0, new),
        PromptProgress(new, new),
    ]
    again = decode(model, Oracle(model), params, decoder=decoder)
    assert again[:2] == [PromptProgress(0, 1, new - 1), PromptProgress(1, 1, new - 1)]
    assert tokens_of(again) == tokens_of(events) == tokens_of(decode(model, Oracle(model), decoder=decoder))


def test_a_long_prompt_reports_its_progress_and_a_second_turn_only_its_own() -> None:
    model = FakeModel()
    decoder, prompt = Decoder(model), [number % 16 for number in range(2 * READ_CHUNK + 100)]
    events = decode(model, Oracle(model), prompt=prompt, decoder=decoder)
    reports = [event for event in events if isinstance(event, PromptProgress)]
    assert reports == [PromptProgress(done, len(prompt)) for done in (READ_CHUNK, 2 * READ_CHUNK)]
    assert events[:2] == reports

    longer = [*prompt, *tokens_of(events), *[5] * READ_CHUNK, 1]
    new = len(longer) - decoder.cached(longer)
    assert new <= READ_CHUNK + 2
    model.calls.clear()
    events = decode(model, Oracle(model), prompt=longer, decoder=decoder)
    assert [event for event in events if isinstance(event, PromptProgress)] == [
        PromptProgress(READ_CHUNK - EFFICIENT_READ, new, len(longer) - new)
    ]
    assert model.calls[:2] == [READ_CHUNK - EFFICIENT_READ, new - READ_CHUNK + EFFICIENT_READ]
    assert tokens_of(events) == greedy_text(model, longer, 20)


def test_the_same_prompt_again_reads_one_token() -> None:
    model = FakeModel()
    decoder = Decoder(model)
    first = decode(model, Oracle(model), decoder=decoder)
    model.calls.clear()
    assert decoder.cached(PROMPT) == len(PROMPT) - 1
    assert tokens_of(decode(model, Oracle(model), decoder=decoder)) == tokens_of(first)
    assert model.calls[0] == 1


class RunningState(FakeModel):
    """A model that cannot go back, except to the beginning."""

    def rewindable(self, length: int) -> int:
        return length if length == self.length() else 0

    def truncate(self, length: int, sequence: int = 0) -> None:
        if 0 < length < self.length(sequence):
            raise EngineError("it has a recurrent state")
        super().truncate(length, sequence)


def test_a_model_that_cannot_go_back_starts_again() -> None:
    model = RunningState()
    decoder, params = Decoder(model), replace(TASK, draft_length=0)
    first = tokens_of(decode(model, Oracle(model), params, decoder=decoder))
    assert first == greedy_text(model, PROMPT, 20)
    assert tokens_of(decode(model, Oracle(model), params, decoder=decoder)) == first
    assert decoder.reused == 0
    longer = [*PROMPT, *first, 4]
    assert tokens_of(decode(model, Oracle(model), params, longer, decoder)) == greedy_text(model, longer, 20)
    assert decoder.reused == len(PROMPT) + 19


class Checkpointed(RunningState):
    """A model that goes back to checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpoints: set[int] = set()

    def checkpoint(self, *, pinned: bool = False) -> None:
        self.checkpoints.add(self.length())

    def rewindable(self, length: int) -> int:
        reachable = {0, *self.checkpoints, self.length()}
        return max(end for end in reachable if end <= length)

    def truncate(self, length: int, sequence: int = 0) -> None:
        assert self.rewindable(length) == length
        FakeModel.truncate(self, length, sequence)


def test_where_a_prompt_changes_the_next_one_can_change_without_rereading() -> None:
    model = Checkpointed()
    decoder, params = Decoder(model), replace(TASK, draft_length=0)
    stable, reused = [number % 16 for number in range(READ_CHUNK + MIN_REREAD)], []
    for changing in range(4):
        prompt = [*stable, changing, 5, 6]
        assert tokens_of(decode(model, Oracle(model), params, prompt, decoder)) == greedy_text(
            model, prompt, 20
        )
        reused.append(decoder.reused)
    assert reused == [0, 0, len(stable), len(stable)]


def test_few_tokens_to_read_again_are_not_worth_a_checkpoint() -> None:
    model = Checkpointed()
    decoder, params = Decoder(model), replace(TASK, draft_length=0)
    stable = [number % 16 for number in range(MIN_REREAD - 1)]
    for changing in range(2):
        decode(model, Oracle(model), params, [*stable, changing], decoder)
    assert not model.checkpoints


def test_a_model_that_loses_its_text_while_it_goes_back_reads_it_again() -> None:
    class Losing(FakeModel):
        def truncate(self, length: int, sequence: int = 0) -> None:
            super().truncate(length if length == self.length() else 0, sequence)

    model = Losing()
    decoder, params = Decoder(model), replace(TASK, draft_length=0)
    first = tokens_of(decode(model, Oracle(model), params, decoder=decoder))
    for _ in range(2):
        assert tokens_of(decode(model, Oracle(model), params, decoder=decoder)) == first
        assert decoder.reused == 0


def test_a_forgotten_cache_is_read_again() -> None:
    model = FakeModel()
    decoder = Decoder(model)
    decode(model, Oracle(model), decoder=decoder)
    decoder.forget()
    assert model.length() == decoder.cached(PROMPT) == 0


def test_the_drafter_is_ended_when_the_reader_leaves_and_when_the_target_fails() -> None:
    model = FakeModel()
    drafter = Oracle(model)
    decoder = Decoder(model)
    rounds = decoder.rounds(PROMPT, drafter, policy_of(), TASK, np.random.default_rng(0))
    next(rounds)
    rounds.close()
    assert drafter.ends == 1

    rounds = decoder.rounds(PROMPT, drafter, policy_of(), TASK, np.random.default_rng(0))
    next(rounds)
    model.cancel()
    with pytest.raises(Cancelled):
        next(rounds)
    assert drafter.ends == 2
    assert tokens_of(decode(model, Oracle(model), decoder=decoder)) == greedy_text(model, PROMPT, 20)


def test_a_cancel_while_a_prompt_is_read_keeps_what_was_read() -> None:
    model = FakeModel()
    decoder, prompt = Decoder(model), [number % 16 for number in range(3 * READ_CHUNK)]
    rounds = decoder.rounds(prompt, Oracle(model), policy_of(), TASK, np.random.default_rng(0))
    assert next(rounds) == PromptProgress(READ_CHUNK, len(prompt))
    model.cancel()
    with pytest.raises(Cancelled):
        next(rounds)
    assert decoder.cached(prompt) == READ_CHUNK == model.length()
    assert tokens_of(decode(model, Oracle(model), prompt=prompt, decoder=decoder)) == greedy_text(
        model, prompt, 20
    )


def test_a_cancel_while_a_recurrent_state_reads_again_keeps_what_it_held_then() -> None:
    class Rereading(FakeModel):
        is_left = False

        def mark(self) -> None:
            if self.is_left:
                self.is_left = False
                self.truncate(len(PROMPT))
                raise Cancelled

    model = Rereading()
    decoder = Decoder(model)
    rounds = decoder.rounds(PROMPT, Oracle(model), policy_of(), TASK, np.random.default_rng(0))
    read = [*PROMPT, *tokens_of([next(rounds) for _ in range(3)])]
    model.is_left = True
    with pytest.raises(Cancelled):
        next(rounds)
    again = tokens_of(decode(model, Oracle(model), prompt=read, decoder=decoder))
    assert again == greedy_text(model, read, 20)


def test_penalties_reach_into_the_draft() -> None:
    model = FakeModel(vocabulary=6)
    params = replace(TASK, sampling=replace(GREEDY, presence_penalty=3.0, penalty_window=5), max_tokens=40)
    plain = tokens_of(decode(model, Oracle(model), replace(params, draft_length=0)))
    assert plain != greedy_text(model, PROMPT, 40)
    drafter = Oracle(model)
    drafted = decode(model, drafter, params)
    assert tokens_of(drafted) == plain
    assert sum(round_.stats.accepted for round_ in rounds_of(drafted)) > 0


@pytest.mark.parametrize(("ahead_s", "told_s"), [(4e-4, 4e-4), (1.0, 1e-3)])
def test_a_round_reports_what_the_drafter_did_meanwhile_but_no_more_than_fits(
    ahead_s: float, told_s: float
) -> None:
    class Busy(Oracle):
        meanwhile_s = 0.0

        @property
        def ahead_s(self) -> float:
            return self.meanwhile_s

        def draft(self, limit: int) -> Draft:
            self.meanwhile_s += ahead_s
            return super().draft(limit)

    model = FakeModel()  # each of its calls takes a millisecond
    first, *others = rounds_of(decode(model, Busy(model)))
    assert first.stats.ahead_s == 0
    assert [round_.stats.ahead_s for round_ in others] == pytest.approx([told_s] * len(others))


def test_the_last_round_says_so() -> None:
    model = FakeModel(vocabulary=64, seed=1)
    end = greedy_text(model, PROMPT, 9)[6]
    for params in (TASK, replace(TASK, max_tokens=3), replace(TASK, end_tokens=frozenset([end]))):
        flags = [round_.is_last for round_ in rounds_of(decode(FakeModel(64, seed=1), Oracle(model), params))]
        assert flags == [False] * (len(flags) - 1) + [True]


def test_reading_the_prompt_says_nothing_of_the_pace() -> None:
    model, policy = FakeModel(), policy_of()
    for tokens, lookup_stats in ((1, False), (2, True)):
        params = replace(TASK, max_tokens=tokens, draft_length=0)
        before = policy.seconds_per_token, policy.verify.points()
        list(Decoder(model).rounds(PROMPT, Oracle(model), policy, params, np.random.default_rng(0)))
        model.truncate(0)
        assert (before != (policy.seconds_per_token, policy.verify.points())) == lookup_stats
