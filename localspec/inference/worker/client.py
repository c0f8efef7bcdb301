"""Open models in another process, behind the interface of those in this one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Self, cast

from localspec.decoding.measurements import CallCosts, CostRequest, TraceRequest, TraceSegment
from localspec.errors import Cancelled
from localspec.inference.worker.process import EngineProcess, Pending
from localspec.inference.worker.wire import Event, LogLine, Method, Opened, Opening, Result
from localspec.types import (
    DeviceMemory,
    EngineSettings,
    GenerationEvent,
    Message,
    ModelInfo,
    ModelOptions,
    PlainRate,
    Request,
)

_ASK_S = 0.05  # how often `on_progress` is asked whether to go on


class Worker:
    """A target and at most one draft model, open in a process of their own; a context manager.

    When that process ends, the call under way and every later one raise `EngineDied`, which says why;
    only `cancel` and `close` then have nothing to do.
    """

    def __init__(self, process: EngineProcess, opened: Opened) -> None:
        self._process = process
        self._close = weakref.finalize(self, process.close)  # also when the program ends
        self.target: ModelInfo = opened.target
        self.draft: ModelInfo | None = opened.draft
        self.notes: tuple[str, ...] = opened.notes

    @classmethod
    def open(
        cls,
        target: ModelOptions,
        draft: ModelOptions | None = None,
        *,
        max_fan_out: int = 16,
        draft_threads: int | None = None,
        on_progress: Callable[[float], bool] | None = None,
        on_log: Callable[[LogLine], None] | None = None,
    ) -> Worker:
        """Open the models; `on_progress(fraction)` is asked again and again, and returns False to stop.

        It is called in this thread, `on_log` in one of its own. Raises `Cancelled` when stopped,
        `EngineDied`, and what `Runtime.open` raises.
        """
        process = EngineProcess(on_log)
        try:
            opening = Opening(target, draft, max_fan_out, draft_threads, on_log is not None)
            opened = _watched(process.call("open", opening), on_progress)
        except BaseException:
            process.kill()
            raise
        return cls(process, cast(Opened, opened))

    @property
    def pid(self) -> int:
        """Return the number that the system knows the process by."""
        return self._process.pid

    def generate(self, request: Request) -> Generator[GenerationEvent]:
        """Yield the answer as it is written; closing the iterator stops it and waits for the end."""
        with closing(self._process.call("generate", request)) as pending:
            while isinstance(reply := pending.next(), Event):
                yield cast(GenerationEvent, reply.event)

    def cancel(self) -> None:
        """End the running answer within a moment; callable from any thread."""
        self._process.cancel()

    def choose_settings(self, settings: EngineSettings | None = None) -> tuple[EngineSettings, str]:
        """Return the settings whose mode should be fastest here, and the reason in a plain sentence."""
        return cast(tuple[EngineSettings, str], self._ask("choose_settings", settings))

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return how many tokens a conversation takes, the start of the next answer included."""
        return cast(int, self._ask("count_tokens", tuple(messages)))

    def measure_plain(self) -> PlainRate | None:
        """Measure plain decoding after the text of the last answer, in a fraction of a second."""
        return cast("PlainRate | None", self._ask("measure_plain"))

    def measure_costs(self, wish: CostRequest) -> CallCosts:
        """Time native calls, without a trace in the caches; raises `Cancelled` after `cancel`."""
        return cast(CallCosts, self._ask("measure_costs", wish))

    def trace(self, wish: TraceRequest) -> TraceSegment:
        """Decode one answer plainly and tell what both models thought before each token."""
        return cast(TraceSegment, self._ask("trace", wish))

    def memory(self) -> tuple[DeviceMemory, ...]:
        """Return the memory of every device that holds a part of these models."""
        return cast(tuple[DeviceMemory, ...], self._ask("memory"))

    def close(self) -> None:
        """End the process, in about a second at most; a second call does nothing."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, method: Method, *arguments: object) -> object:
        with closing(self._process.call(method, *arguments)) as pending:
            return _watched(pending, None)


def _watched(pending: Pending, on_progress: Callable[[float], bool] | None) -> object:
    """Return the result of a call whose progress somebody may watch, and stop."""
    fraction = 0.0
    while not isinstance(reply := pending.next(None if on_progress is None else _ASK_S), Result):
        if reply is not None:
            fraction = cast(float, reply.event)
        if on_progress is not None and not on_progress(fraction):
            raise Cancelled("loading was stopped")
    return reply.value
