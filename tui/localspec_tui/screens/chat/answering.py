"""One answer at a time: a thread that works with the models, and what the screen may know of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from textual.message import Message

from localspec.chat.answering import AnswerEvent, LiveAnswer
from localspec.chat.loading import ModelLoader
from localspec.inference.interface import OpenModels

Job = Callable[[OpenModels], Iterator[AnswerEvent]]


@dataclass
class AnswerEnded(Message):
    """The thread is done; everything that it said is in `live`."""

    live: LiveAnswer
    error: BaseException | None


class Answering:
    """The running answer. `run` belongs to a worker thread, everything else to the screen's."""

    def __init__(self, loader: ModelLoader, post: Callable[[Message], object]) -> None:
        self._loader = loader
        self._post = post
        self._models: OpenModels | None = None
        self._stop = threading.Event()
        self.live = LiveAnswer()
        self.busy = False
        self.saved = False  # what is still measured after the answer may be interrupted for the next prompt

    def begin(self) -> None:
        """Get ready for `run`."""
        self.live, self.busy, self.saved = LiveAnswer(), True, False
        self._stop.clear()

    def finish(self) -> None:
        """Forget the answer, of which nothing more is wanted."""
        self.live, self.busy, self.saved = LiveAnswer(), False, False

    def run(self, job: Job) -> None:
        """Do one job from its first to its last event, then post `AnswerEnded`."""
        live = self.live
        error: BaseException | None = None
        try:
            self._loader.start()  # again, if it was stopped or failed
            self._models = models = self._loader.models(wait=True)
            for event in job(models):
                live.take(event)
                if self._stop.is_set():  # asked while the models were not yet at work
                    models.cancel()
        except BaseException as failure:  # noqa: BLE001 - the screen tells it
            error = failure
        finally:
            self._models = None
            self._post(AnswerEnded(live, error))

    def stop(self) -> None:
        """End the answer, or the loading that it waits for."""
        self._stop.set()
        if (models := self._models) is not None:  # the thread may end at any moment
            models.cancel()
        else:
            self._loader.cancel()
