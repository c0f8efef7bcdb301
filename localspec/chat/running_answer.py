"""The answer in progress, in a thread of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from localspec.chat.answering import AnswerEvent, LiveAnswer
from localspec.chat.loading import ModelLoader
from localspec.inference.interface import OpenModels

STUCK_S = 2.0  # after `stop`, without an end: the engine does not respond

Job = Callable[[OpenModels], Iterator[AnswerEvent]]


class RunningAnswer:
    """The answer in progress; it starts at once, in the running event loop."""

    def __init__(self, loader: ModelLoader, job: Job, *, continues: bool = False) -> None:
        self._loader = loader
        self.job = job
        self.continues = continues  # an answer that is there already
        self.began_s = time.monotonic()
        self._stopped_s: float | None = None
        self.models: OpenModels | None = None
        self.live = LiveAnswer()
        self.saved = False  # measuring after the answer may be interrupted by the next prompt
        self._thread = asyncio.ensure_future(asyncio.to_thread(self._run))

    def _run(self) -> BaseException | None:
        """Do the job from its first to its last event, and return the error, if any."""
        try:
            self._loader.start()  # again, if it was stopped or failed
            self.models = models = self._loader.models(wait=True)
            for event in self.job(models):
                self.live.take(event)
                if self._stopped_s is not None:  # asked while the models were not yet at work
                    models.cancel()
        except BaseException as failure:  # noqa: BLE001 - the view reports it
            return failure
        return None

    async def ends_within(self, seconds: float) -> bool:
        """Wait for the end of the thread, and return whether it came."""
        done, _ = await asyncio.wait([self._thread], timeout=seconds)
        return bool(done)

    @property
    def error(self) -> BaseException | None:
        """The error of an answer that has ended, if any."""
        return self._thread.result()

    @property
    def is_stuck(self) -> bool:
        """Whether it has not stopped `STUCK_S` after `stop`."""
        return self._stopped_s is not None and time.monotonic() - self._stopped_s >= STUCK_S

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped_s is not None

    def stop(self) -> None:
        """End the answer, or the loading that it waits for."""
        self._stopped_s = self._stopped_s or time.monotonic()
        if self.models is not None:
            self.models.cancel()
        else:
            self._loader.cancel()
