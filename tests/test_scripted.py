from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import chain, cycle, islice
from typing import get_args

import pytest

from localspec.errors import ContextFullError, EngineDied, UserError
from localspec.inference.interface import OpenModels
from localspec.types.drafts import DraftOrigin, Provenance
from localspec.types.events import (
    Finished,
    GenerationEvent,
    ModeChanged,
    PromptProgress,
    RoundDone,
    TextDelta,
)
from localspec.types.request import EngineSettings, Message, Mode, Request
from tests.scripted import MARKDOWN, Gate, Script, ScriptedModels, Step, says, talks_on

WAIT_S = 10.0
QUESTION = (Message("user", "one two three"),)


def request(mode: Mode = "ssd", max_tokens: int | None = None) -> Request:
    return Request(QUESTION, settings=EngineSettings(mode=mode), max_tokens=max_tokens)


def text(events: Sequence[GenerationEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def finished(events: Sequence[GenerationEvent]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def test_they_are_open_models() -> None:
    models: OpenModels = ScriptedModels()
    assert text(list(models.generate(request())))


@pytest.mark.parametrize("mode", get_args(Mode))
def test_the_rounds_of_every_mode_add_up_to_the_text(mode: Mode) -> None:
    events = list(ScriptedModels(says(MARKDOWN)).generate(request(mode)))
    rounds = [event for event in events if isinstance(event, RoundDone)]
    summary = finished(events).summary
    assert text(events) == MARKDOWN
    assert summary.tokens == sum(event.tokens for event in rounds)
    assert summary.accepted == sum(event.stats.accepted for event in rounds)
    assert all(event.tokens == event.stats.accepted + 1 for event in rounds)
    assert all(event.stats.accepted <= event.stats.drafted for event in rounds)
    assert summary.decode_s > 0
    assert (summary.drafted > 0) == (mode != "off")
    assert (summary.hits > 0) == (summary.misses > 0) == (mode == "ssd")


def test_the_provenance_is_what_a_mode_can_give() -> None:
    found = {
        mode: {
            piece.provenance
            for event in ScriptedModels(says(MARKDOWN)).generate(request(mode))
            if isinstance(event, TextDelta)
            for piece in event.pieces
        }
        for mode in get_args(Mode)
    }
    assert found["off"] == {Provenance.TARGET}
    assert found["sd"] == found["ngram"] == {Provenance.TARGET, Provenance.ACCEPTED, Provenance.BONUS}
    assert found["ssd"] == set(Provenance)


def test_scripts_are_reported_one_after_the_other_and_the_last_again() -> None:
    models = ScriptedModels(says("a"), says("b", reason="length"))
    answers = [list(models.generate(request())) for _ in range(3)]
    assert [text(answer) for answer in answers] == ["a", "b", "b"]
    assert finished(answers[2]).reason == "length"
    assert models.requests == [request()] * 3


def test_an_answer_waits_at_a_gate_until_it_is_opened() -> None:
    gate = Gate()
    events: list[GenerationEvent] = []
    models = ScriptedModels(says("before ", gate, "after"))
    reader = threading.Thread(target=lambda: events.extend(models.generate(request())), daemon=True)
    reader.start()
    assert gate.reached.wait(WAIT_S)
    assert reader.is_alive()
    gate.open()
    reader.join(WAIT_S)
    assert text(events) == "before after"


@pytest.mark.parametrize("held", [True, False])
def test_a_cancel_ends_an_answer_wherever_it_is(held: bool) -> None:
    gate = Gate()
    if not held:
        gate.open()
    models = ScriptedModels(Script(chain(["before ", gate], cycle(["after "]) if not held else ["after"])))
    events: list[GenerationEvent] = []
    reader = threading.Thread(target=lambda: events.extend(models.generate(request())), daemon=True)
    reader.start()
    assert gate.reached.wait(WAIT_S)
    models.cancel()
    reader.join(WAIT_S / 2)
    assert not reader.is_alive()
    assert finished(events).reason == "cancelled"


def test_what_happens_between_texts_is_reported() -> None:
    steps: tuple[Step, ...] = (PromptProgress(512, 900), "a b c ", ModeChanged("off", "it loses"), "d e f")
    events = list(ScriptedModels(says(*steps)).generate(request("sd")))
    assert events[0] == steps[0]
    after = events[events.index(ModeChanged("off", "it loses")) :]
    assert {event.stats.origin for event in after if isinstance(event, RoundDone)} == {DraftOrigin.NONE}


def test_an_error_comes_where_the_script_has_it_and_models_continue() -> None:
    models = ScriptedModels(says("a", UserError("no"), "b"), says("c"))
    events: list[GenerationEvent] = []
    with pytest.raises(UserError):
        events.extend(models.generate(request()))
    assert text(events) == "a"
    assert text(list(models.generate(request()))) == "c"


def test_dead_models_raise_engine_died_on_every_call() -> None:
    models = ScriptedModels(says("a", EngineDied("gone")), says("b"))
    for _ in range(2):
        with pytest.raises(EngineDied, match="gone"):
            list(models.generate(request()))
    for call in (models.memory, models.measure_plain, models.choose_settings):
        with pytest.raises(EngineDied):
            call()
    models.cancel()
    models.close()


def test_answers_keep_to_their_limits() -> None:
    events = list(ScriptedModels(says(MARKDOWN)).generate(request(max_tokens=5)))
    assert (finished(events).reason, finished(events).summary.tokens) == ("length", 5)
    events = list(ScriptedModels(says(MARKDOWN), context=20).generate(request()))
    assert finished(events).reason == "context"
    assert finished(events).summary.prompt_tokens + finished(events).summary.tokens == 20
    with pytest.raises(ContextFullError):
        next(iter(ScriptedModels(context=5).generate(request())))


def test_tokens_are_words() -> None:
    assert ScriptedModels().count_tokens(QUESTION) == 1 + 1 + 3
    assert finished(list(ScriptedModels().generate(request()))).summary.prompt_tokens == 5


def test_plain_decoding_is_measured_after_an_answer() -> None:
    models = ScriptedModels(says("a b c"))
    assert models.measure_plain() is None
    last = finished(list(models.generate(request("off")))).summary
    rate = models.measure_plain()
    assert rate is not None
    assert rate.depth == 5 + 3
    assert rate.tokens_per_s == pytest.approx(2 / last.decode_s)


def test_an_abandoned_answer_frees_the_models() -> None:
    models = ScriptedModels(talks_on(), says("next"))
    answer = models.generate(request())
    assert text(list(islice(answer, 4)))
    with pytest.raises(AssertionError, match="two threads"):
        models.measure_plain()
    del answer
    assert text(list(models.generate(request()))) == "next"
