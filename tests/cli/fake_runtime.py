"""A runtime that answers from a script, and a way to call the command line on it."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

from localspec.cli.shared import opening
from localspec.errors import Cancelled
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.types.drafts import Provenance
from localspec.types.events import (
    Finished,
    FinishReason,
    GenerationEvent,
    ModeChanged,
    Summary,
    TextDelta,
    TextPiece,
    ThinkingOpened,
)
from localspec.types.models import DeviceMemory, ModelInfo, PlainRate
from localspec.types.request import EngineSettings, Message, Request

Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")
Script = Callable[[Request], Iterator[GenerationEvent]]

SUMMARY = Summary(
    prompt_tokens=20,
    cached_tokens=5,
    tokens=13,
    rounds=4,
    drafted=10,
    accepted=8,
    accepted_at=(4, 3, 1),
    drafted_at=(4, 4, 2),
    hits=3,
    misses=1,
    prompt_s=0.5,
    first_token_s=0.6,
    decode_s=2.0,
    verify_s=1.2,
    draft_s=0.4,
    wait_s=0.2,
    python_s=0.1,
)


def model_info(name: str) -> ModelInfo:
    return ModelInfo(Path(f"{name}.gguf"), name, "llama", 1000, 2000, 512, 1024, 256, ("CPU",))


def says(
    *pieces: str, reason: FinishReason = "stop", changes: Sequence[ModeChanged] = (), opening: str = ""
) -> Script:
    """Return a script whose answer consists of the given pieces, of alternating provenance.

    `opening` is the tag with which the prompt has opened the thinking.
    """

    def script(_request: Request) -> Iterator[GenerationEvent]:
        yield from changes
        if opening:
            yield ThinkingOpened(opening)
        for piece, provenance in zip(pieces, list(Provenance) * len(pieces), strict=False):
            yield TextDelta((TextPiece(piece, provenance),))
        yield Finished(reason, SUMMARY)

    return script


@dataclass
class FakeRuntime:
    """Stands in for open models: keeps what it was asked, answers from its scripts."""

    scripts: list[Script] = field(default_factory=lambda: [says("Hel", "lo")])
    target: ModelInfo = field(default_factory=lambda: model_info("big"))
    draft: ModelInfo | None = field(default_factory=lambda: model_info("small"))
    notes: tuple[str, ...] = ()
    pid: int = field(default_factory=os.getpid)
    modes: tuple[str, ...] = ("off", "ngram", "sd", "ssd")
    requests: list[Request] = field(default_factory=list)
    opened: list[OpenPlan] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)
    makes_programs_s: float | None = None
    closed: bool = False

    def install(self, replace: Callable[[object, str, object], None]) -> None:
        """Let the command line open these, by `setattr` or one that is undone."""
        replace(opening, "start_worker", lambda **_how: self)
        replace(opening, "load", lambda _worker, plan: self.opened.append(plan))

    def values_of(
        self,
        task: Callable[Arguments, Iterator[Value]],
        /,
        *arguments: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Iterator[Value]:
        yield from ()

    def perform(
        self, task: Callable[..., Value], *arguments: object, on_progress: Callable[..., None]
    ) -> Value:
        def tell(*words: object) -> None:
            if self.cancelled.is_set():
                raise Cancelled
            on_progress(*words)

        return task(self, *arguments, tell)

    def __enter__(self) -> FakeRuntime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.closed = True

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        self.requests.append(request)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        yield from script(request)

    def cancel(self) -> None:
        self.cancelled.set()

    def choose_settings(self, settings: EngineSettings | None = None) -> tuple[EngineSettings, str]:
        return replace(settings or EngineSettings(), mode="sd"), "measured"

    def measure_plain(self) -> PlainRate | None:
        return None

    def memory(self) -> tuple[DeviceMemory, ...]:
        return ()

    def first_call_s(self) -> float | None:
        return self.makes_programs_s

    def count_tokens(self, messages: Sequence[Message]) -> int:
        return len(messages)


class FakeInput(io.TextIOWrapper):
    """Standard input with given bytes, from a pipe or from a terminal."""

    def __init__(self, data: bytes, *, terminal: bool) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@dataclass(frozen=True)
class Outcome:
    """What a call of the command line left behind."""

    code: int
    out: str
    err: str
