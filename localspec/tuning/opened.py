"""The models of a run, which are opened again where a call has ended their process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Self

from localspec.errors import EngineError
from localspec.inference.interface import TunableModels
from localspec.types import Mode


class Opened:
    """Open models, others after a crash, and the modes that crashed; a context manager."""

    models: TunableModels

    def __init__(self, open_models: Callable[[], AbstractContextManager[TunableModels]]) -> None:
        self._open = open_models
        self._stack = ExitStack()
        self.left_out: dict[Mode, str] = {}

    def __enter__(self) -> Self:
        self.again()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def again(self) -> TunableModels:
        """Open the models anew; raises what opening raises."""
        self._stack.close()
        self.models = self._stack.enter_context(self._open())
        return self.models

    def without(self, mode: Mode, error: EngineError) -> TunableModels:
        """Leave out a mode that made an error, and return models to go on with."""
        self.left_out[mode] = str(error)
        return self.again()
