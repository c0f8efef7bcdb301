"""One seed, one text: random numbers belong to places of the text, whatever is drafted."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import cycle

import numpy as np
import pytest

from localspec.decoding.constraint import TokenRules
from localspec.decoding.engine import Rounds, decode_in_segments
from localspec.decoding.fallback import PlainCost
from localspec.decoding.rounds import DecodeParams, Round
from localspec.decoding.verify import BufferedUniforms, random_streams, verify
from localspec.tuning.trace import Tracer
from localspec.types.drafts import Distribution, Draft
from localspec.types.events import PromptProgress
from localspec.types.request import SEEDS, EngineSettings, Mode, Sampling, seed_after
from tests.contract import NO_END, OFF, PLAIN, Toy, latency_model
from tests.decoding.test_heads import HeadToy
from tests.decoding.toys import BIAS, MadeConstraint
from tests.fake_model import FakeModel

PROMPT = [1, 2, 3, 1, 2, 3]
TOKENS = 50
TRUNCATED = Sampling(
    temperature=1.3, top_k=6, top_p=0.9, min_p=0.02, repetition_penalty=1.2, penalty_window=8
)
SD = EngineSettings(mode="sd", draft_length=4, acceptance="match")
SSD = EngineSettings(mode="ssd", draft_length=4, fan_out_budget=8, acceptance="match")
REPEATING = (
    OFF,
    EngineSettings(mode="ngram"),
    EngineSettings(mode="ngram", acceptance="match"),
    SD,
    replace(SD, min_confidence=0.0),
    replace(SD, draft_length=2, fallback="ngram"),
    SSD,
    replace(SSD, min_confidence=0.0),
    replace(SSD, fallback="ngram", fan_out_budget=3),
)
"""Ways of decoding in which a seed stands for one text."""


def answer(
    toy: Toy,
    settings: EngineSettings,
    sampling: Sampling,
    seed: int,
    pauses: tuple[int, ...] = (),
    modes: tuple[Mode, ...] = (),
) -> list[int]:
    """Decode as the runtime does, with a pause after N rounds, and perhaps in another mode then."""
    text, first, wanted = list(PROMPT), 0, cycle(modes or [settings.mode])
    after = iter(pauses)

    def decode(mode: Mode, segment: int) -> Rounds:
        nonlocal first
        first = segment + 1
        left = TOKENS - (len(text) - len(PROMPT))
        params = DecodeParams(sampling, settings.acceptance, 8, left, NO_END, toy.rules)
        params = replace(params, answer_start=len(PROMPT))
        return toy.engine.rounds(text, replace(settings, mode=mode), params, latency_model(), seed, segment)

    while True:
        rounds, pause = 0, next(after, 10_000)
        parts = decode_in_segments(decode, next(wanted), text, PlainCost(), None, first)
        with closing(parts) as events:
            for event in events:
                rounds += isinstance(event, Round)
                if isinstance(event, Round) and event.is_last:
                    return text[len(PROMPT) :]
                if rounds == pause:
                    break


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [PLAIN, TRUNCATED])
@pytest.mark.parametrize("settings", REPEATING, ids=range(len(REPEATING)))
def test_a_seed_stands_for_the_text_of_plain_decoding(settings: EngineSettings, sampling: Sampling) -> None:
    for make in (Toy, partial(Toy, sharpness=2.5), HeadToy):
        for seed in (0, -7):
            expected = answer(make(), OFF, sampling, seed)
            toy = make()
            for _ in range(2):  # what a first answer teaches changes later drafts
                assert answer(toy, settings, sampling, seed) == expected


@pytest.mark.parametrize("settings", REPEATING, ids=range(len(REPEATING)))
def test_pauses_and_changes_of_mode_do_not_change_the_text(settings: EngineSettings) -> None:
    toy, settings = Toy(), replace(settings, acceptance="match")
    toy.rules = TokenRules(BIAS, MadeConstraint(16))
    expected = answer(toy, settings, TRUNCATED, 5)
    assert answer(toy, settings, TRUNCATED, 5, (1, 3, 1, 2)) == expected
    assert answer(toy, settings, TRUNCATED, 5, (2, 1, 5), ("sd", "off", "ssd", "ngram")) == expected


@pytest.mark.parametrize("draft_length", [1, 4])
def test_rejection_repeats_its_text_where_the_same_places_are_drafted(draft_length: int) -> None:
    settings = replace(SD, acceptance="rejection", min_confidence=0.0, draft_length=draft_length)
    assert len({tuple(answer(Toy(), settings, PLAIN, 3)) for _ in range(5)}) == 1


@pytest.mark.slow
def test_different_seeds_give_different_texts() -> None:
    seeds = [0, 1, 7, -7, *SEEDS, -1, 2**32, 2**53]
    for settings in (OFF, SD, SSD, EngineSettings(mode="ngram")):
        assert len({tuple(answer(Toy(), settings, PLAIN, seed)) for seed in seeds}) == len(seeds)


def test_without_a_seed_every_answer_is_another() -> None:
    toy, params = Toy(), DecodeParams(PLAIN, "match", 4, 40, NO_END)

    def decode() -> tuple[int, ...]:
        rounds: Generator[PromptProgress | Round] = toy.engine.rounds(PROMPT, SD, params, latency_model())
        return tuple(token for each in rounds if isinstance(each, Round) for token in each.tokens)

    assert len({decode() for _ in range(5)}) == 5


def test_a_trace_is_the_text_of_plain_decoding() -> None:
    params = DecodeParams(PLAIN, "rejection", 0, TOKENS, NO_END, answer_start=len(PROMPT))
    tracer = Tracer(FakeModel(sharpness=1.5), None, 4)
    assert tracer.trace(PROMPT, params, 5).tokens.tolist() == answer(Toy(), OFF, PLAIN, 5)


@pytest.mark.parametrize("acceptance", ["match", "rejection"])
@pytest.mark.parametrize("q", [None, "even"])
def test_a_round_takes_as_many_numbers_as_it_emits_tokens_twice(acceptance: str, q: str | None) -> None:
    even = Distribution(np.arange(4), np.full(4, 0.25))
    generator = np.random.default_rng(3)
    for seed in range(40):
        draft = Draft(tuple(generator.integers(4, size=3).tolist()), None if q is None else (even,) * 3)
        uniforms, same = BufferedUniforms(np.random.default_rng(seed)), np.random.default_rng(seed)
        outcome = verify(draft, lambda _: even, acceptance, uniforms)  # type: ignore[arg-type]
        for _ in range(2 * (outcome.accepted + 1)):
            same.random()
        assert uniforms.random() == same.random()


def test_the_streams_of_target_and_draft_and_of_segments_are_others() -> None:
    first = [stream.random(8).tolist() for stream in random_streams(5, 0, 0)]
    later = [stream.random(8).tolist() for stream in random_streams(5, 3, 4)]
    assert first[0][6:] == later[0][:2]  # the target's belong to places
    drawn = [*first[0], *first[1], *later[0][2:], *later[1]]
    assert len(set(drawn)) == len(drawn)


def test_seeds_are_64_bits_with_a_sign() -> None:
    low, high = SEEDS
    assert (low, high) == (-9223372036854775808, 9223372036854775807)
    assert seed_after(7, 2) == 9
    assert seed_after(high, 1) == low
    assert random_streams(-1, 0, 0)[0].random() == random_streams(2**64 - 1, 0, 0)[0].random()
