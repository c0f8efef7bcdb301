"""Questions to a slow function, off the screen's thread; only the newest is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from textual.widget import Widget
from textual.worker import Worker

from localspec.errors import LocalSpecError
from localspec_tui.workers import start_worker

Answer = TypeVar("Answer")


class Lookup(Generic[Answer]):
    """Ask `function` in a thread, and hand the answer to the newest question to `show`.

    Questions that come while one is being answered replace each other. Each call waits `pause_s` first, so
    that a fast typist asks once.
    """

    def __init__(
        self,
        owner: Widget,
        function: Callable[[str], Answer],
        show: Callable[[str, Answer], None],
        failed: Callable[[str, Exception], None],
        pause_s: float = 0.0,
    ) -> None:
        self._owner = owner
        self._function = function
        self._show = show
        self._failed = failed
        self._pause_s = pause_s
        self._waiting: str | None = None
        self._worker: Worker[None] | None = None

    def ask(self, question: str) -> None:
        """Look this question up next, instead of any that still waits."""
        self._waiting = question
        if self._worker is None or self._worker.is_finished:
            self._worker = start_worker(self._owner, self._answer_all)

    def forget(self) -> None:
        """Drop the question that waits."""
        self._waiting = None

    async def _answer_all(self) -> None:
        while self._waiting is not None:
            await asyncio.sleep(self._pause_s)
            question = self._waiting
            self._waiting = None
            if question is not None:
                await self._answer(question)

    async def _answer(self, question: str) -> None:
        try:
            answer = await asyncio.to_thread(self._function, question)
        except (LocalSpecError, OSError) as error:
            if self._waiting is None:
                self._failed(question, error)
        else:
            if self._waiting is None:
                self._show(question, answer)
