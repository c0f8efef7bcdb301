"""Models whose answers take as long as a test wants, and a confirmation with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from localspec.benchmark.harness import WARM_UP_TOKENS
from localspec.tuning.confirm import ConfirmationPlan, ConfirmProgress, Entrant, confirm
from localspec.tuning.events import TaskResult
from localspec.tuning.space import LLAMA_CPP
from localspec.types.events import Finished, GenerationEvent, Summary
from localspec.types.request import EngineSettings, Request
from tests.scripted import ScriptedModels
from tests.tuning.fake_models import open_once

REQUESTS = tuple(Request(f"prompt {number}", max_tokens=64) for number in range(8))
SD = Entrant("best", EngineSettings(mode="sd", draft_length=4), 130.0)
SSD = Entrant("second", EngineSettings(mode="ssd", draft_length=6), 125.0)
NGRAM = Entrant("third", EngineSettings(mode="ngram", draft_length=5), 120.0)
DEFAULTS = Entrant("llama.cpp", LLAMA_CPP)
PLAIN = Entrant("plain", EngineSettings(mode="off"))
PLAIN_S = 0.01  # per token

Pace = Callable[[Request, int], float]
"""Seconds per token of an answer, given its request and how many there were before."""


class TimedModels(ScriptedModels):
    """Answers nothing in a time that a test chooses."""

    def __init__(self, pace: Pace, tokens: int | None = None) -> None:
        super().__init__()
        self.pace, self.tokens = pace, tokens

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        number = len(self.requests)
        self.requests.append(request)
        pace = self.pace(request, number)
        assert request.max_tokens
        tokens = min(self.tokens or request.max_tokens, request.max_tokens)
        yield Finished("length", Summary(tokens=tokens, decode_s=pace * (tokens - 1), first_token_s=0.05))

    @property
    def measured(self) -> list[Request]:
        """The requests that were not for warming up."""
        return [request for request in self.requests if request.max_tokens != WARM_UP_TOKENS]


def gains(unlike: float = 0.004, **by_mode: float) -> Pace:
    """Every mode's speed in that of plain decoding; prompts differ, and so do modes on them a little."""

    def pace(request: Request, _number: int) -> float:
        prompt = int(str(request.prompt).split()[-1])
        mode = request.settings.mode
        wobble = 1 + unlike * ((prompt * 7 + len(mode) * 3) % 5 - 2)
        return PLAIN_S * (1 + 0.1 * prompt) * (wobble if mode != "off" else 1) / by_mode.get(mode, 1.0)

    return pace


def run(
    models: TimedModels, *contenders: Entrant, budget_s: float = 60.0, file: Path | None = None
) -> TaskResult:
    terms = ConfirmationPlan("coding", budget_s, "key", file)
    *progress, verdict = confirm(open_once(models), REQUESTS, contenders, terms)
    assert isinstance(verdict, TaskResult)
    assert all(isinstance(each, ConfirmProgress) for each in progress)
    return verdict
