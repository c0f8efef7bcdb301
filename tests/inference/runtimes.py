"""Requests to a runtime on the bundled pair, and what comes of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from localspec.demo import prompts
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.interface import OpenModels
from localspec.inference.runtime import Runtime
from localspec.types.events import Finished, GenerationEvent, TextDelta
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Mode, Request, Sampling

GREEDY = Sampling(temperature=0.0)
OFF = EngineSettings(mode="off")
FORCED = EngineSettings(mode="sd", draft_length=8, min_confidence=0.2)  # drafts whether it pays here or not
MODES: tuple[Mode, ...] = ("off", "ngram", "sd", "ssd")
QUESTION = (Message("user", "Write a Python function that checks whether a number is prime."),)
LONG_STORY = " ".join(item.prompt for item in prompts())  # about a thousand tokens


def in_f32(model: Path, context: int) -> ModelOptions:
    """Return options for answers at once, which read prompts in pieces that depend on who comes when.

    With weights in f32 as well, sums in another order change no greedy text.
    """
    # Flash attention computes in f16 on the CPU, whatever the cache has.
    return ModelOptions(
        model, context=context, threads=1, kv_type_k="f32", kv_type_v="f32", flash_attention=False
    )


@contextmanager
def open_pair(target: Path, draft: Path) -> Iterator[Runtime]:
    """Open the pair with room for a long text; the target gives the same bits at every batch width."""
    options = ModelOptions(target, context=2048, micro_batch=32, threads=1)
    with Runtime.open(OpenPlan(options, replace(options, path=draft))) as opened:
        yield opened


def greedy(
    settings: EngineSettings = OFF, prompt: tuple[Message, ...] | str = QUESTION, max_tokens: int | None = 40
) -> Request:
    return Request(prompt, GREEDY, settings, max_tokens, seed=1)


def measuring(request: Request) -> Request:
    """Return a request whose answer waits until costs are measured."""
    return replace(request, measures_first=True)


def beginning(models: OpenModels, events: Iterable[GenerationEvent], length: int) -> str:
    """Return the first characters of an answer that would not end, and cancel it."""
    text = ""
    for event in events:
        text += event.text if isinstance(event, TextDelta) else ""
        if len(text) >= length:
            models.cancel()
    return text[:length]


def text_of(events: Sequence[GenerationEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def end_of(events: Sequence[GenerationEvent]) -> Finished:
    *before, last = events
    assert isinstance(last, Finished)
    assert not any(isinstance(event, Finished) for event in before)
    return last


def answer(runtime: Runtime, request: Request) -> tuple[str, Finished]:
    events = list(runtime.generate(request))
    return text_of(events), end_of(events)
