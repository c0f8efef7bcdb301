"""One answer: a thread that works with the models, and what the screen may know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from textual.message import Message

from localspec.chat.answering import AnswerEvent, LiveAnswer
from localspec.chat.loading import ModelLoader
from localspec.inference.interface import OpenModels

Job = Callable[[OpenModels], Iterator[AnswerEvent]]


@dataclass
class AnswerEnded(Message):
    """The thread is done; everything that it said is in `answer.live`."""

    answer: Answering
    error: BaseException | None


class Answering:
    """The running answer. `run` belongs to a worker thread, everything else to the screen's."""

    def __init__(self, loader: ModelLoader, job: Job) -> None:
        self._loader = loader
        self._job = job
        self._models: OpenModels | None = None
        self._stopping = False
        self.live = LiveAnswer()
        self.saved = False  # what is still measured after the answer may be interrupted for the next prompt

    def run(self, post: Callable[[AnswerEnded], object]) -> None:
        """Do the job from its first to its last event, then post `AnswerEnded`."""
        error: BaseException | None = None
        try:
            self._loader.start()  # again, if it was stopped or failed
            self._models = models = self._loader.models(wait=True)
            for event in self._job(models):
                self.live.take(event)
                if self._stopping:  # asked while the models were not yet at work
                    models.cancel()
        except BaseException as failure:  # noqa: BLE001 - the screen tells it
            error = failure
        finally:
            self._models = None
            post(AnswerEnded(self, error))

    def stop(self) -> None:
        """End the answer, or the loading that it waits for."""
        self._stopping = True
        if (models := self._models) is not None:  # the thread may end at any moment
            models.cancel()
        else:
            self._loader.cancel()
