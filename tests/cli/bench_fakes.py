"""Contenders of a benchmark that answer from a script, some of them until Ctrl+C."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from localspec.app.comparison import MODES
from localspec.benchmark.harness import Question
from localspec.errors import Cancelled, EngineError
from localspec.types.drafts import DraftOrigin
from localspec.types.events import Finished, GenerationEvent, RoundDone, RoundStats, Summary
from localspec.types.models import ModelOptions
from localspec.types.request import Request
from tests.cli.fake_runtime import SUMMARY, FakeRuntime

ROUND = RoundStats(0, 0, DraftOrigin.NONE, 0.01, 0.0, 0.0, 0.0)
SPEEDS = {"off": 6.0, "ngram": 9.0, "sd": 12.0, "ssd": 24.0}


@dataclass
class Models(FakeRuntime):
    """Open models whose modes have a speed each; plain decoding slows down with `drift`."""

    modes: tuple[str, ...] = MODES
    tokens: int = SUMMARY.tokens
    drift: float = 1.0
    anchors: int = 0
    fails_after: int = 1000
    pressed_after: int = 1000
    kinds: list[str] = field(default_factory=list)

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        self.requests.append(request)
        if isinstance(request.prompt, str):
            pace = replace(ROUND, verify_s=0.01 * self.drift**self.anchors)
            self.anchors += 1
            yield from (RoundDone(pace, 1) for _ in range(34))
            yield Finished("length", SUMMARY)
            return
        self.kinds.append(request.settings.mode)
        if len(self.kinds) > self.fails_after:
            raise EngineError("out of memory")
        if len(self.kinds) > self.pressed_after:
            os.kill(os.getpid(), signal.SIGINT)
        decode_s = (SUMMARY.tokens - 1) / SPEEDS[request.settings.mode]
        yield Finished("stop", replace(SUMMARY, tokens=self.tokens, decode_s=decode_s))


class Rival:
    """A server that is twice as fast as plain decoding."""

    running = 0
    pressed = False  # Ctrl+C while it answers
    finished = 0

    def __init__(self, name: str, _program: Path, *_models: ModelOptions | int | None) -> None:
        self.name = name
        Rival.running += 1

    def close(self) -> None:
        Rival.running -= 1

    def cancel(self) -> None:
        raise Cancelled

    def answer(self, question: Question) -> Summary:
        if self.pressed:
            os.kill(os.getpid(), signal.SIGINT)
        Rival.finished += 1
        return Summary(prompt_tokens=20, tokens=13, prompt_s=0.5, first_token_s=0.5, decode_s=1.0)

    def memory_peak(self) -> int | None:
        return 5 * 2**30
