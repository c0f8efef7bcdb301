"""Thinking that is closed at its budget keeps the engine contract, whatever drafts."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest

from localspec.decoding.constraint import ForcedTokens, TokenRules
from localspec.decoding.engine import Rounds, decode_in_segments
from localspec.decoding.fallback import PlainCost
from localspec.decoding.rounds import DecodeParams, Round
from localspec.decoding.tally import Stopwatch, Tally
from localspec.decoding.text import AnswerEvents, AnswerText
from localspec.thinking_tags import LeadingThinking, tags_of
from localspec.types.drafts import Distribution
from localspec.types.events import RoundDone
from localspec.types.request import EngineSettings, Mode, Sampling
from tests import contract
from tests.contract import NO_END, OFF, PLAIN, EngineContract, Toy, latency_model
from tests.decoding.test_heads import HeadToy
from tests.decoding.test_text import ByteDetokenizer
from tests.decoding.toys import MadeConstraint

SD = EngineSettings(mode="sd", draft_length=4)
SSD = EngineSettings(mode="ssd", draft_length=4, fan_out_budget=8)
PROMPT = 3  # tokens of the prompts whose answers are sampled
OVER = 16
CLOSING = b"</think>"
PIECES = [
    b"a",
    b"b",
    b"</th",
    b"ink>",
    b"c",
    b"d",
    b" ",
    b"<",
    b"e",
    b"f",
    b"g",
    b"h",
    b"i",
    b"\xc3",
    b"\xa4",
    b"j",
]
FORCED = (2, 3)  # a tag of several tokens


def is_whole(data: bytes) -> bool:
    """Return whether thinking may be closed behind these bytes: at no part of a character or of a tag."""
    parts = [CLOSING[:count] for count in range(1, len(CLOSING))]
    return not data.endswith((b"\xc3", *parts))


def forced_after(answer: Sequence[int], budget: int) -> int | None:
    """Return the token that has to follow the beginning of an answer, by its bytes alone."""
    data, start = b"", 0 if budget == 0 else None
    for count, token in enumerate(answer, 1):
        data += PIECES[token]
        is_closed = CLOSING in data
        if start is not None and count >= start + len(FORCED):
            return None
        if start is None and is_closed:
            return None
        if start is None and (count >= budget + OVER or (count >= budget and is_whole(data))):
            start = count
    if start is None:
        return None
    return FORCED[len(answer) - start]


class BudgetToy(Toy):
    """A toy whose answers begin in thinking that has a budget, and pause after each few rounds."""

    budget = 2
    pauses = False

    def rounds(
        self,
        prompt: Sequence[int],
        settings: EngineSettings,
        sampling: Sampling,
        tokens: int,
        seed: int = 0,
        end_tokens: frozenset[int] = NO_END,
    ) -> Generator[Round, None, None]:
        text, first, told = list(prompt), 0, len(prompt)
        forced: ForcedTokens | None = None
        written = AnswerText(
            ByteDetokenizer(PIECES), thinking=LeadingThinking(tags_of("<think>")), thinking_budget=self.budget
        )
        tally = Tally(len(prompt), settings.mode)
        events = AnswerEvents(written, tally, end_tokens, Stopwatch(), tokens, circles="go_on")

        def rules() -> TokenRules | None:
            if forced is None:
                return self.rules
            elsewhere = None if self.rules is None else self.rules.constraint
            return TokenRules(constraint=replace(forced, elsewhere=elsewhere))

        def decode(mode: Mode, segment: int) -> Rounds:
            nonlocal first
            first, left = segment + 1, tokens - (len(text) - len(prompt))
            params = DecodeParams(
                sampling,
                settings.acceptance,
                settings.draft_length,
                left,
                end_tokens,
                rules(),
                None,
                len(prompt),
            )
            now = replace(settings, mode=mode)
            return self.engine.rounds(text, now, params, latency_model(), seed, segment)

        pausing = cycle((False, False, True))
        goes_on = True
        while goes_on:
            if events.thinking_is_to_be_closed:
                del text[len(prompt) + tally.tokens :]
                forced = ForcedTokens(len(text), FORCED)
                tally.change(settings.mode)
            segments = decode_in_segments(decode, settings.mode, text, PlainCost(), None, first)
            with closing(segments) as rounds:
                for event in events.events(rounds, lambda: self.pauses and next(pausing)):
                    if isinstance(event, RoundDone):
                        yield Round(tuple(text[told : told + event.tokens]), (), event.stats)
                        told += event.tokens
            goes_on = events.thinking_is_to_be_closed or events.paused

    def exact(self, text: Sequence[int], sampling: Sampling) -> Distribution:
        token = forced_after(text[PROMPT:], self.budget)
        if token is not None:
            return Distribution(np.array([token]), np.array([1.0]))
        return super().exact(text, sampling)


class LongBudgetToy(BudgetToy):
    """One whose budget ends deep in an answer, and whose answers pause."""

    budget = 40
    pauses = True


class RuledBudgetToy(BudgetToy):
    """One with a grammar."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rules = TokenRules(constraint=MadeConstraint(self.vocabulary))


class NoBudgetToy(BudgetToy):
    """One whose thinking is closed where it begins."""

    budget = 0


class HeadBudgetToy(BudgetToy, HeadToy):
    """One with a head."""


class BudgetContract(EngineContract):
    toy: type[Toy] = BudgetToy

    @pytest.fixture(autouse=True)
    def answers_think(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(contract, "Toy", self.toy)


class TestOff(BudgetContract):
    settings = OFF


class TestNgram(BudgetContract):
    settings = EngineSettings(mode="ngram", draft_length=4)


class TestSd(BudgetContract):
    settings = SD


class TestSsd(BudgetContract):
    settings = SSD


class TestSsdPausing(BudgetContract):
    settings = replace(SSD, min_confidence=0.0)
    toy = LongBudgetToy


class TestSdRuled(BudgetContract):
    settings = SD
    toy = RuledBudgetToy


class TestSsdOfNothing(BudgetContract):
    settings = SSD
    toy = NoBudgetToy


class TestHead(BudgetContract):
    settings = SD
    toy = HeadBudgetToy


def answer(toy: BudgetToy, settings: EngineSettings, seed: int, tokens: int = 60) -> list[int]:
    return toy.answer([1, 2, 3], settings, replace(PLAIN, temperature=1.5), tokens, seed)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [0, 1, 2, 3, 5, 9])
def test_thinking_is_closed_at_the_same_place_in_every_mode_with_one_seed(budget: int) -> None:
    endings = set()
    for seed in range(12):
        toys = [type("Toy", (BudgetToy,), {"budget": budget})() for _ in range(4)]
        match = replace(SSD, acceptance="match")
        modes = (OFF, EngineSettings(mode="ngram"), match, replace(match, mode="sd"))
        texts = {tuple(answer(toy, settings, seed)) for toy, settings in zip(toys, modes, strict=True)}
        (text,) = texts
        places = [n for n in range(len(text)) if forced_after(text[:n], budget) is not None]
        assert [text[place] for place in places] == list(FORCED) * bool(places)
        endings.add(PIECES[text[places[0] - 1]] if places and places[0] else b"")
    assert b"\xc3" not in endings


def test_thinking_that_ends_in_time_is_not_closed_again() -> None:
    """A budget of the same length, or of one token more, adds nothing to thinking that ends by itself."""
    free = type("Toy", (BudgetToy,), {"budget": 10_000})
    seed = next(n for n in range(900) if CLOSING in bytes_of(answer(free(), OFF, n, 30)))
    text = answer(free(), OFF, seed, 30)
    ends = next(n for n in range(31) if CLOSING in bytes_of(text[:n]))
    for budget in (ends - 1, ends, ends + 1):  # in the middle of its tag, at its end and behind it
        assert answer(type("Toy", (BudgetToy,), {"budget": budget})(), OFF, seed, 30) == text


def bytes_of(text: Sequence[int]) -> bytes:
    return b"".join(PIECES[token] for token in text)
