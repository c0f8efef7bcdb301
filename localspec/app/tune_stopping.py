"""End a run of the tuner within a moment, whatever its models are doing, and without harm to what is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from localspec.decoding.measurements import CallCosts, CostWish, TraceSegment, TraceWish
from localspec.errors import Cancelled, EngineError
from localspec.inference.interface import TunableModels
from localspec.tuning.events import Workplace
from localspec.types import (
    DeviceMemory,
    EngineSettings,
    GenerationEvent,
    Message,
    ModelInfo,
    PlainRate,
    Request,
)

OpenModelsAt = Callable[[Workplace], AbstractContextManager[TunableModels]]
T = TypeVar("T")
PATIENCE_S = 5.0  # with models that are to stop by themselves
_AGAIN_S = 0.1  # a cancel that came between two calls is repeated


class Stop:
    """Somebody's wish to stop, which may come at any time and from any thread."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._wanted = threading.Event()
        self._over = threading.Event()
        self._models: TunableModels | None = None

    @property
    def wanted(self) -> bool:
        """Tell whether somebody asked."""
        return self._wanted.is_set()

    def ask(self) -> None:
        """Stop what runs; a second call does nothing."""
        if not self._wanted.is_set():
            self._wanted.set()
            threading.Thread(target=self._cancel, name="localspec-tune-stop", daemon=True).start()

    def over(self) -> None:
        """Say that nothing runs any more."""
        self._over.set()

    def check(self) -> None:
        """Raise `Cancelled` if somebody asked."""
        if self._wanted.is_set():
            raise Cancelled("tuning was stopped")

    def at(self, open_models: OpenModelsAt) -> OpenModelsAt:
        """Return how to open models that stop when asked."""

        @contextmanager
        def opened(workplace: Workplace) -> Iterator[TunableModels]:
            self.check()
            with open_models(workplace) as models:
                self._models = models
                try:
                    self.check()
                    yield Stoppable(models, self)
                finally:
                    self._models = None

        return opened

    def _cancel(self) -> None:
        for _ in range(round(self._patience_s / _AGAIN_S)):
            if (models := self._models) is not None:
                models.cancel()
            if self._over.wait(_AGAIN_S):
                return
        if (models := self._models) is not None:  # native code that hears nothing any more
            models.close()


class Stoppable:
    """Open models of which every call raises `Cancelled` once somebody asked to stop.

    What a cancelled call brought would look like a short answer or a fast one.
    """

    def __init__(self, models: TunableModels, stop: Stop) -> None:
        self._models = models
        self._stop = stop

    @property
    def target(self) -> ModelInfo:
        """Return what the target is."""
        return self._models.target

    @property
    def draft(self) -> ModelInfo | None:
        """Return what the draft model is, None without one."""
        return self._models.draft

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what a person should know about these models on this machine."""
        return self._models.notes

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        """Yield the answer as it is written."""
        self._stop.check()
        events = self._models.generate(request)
        try:
            for event in events:
                self._stop.check()
                yield event
        except EngineError:  # perhaps the models were closed to end the answer
            self._stop.check()
            raise
        finally:
            if isinstance(events, Generator):
                events.close()

    def cancel(self) -> None:
        """End the running answer within a moment."""
        self._models.cancel()

    def choose_settings(self, settings: EngineSettings | None = None) -> tuple[EngineSettings, str]:
        """Return the settings whose mode should be fastest here, and the reason in a plain sentence."""
        return self._checked(lambda: self._models.choose_settings(settings))

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return how many tokens a conversation takes."""
        return self._models.count_tokens(messages)

    def measure_plain(self) -> PlainRate | None:
        """Measure plain decoding after the text of the last answer."""
        return self._checked(self._models.measure_plain)

    def memory(self) -> tuple[DeviceMemory, ...]:
        """Return the memory of every device that holds a part of these models."""
        return self._models.memory()

    def measure_costs(self, wish: CostWish) -> CallCosts:
        """Time native calls."""
        return self._checked(lambda: self._models.measure_costs(wish))

    def trace(self, wish: TraceWish) -> TraceSegment:
        """Decode one answer plainly and tell what both models thought before each token."""
        return self._checked(lambda: self._models.trace(wish))

    def close(self) -> None:
        """Free the models."""
        self._models.close()

    def _checked(self, call: Callable[[], T]) -> T:
        self._stop.check()
        try:
            result = call()
        except EngineError:  # perhaps the models were closed to end the call
            self._stop.check()
            raise
        self._stop.check()
        return result
