"""An answer in several modes keeps the engine contract, and its figures stay right."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace

import pytest

from localspec.benchmark.statistics import ks_uniform_p_value
from localspec.decoding.engine import Rounds, decode_in_segments
from localspec.decoding.fallback import ModeFallback, PlainCost
from localspec.decoding.loop import READ_CHUNK
from localspec.decoding.rounds import DecodeParams, Round
from localspec.decoding.tally import Stopwatch, Tally
from localspec.decoding.text import AnswerEvents, AnswerText
from localspec.types.drafts import DraftOrigin
from localspec.types.events import (
    Finished,
    GenerationEvent,
    ModeChanged,
    PromptProgress,
    RoundDone,
    RoundStats,
)
from localspec.types.request import EngineSettings, Mode, Sampling
from tests import contract
from tests.contract import SIGNIFICANT, EngineContract, Toy, latency_model
from tests.decoding.toys import GREEDY

OFF = EngineSettings(mode="off")
SSD = EngineSettings(mode="ssd", draft_length=4, fan_out_budget=8)
CIRCLE: tuple[Mode, ...] = ("ssd", "sd", "off", "ngram", "sd")
NO_END: frozenset[int] = frozenset()


class Restless(ModeFallback):
    """Changes the mode after every third round, whatever the rounds say."""

    def __init__(self, plain: PlainCost | None = None, every: int = 3) -> None:
        super().__init__("ssd", plain or PlainCost())
        self._rounds = 0
        self._every = every

    def observe(self, stats: RoundStats, tokens: int, depth: int) -> ModeChanged | None:
        self._rounds += 1
        if self._rounds % self._every:
            return None
        self.mode = CIRCLE[self._rounds // self._every % len(CIRCLE)]
        return ModeChanged(self.mode, "restless")


class RestlessToy(Toy):
    """A toy whose speculative answers change their mode all the time."""

    every = 3
    forgets_places = False
    mode_fallback: ModeFallback | None = None
    plain: PlainCost | None = None

    def events(
        self,
        prompt: Sequence[int],
        settings: EngineSettings,
        sampling: Sampling,
        tokens: int,
        seed: int = 0,
        end_tokens: frozenset[int] = NO_END,
    ) -> Generator[PromptProgress | Round | ModeChanged, None, None]:
        text = list(prompt)

        def decode(mode: Mode, segment: int) -> Rounds:
            left = tokens - (len(text) - len(prompt))
            longest = settings.draft_length
            params = DecodeParams(sampling, settings.acceptance, longest, left, end_tokens, self.rules)
            if self.forgets_places:
                params = replace(params, answer_start=len(text))
            now = replace(settings, mode=mode)
            return self.engine.rounds(text, now, params, latency_model(), seed, segment)

        plain = self.plain or PlainCost()
        mode_fallback = None if settings.mode == "off" else self.mode_fallback or Restless(plain, self.every)
        return decode_in_segments(decode, settings.mode, text, plain, mode_fallback)

    def rounds(
        self,
        prompt: Sequence[int],
        settings: EngineSettings,
        sampling: Sampling,
        tokens: int,
        seed: int = 0,
        end_tokens: frozenset[int] = NO_END,
    ) -> Generator[Round, None, None]:
        with closing(self.events(prompt, settings, sampling, tokens, seed, end_tokens)) as events:
            for event in events:
                if isinstance(event, Round):
                    yield event


def test_a_prompt_that_two_segments_read_has_one_progress() -> None:
    """Another answer came while it was read; what the first segment read is not told as found cached."""
    toy = Toy()
    prompt = [number % 16 for number in range(2 * READ_CHUNK + 100)]
    params = DecodeParams(GREEDY, "match", 0, 3, NO_END, tells_reading=True)

    def decode(segment: int) -> Rounds:
        return toy.engine.rounds(prompt, OFF, params, latency_model(), 0, segment)

    with closing(decode(0)) as first:
        told: list[object] = [next(first), next(first)]
    told += [event for event in decode(1) if isinstance(event, PromptProgress)]
    steps = (0, READ_CHUNK, 2 * READ_CHUNK, len(prompt))
    assert told == [PromptProgress(done, len(prompt)) for done in steps]
    assert toy.engine.reused == 0


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "Toy", RestlessToy)


@pytest.mark.usefixtures("restless")
class TestRestless(EngineContract):
    settings = SSD


@pytest.mark.usefixtures("restless")
class TestRestlessDrafting(EngineContract):
    settings = replace(SSD, min_confidence=0.0)


class StoppingToy(Toy):
    """A toy whose answers stop after every third round, let another be written, and continue."""

    every = 3
    forgets_places = False

    def rounds(
        self,
        prompt: Sequence[int],
        settings: EngineSettings,
        sampling: Sampling,
        tokens: int,
        seed: int = 0,
        end_tokens: frozenset[int] = NO_END,
    ) -> Generator[Round, None, None]:
        text, first = list(prompt), 0

        def decode(mode: Mode, segment: int) -> Rounds:
            nonlocal first
            assert mode == settings.mode
            first = segment + 1
            left = tokens - (len(text) - len(prompt))
            longest = settings.draft_length
            params = DecodeParams(sampling, settings.acceptance, longest, left, end_tokens, self.rules)
            if self.forgets_places:
                params = replace(params, answer_start=len(text))
            return self.engine.rounds(text, settings, params, latency_model(), seed, segment)

        while True:
            count = 0
            with closing(decode_in_segments(decode, settings.mode, text, PlainCost(), None, first)) as events:
                for event in events:
                    if isinstance(event, Round):
                        count += 1
                        yield event
                        if event.is_last:
                            return
                    if count == self.every:
                        break
            list(super().rounds([3, 5, 7, *prompt[:3]], settings, sampling, self.every, seed))


class StoppingHastily(StoppingToy):
    """Stops after every round, the first, which draws one token."""

    every = 1


class StoppingForgetfully(StoppingHastily):
    """Goes on with the random numbers of the beginning."""

    forgets_places = True


@pytest.mark.slow
@pytest.mark.parametrize(
    "kept",
    [
        EngineContract.test_greedy_text_is_that_of_plain_decoding,
        EngineContract.test_first_tokens_follow_the_exact_distribution,
        EngineContract.test_every_sampled_token_follows_the_target,
        EngineContract.test_answers_keep_their_limit,
    ],
    ids=lambda test: test.__name__,
)
def test_pauses_keep_the_contract_but_for_what_is_read_again(
    monkeypatch: pytest.MonkeyPatch, kept: Callable[[EngineContract], None]
) -> None:
    monkeypatch.setattr(contract, "Toy", StoppingToy)
    suite = EngineContract()
    suite.settings = replace(SSD, min_confidence=0.0)
    kept(suite)


class Hasty(RestlessToy):
    """Gives every part one round, the first, which draws one token."""

    every = 1


class Forgetful(Hasty):
    """Starts every part with the target's random numbers of the first."""

    forgets_places = True


@pytest.mark.slow
@pytest.mark.parametrize(("toy", "is_right"), [(Hasty, True), (Forgetful, False)])
def test_parts_that_share_a_random_stream_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch, toy: type[Toy], is_right: bool
) -> None:
    monkeypatch.setattr(contract, "Toy", toy)
    suite = EngineContract()
    suite.settings = SSD
    values = [value for found in suite.uniform_values(1000).values() for value in found]
    assert (ks_uniform_p_value(values) > SIGNIFICANT) == is_right


@pytest.mark.slow
@pytest.mark.parametrize(("toy", "is_right"), [(StoppingHastily, True), (StoppingForgetfully, False)])
def test_pauses_that_start_a_random_stream_again_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch, toy: type[Toy], is_right: bool
) -> None:
    monkeypatch.setattr(contract, "Toy", toy)
    suite = EngineContract()
    suite.settings = EngineSettings(mode="off")
    values = [value for found in suite.uniform_values(400).values() for value in found]
    assert (ks_uniform_p_value(values) > SIGNIFICANT) == is_right


class Letters:
    """Spells each token as a letter."""

    has_pending = False

    def feed(self, token: int) -> str:
        return chr(ord("a") + token)

    def flush(self) -> str:
        return ""

    def piece(self, token: int) -> bytes:
        return b"%d" % token


def answer_of(toy: RestlessToy, tokens: int, stop: tuple[str, ...] = ()) -> list[GenerationEvent]:
    prompt = [1, 2, 3]
    answer = AnswerEvents(AnswerText(Letters(), stop), Tally(len(prompt), "ssd"), NO_END, Stopwatch(), tokens)
    with closing(toy.events(prompt, replace(SSD, min_confidence=0.0), GREEDY, tokens)) as rounds:
        events = list(answer.events(rounds))
    return [*events, *answer.finish(answer.ending, toy.engine.reused)]


def test_figures_are_right_over_all_parts() -> None:
    toy = RestlessToy(noise=3.0)
    toy.mode_fallback = Restless(every=6)
    *events, end = answer_of(toy, 300)
    assert isinstance(end, Finished)
    summary = end.summary
    rounds = [event for event in events if isinstance(event, RoundDone)]
    changes = [event for event in events if isinstance(event, ModeChanged)]
    assert len(changes) > 5
    assert summary.tokens == sum(event.tokens for event in rounds) == 300
    assert (summary.prompt_tokens, summary.cached_tokens) == (3, 0)
    assert summary.rounds == len(rounds) - 1
    assert summary.drafted == sum(event.stats.drafted for event in rounds)
    assert summary.accepted == sum(event.stats.accepted for event in rounds)
    mode, first, hits, misses = "ssd", True, 0, 0
    for event in events:
        if isinstance(event, ModeChanged):
            mode, first = event.mode, True
        elif isinstance(event, RoundDone):
            assert not (first and event.stats.drafted)
            could_prepare = mode == "ssd" and not first
            hits += could_prepare and event.stats.origin is DraftOrigin.AHEAD
            misses += could_prepare and event.stats.origin is not DraftOrigin.AHEAD
            first = False
    assert (summary.hits, summary.misses) == (hits, misses)
    assert min(hits, misses) > 0


def test_a_change_reads_nothing_again_and_reports_no_prompt() -> None:
    toy = RestlessToy()
    toy.mode_fallback = Restless(every=2)
    events = answer_of(toy, 100)
    assert toy.target.calls[0] == 3
    assert max(toy.target.calls[1:]) <= SSD.draft_length + 1
    assert not any(isinstance(event, PromptProgress) for event in events)


def test_a_stop_string_ends_the_answer_in_any_part() -> None:
    whole = "".join(chr(ord("a") + token) for token in Toy().answer([1, 2, 3], SSD, GREEDY, 80))
    stop = whole[40:46]
    *_, end = answer_of(RestlessToy(), 80, (stop,))
    assert isinstance(end, Finished)
    assert end.reason == "stop"
    assert end.summary.tokens <= whole.index(stop) + len(stop) + SSD.draft_length


def test_an_answer_that_starts_lower_says_so_first() -> None:
    toy = RestlessToy()
    toy.mode_fallback = ModeFallback("ssd", PlainCost())
    toy.mode_fallback.mode, toy.mode_fallback.reason = "off", "it lost"
    first, *others = toy.events([1], SSD, GREEDY, 9)
    assert first == ModeChanged("off", "it lost")
    assert all(isinstance(event, Round) and not event.stats.drafted for event in others)


def test_plain_rounds_teach_what_plain_decoding_costs_but_for_the_first() -> None:
    toy = RestlessToy()
    toy.plain = PlainCost()
    list(toy.rounds([1] * 500, EngineSettings(mode="off"), GREEDY, 1))
    assert toy.plain.at(500) is None
    rounds = list(toy.rounds([1] * 500, EngineSettings(mode="off"), GREEDY, 10))
    seconds = toy.plain.at(500)
    assert seconds is not None
    assert seconds <= 3 * sum(round_.stats.verify_s + round_.stats.python_s for round_ in rounds[1:]) / 9


def test_without_a_ladder_a_seed_means_what_it_means_to_the_engine() -> None:
    sampling = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    settings = EngineSettings(mode="sd", draft_length=4, min_confidence=0.0)
    toy = RestlessToy()
    toy.mode_fallback = ModeFallback("sd", PlainCost())  # never judges
    for seed in range(5):
        text = toy.answer([3, 4], settings, sampling, 40, seed)
        assert text == Toy().answer([3, 4], settings, sampling, 40, seed)
