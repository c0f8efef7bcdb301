"""What callers rely on, of all that is passed to them as open models: real ones and those of tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.errors import ContextFullError, LocalSpecError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.interface import OpenModels, PausableModels, SharedModels
from localspec.inference.worker.client import Worker
from localspec.types.events import (
    Finished,
    GenerationEvent,
    ModeChanged,
    Paused,
    PromptProgress,
    RoundDone,
    TextDelta,
    ThinkingOpened,
)
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Request
from tests.contract import GREEDY
from tests.inference.runtimes import beginning, open_pair, text_of
from tests.inference.worker.processes import ENDLESS
from tests.scripted import ScriptedModels, talks_on
from tests.server.turning_models import TurningModels

QUESTION = (Message("user", "Tell me a long story about a dog."),)
EVENTS = PromptProgress | ThinkingOpened | TextDelta | RoundDone | ModeChanged | Finished


def asking(max_tokens: int | None = 40, settings: EngineSettings | None = None) -> Request:
    return Request(QUESTION, GREEDY, settings or EngineSettings(mode="off"), max_tokens, seed=1)


def events_until_text(models: OpenModels, stop: Callable[[], None]) -> list[GenerationEvent]:
    """Return the events of an endless answer that is stopped at each text."""
    events: list[GenerationEvent] = []
    for event in models.generate(ENDLESS):
        events.append(event)
        if isinstance(event, TextDelta):
            stop()
    return events


class OpenModelsContract:
    """What `OpenModels` promises; a subclass has a fixture `models`."""

    def test_an_answer_has_text_and_one_end(self, models: OpenModels) -> None:
        events = list(models.generate(asking()))
        assert all(isinstance(event, EVENTS) for event in events)
        assert [type(event) for event in events].count(Finished) == 1
        assert isinstance(events[-1], Finished)
        assert text_of(events)

    def test_rounds_and_the_end_count_the_same_tokens(self, models: OpenModels) -> None:
        events = list(models.generate(asking()))
        rounds = [event for event in events if isinstance(event, RoundDone)]
        (end,) = (event for event in events if isinstance(event, Finished))
        assert sum(event.tokens for event in rounds) == end.summary.tokens > 0
        assert all(0 <= event.stats.accepted <= event.stats.drafted for event in rounds)

    def test_an_answer_ends_at_its_length(self, models: OpenModels) -> None:
        *_, end = models.generate(asking(max_tokens=5))
        assert isinstance(end, Finished)
        assert (end.reason, end.summary.tokens) == ("length", 5)

    def test_a_cancelled_answer_ends_soon_and_the_next_one_is_written(self, models: OpenModels) -> None:
        events = events_until_text(models, models.cancel)
        assert isinstance(events[-1], Finished)
        assert events[-1].reason == "cancelled"
        assert text_of(list(models.generate(asking(max_tokens=3))))

    def test_a_prompt_beyond_the_context_is_rejected_before_the_first_event(self, models: OpenModels) -> None:
        long = Request("word " * models.target.context, GREEDY, EngineSettings(mode="off"), 5)
        with pytest.raises(ContextFullError):
            next(models.generate(long))

    def test_more_messages_count_more_tokens(self, models: OpenModels) -> None:
        longer = (*QUESTION, Message("assistant", "There was a dog."), Message("user", "And then?"))
        assert 0 < models.count_tokens(QUESTION) < models.count_tokens(longer)

    def test_settings_are_chosen_with_a_reason(self, models: OpenModels) -> None:
        settings, reason = models.choose_settings(EngineSettings(mode="off", draft_length=3))
        assert settings.draft_length == 3
        assert reason

    def test_a_closed_pair_can_be_closed_again(self, models: OpenModels) -> None:
        models.close()
        models.close()


class PausableModelsContract(OpenModelsContract):
    """What `PausableModels` promises besides."""

    def test_a_paused_answer_continues_where_it_stopped(self, models: PausableModels) -> None:
        first = events_until_text(models, models.pause)
        assert isinstance(first[-1], Paused)
        assert text_of(list(models.generate(asking(max_tokens=2))))
        text = text_of(first) + beginning(models, models.resume(first[-1].number), 100)
        assert text == beginning(models, models.generate(ENDLESS), len(text))

    def test_a_dropped_answer_is_gone(self, models: PausableModels) -> None:
        number = None
        for event in models.generate(ENDLESS):
            models.pause()
            number = event.number if isinstance(event, Paused) else None
        assert number is not None
        models.drop(number)
        with pytest.raises((LocalSpecError, KeyError)):
            next(models.resume(number))


class SharedModelsContract(PausableModelsContract):
    """What `SharedModels` promises besides."""

    def test_a_prompt_is_read_without_an_answer(self, models: SharedModels) -> None:
        *progress, end = models.read(asking())
        assert progress
        assert all(isinstance(event, PromptProgress) for event in progress)
        assert isinstance(end, Finished)
        assert (end.reason, end.summary.tokens) == ("length", 0)
        assert end.summary.prompt_tokens > 0
        assert text_of(list(models.generate(asking(max_tokens=2))))

    def test_reading_that_is_cancelled_ends_with_what_was_read(self, models: SharedModels) -> None:
        long = Request((Message("user", "A long story. " * 150),), GREEDY, EngineSettings(mode="off"))
        events = []
        for event in models.read(long):
            events.append(event)
            models.cancel()
        assert isinstance(events[-1], Finished)
        assert events[-1].reason == "cancelled"
        assert text_of(list(models.generate(asking(max_tokens=2))))

    def test_a_text_is_that_of_its_tokens(self, models: SharedModels) -> None:
        tokens = models.tokenize("A dog, and a cat.")
        assert b"".join(text for _, text in tokens) == b"A dog, and a cat."
        assert models.detokenize([number for number, _ in tokens]) == "A dog, and a cat."


class TestScripted(PausableModelsContract):
    @pytest.fixture
    def models(self) -> ScriptedModels:
        return ScriptedModels(talks_on())


class TestTurning(SharedModelsContract):
    @pytest.fixture
    def models(self) -> TurningModels:
        return TurningModels()


class TestRuntime(SharedModelsContract):
    @pytest.fixture
    def models(self, demo_target_q8: Path, demo_draft: Path) -> Iterator[OpenModels]:
        with open_pair(demo_target_q8, demo_draft) as opened:
            yield opened


@pytest.mark.slow
class TestWorker(SharedModelsContract):
    @pytest.fixture
    def models(self, demo_target_q8: Path, demo_draft: Path) -> Iterator[OpenModels]:
        options = ModelOptions(demo_target_q8, context=2048, micro_batch=32, threads=1)
        with Worker.open(OpenPlan(options, replace(options, path=demo_draft))) as opened:
            yield opened
