"""One answer under way: a thread that works with the models, and what others may know of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from localspec.chat.answering import AnswerEvent, LiveAnswer
from localspec.chat.loading import ModelLoader
from localspec.inference.interface import OpenModels

STUCK_S = 2.0  # without a sign of stopping: the engine hears nothing any more

Job = Callable[[OpenModels], Iterator[AnswerEvent]]


class RunningAnswer:
    """The answer under way; it starts when it is made, in the event loop that is running."""

    def __init__(self, loader: ModelLoader, job: Job, *, continues: bool = False) -> None:
        self._loader = loader
        self.job = job
        self.continues = continues  # an answer that is there already
        self.began_s = time.monotonic()
        self._stopped_s: float | None = None
        self.models: OpenModels | None = None
        self.live = LiveAnswer()
        self.saved = False  # what is still measured after the answer may be interrupted for the next prompt
        self._thread = asyncio.ensure_future(asyncio.to_thread(self._run))

    def _run(self) -> BaseException | None:
        """Do the job from its first to its last event, and return what went wrong, if anything did."""
        try:
            self._loader.start()  # again, if it was stopped or failed
            self.models = models = self._loader.models(wait=True)
            for event in self.job(models):
                self.live.take(event)
                if self._stopped_s is not None:  # asked while the models were not yet at work
                    models.cancel()
        except BaseException as failure:  # noqa: BLE001 - the screen tells it
            return failure
        return None

    async def ends_within(self, seconds: float) -> bool:
        """Wait for the end of the thread, and tell whether it came."""
        done, _ = await asyncio.wait([self._thread], timeout=seconds)
        return bool(done)

    @property
    def error(self) -> BaseException | None:
        """What went wrong with an answer that has ended."""
        return self._thread.result()

    @property
    def is_stuck(self) -> bool:
        """Whether it was to stop a while ago."""
        return self._stopped_s is not None and time.monotonic() - self._stopped_s >= STUCK_S

    @property
    def is_stopped(self) -> bool:
        """Whether somebody wanted it to end."""
        return self._stopped_s is not None

    def stop(self) -> None:
        """End the answer, or the loading that it waits for."""
        self._stopped_s = self._stopped_s or time.monotonic()
        if self.models is not None:
            self.models.cancel()
        else:
            self._loader.cancel()
