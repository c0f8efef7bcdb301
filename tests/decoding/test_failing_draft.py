"""A draft model that fails ends drafting, never the answer; a target that fails is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from localspec.decoding.engine import Rounds, decode_in_segments
from localspec.decoding.fallback import ModeFallback, PlainCost
from localspec.decoding.measure import measure
from localspec.decoding.rounds import DecodeParams, Round
from localspec.errors import ContextFullError, DraftError, EngineError, LogitsError
from localspec.types.candidates import FullRows, Logits
from localspec.types.events import ModeChanged
from localspec.types.request import EngineSettings, Mode, Sampling
from tests.contract import GREEDY, NO_END, OFF, PLAIN, Toy, latency_model

PROMPT = [1, 2, 3]
TOKENS = 40
NUCLEUS = Sampling(temperature=0.8, top_k=6, top_p=0.9, min_p=0.02)
PENALISED = replace(NUCLEUS, presence_penalty=0.5)
SD = EngineSettings(mode="sd", draft_length=4, min_confidence=0.0)
SSD = EngineSettings(mode="ssd", draft_length=4, fan_out_budget=8, min_confidence=0.0)
WAYS = (SD, SSD, replace(SD, acceptance="match", fallback="ngram"), replace(SSD, min_confidence=None))
NO_NUMBERS = "the draft model small returned logits that are not numbers"


def broken_rows(value: float, place: int, rows: Logits) -> Logits:
    """Spoil one entry of the last row, or all of it."""
    rows = rows.copy()
    rows[-1, slice(None) if place < 0 else place] = value
    return rows


def failing(error: Exception, _rows: Logits) -> Logits:
    raise error


FAILURES: dict[str, tuple[Callable[[Logits], Logits], str]] = {
    "NaN": (partial(broken_rows, np.nan, -1), NO_NUMBERS),
    "one NaN": (partial(broken_rows, np.nan, 7), NO_NUMBERS),
    "infinity": (partial(broken_rows, np.inf, 7), NO_NUMBERS),
    "a failed call": (
        partial(failing, EngineError("llama.cpp failed to decode (code -3); its log says why")),
        "the draft model small failed: llama.cpp failed to decode (code -3); its log says why",
    ),
    "no room": (
        partial(failing, ContextFullError("the memory is full")),
        "the draft model small failed: the memory is full",
    ),
}


def spoil(toy: Toy, change: Callable[[Logits], Logits], after: int) -> None:
    """Let the draft model's calls fail after N."""
    toy.draft.name = "small"
    append = toy.draft._append

    def spoilt(entries: list[tuple[int, int]]) -> Logits:
        is_spoilt = len(toy.draft.calls) >= after
        if is_spoilt:
            change(np.zeros((1, toy.vocabulary), np.float32))  # a failed call leaves nothing behind
        rows = append(entries)
        return change(rows) if is_spoilt else rows

    toy.draft._append = spoilt  # type: ignore[method-assign]


def answer(
    toy: Toy, settings: EngineSettings, sampling: Sampling, fallback: ModeFallback | None = None
) -> tuple[list[int], list[ModeChanged]]:
    """Decode as the runtime does; return the tokens and the changes of mode."""
    text = list(PROMPT)

    def decode(mode: Mode, segment: int) -> Rounds:
        left = TOKENS - (len(text) - len(PROMPT))
        params = DecodeParams(sampling, settings.acceptance, 8, left, NO_END)
        return toy.engine.rounds(text, replace(settings, mode=mode), params, latency_model(), 5, segment)

    events = [*decode_in_segments(decode, settings.mode, text, PlainCost(), fallback)]
    return text[len(PROMPT) :], [event for event in events if isinstance(event, ModeChanged)]


@pytest.mark.parametrize("after", [0, 1, 9])
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("settings", WAYS, ids=range(len(WAYS)))
def test_the_answer_continues_plainly_and_the_draft_is_named(
    settings: EngineSettings, failure: str, after: int
) -> None:
    change, reason = FAILURES[failure]
    toy = Toy()
    spoil(toy, change, after)
    found, changes = answer(toy, settings, GREEDY)
    assert found == Toy().answer(PROMPT, OFF, GREEDY, TOKENS)
    if not changes:  # drafting ahead met the failure too late for this answer
        assert settings.mode == "ssd"
        found, changes = answer(toy, settings, GREEDY)
    assert changes == [ModeChanged("off", reason)]
    assert changes[0].draft_failed


@pytest.mark.parametrize("sampling", [PLAIN, NUCLEUS, PENALISED, replace(GREEDY, presence_penalty=0.5)])
@pytest.mark.parametrize("settings", WAYS, ids=range(len(WAYS)))
def test_a_draft_without_numbers_is_noticed_however_tokens_are_drawn(
    settings: EngineSettings, sampling: Sampling
) -> None:
    toy = Toy()
    spoil(toy, FAILURES["one NaN"][0], 0)
    found, changes = answer(toy, settings, sampling)
    assert len(found) == TOKENS
    assert changes == [ModeChanged("off", NO_NUMBERS)]


@pytest.mark.slow
@pytest.mark.parametrize("settings", WAYS, ids=range(len(WAYS)))
def test_the_draft_is_left_out_from_then_on(settings: EngineSettings) -> None:
    toy = Toy()
    spoil(toy, FAILURES["NaN"][0], 0)
    toy.engine.conversations.keep(2**20)
    answer(toy, settings, GREEDY)
    calls = len(toy.draft.calls)
    for later in WAYS:
        found, changes = answer(toy, later, GREEDY)
        assert found == Toy().answer(PROMPT, OFF, GREEDY, TOKENS)
        assert changes == [ModeChanged("off", NO_NUMBERS)]
        toy.engine.forget()
    found, changes = answer(toy, EngineSettings(mode="ngram"), GREEDY)
    assert changes == []
    assert len(toy.draft.calls) == calls


def test_no_trial_of_a_higher_mode_asks_it_again() -> None:
    toy, plain = Toy(), PlainCost()
    plain.observe(0, 1e-9)  # every mode seems to lose
    spoil(toy, FAILURES["NaN"][0], 3)
    _, changes = answer(toy, SD, GREEDY, ModeFallback("sd", plain))
    assert changes[-1] == ModeChanged("off", NO_NUMBERS)


def test_a_mistake_in_the_program_is_not_a_failure_of_the_draft() -> None:
    toy = Toy()
    spoil(toy, partial(failing, ZeroDivisionError("a mistake")), 3)
    with pytest.raises(ZeroDivisionError):
        answer(toy, SD, GREEDY)


@pytest.mark.parametrize("together", [False, True])
def test_measuring_names_a_draft_without_numbers(together: bool) -> None:
    toy = Toy()
    spoil(toy, FAILURES["one NaN"][0], 0)
    with pytest.raises(DraftError, match=NO_NUMBERS):
        measure(toy.target, toy.draft, 0.0, together=together)


@pytest.mark.parametrize("place", [0, 3, 15, -1])
@pytest.mark.parametrize("sampling", [GREEDY, PLAIN, NUCLEUS, PENALISED])
@pytest.mark.parametrize("settings", [OFF, *WAYS], ids=range(len(WAYS) + 1))
def test_a_target_without_numbers_is_named_before_a_broken_token(
    settings: EngineSettings, sampling: Sampling, place: int
) -> None:
    toy = Toy()
    toy.target.name = "large"
    evaluate, good = toy.target.evaluate, Toy().target

    def spoilt(tokens: Sequence[int], logits: int = 1) -> FullRows:
        rows = evaluate(tokens, logits).logits.copy()
        first = toy.target.length() - logits + 1  # tokens before the first row
        for row in range(max(0, 12 - first), logits):
            rows[row, slice(None) if place < 0 else place] = np.nan
        return FullRows(rows)

    toy.target.evaluate = spoilt  # type: ignore[method-assign]
    text = list(PROMPT)
    params = DecodeParams(sampling, settings.acceptance, 8, TOKENS, NO_END)
    with pytest.raises(LogitsError, match="the model large returned logits that are not numbers"):
        text.extend(
            token
            for event in toy.engine.rounds(PROMPT, settings, params, latency_model(), 1)
            if isinstance(event, Round)
            for token in event.tokens
        )
    assert 8 <= len(text) <= 12
    if sampling.is_greedy and not sampling.presence_penalty:
        assert all(good.logits_after(text[:at]).argmax() == text[at] for at in range(len(PROMPT), len(text)))
