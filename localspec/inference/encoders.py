"""The models of a server that write no text, each in a process of its own.

If native code ends that, a new one starts.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from localspec.child_process import Child, ChildEndedError, pickled, take_pipes
from localspec.errors import EngineDied, LocalSpecError
from localspec.types.models import ModelInfo, ModelOptions, Pooling

if TYPE_CHECKING:
    from localspec.llama.embedding import Embedding
    from localspec.llama.ranking import Relevance

_CODE = "from localspec.inference.encoders import main; main()"
Job = Literal["embeddings", "reranking"]


@dataclass(frozen=True, slots=True)
class _Opening:
    """The first message to a process: what to open, and for what."""

    options: ModelOptions
    job: Job
    pooling: Pooling | None = None  # of embeddings


class Encoder:
    """An open model; any thread may ask, and texts are read one after the other."""

    job: Job

    def __init__(self, options: ModelOptions, pooling: Pooling | None = None) -> None:
        """Open it, for embeddings with another pooling than the file's; raises UserError and EngineError."""
        self._opening = _Opening(options, self.job, pooling)
        self.pooling = pooling
        self._lock = threading.Lock()
        self._child, self.info = self._started()

    def close(self) -> None:
        """End the process."""
        self._child.end()

    def ask(self, message: object) -> object:
        """Return the process's reply; raises UserError and EngineError.

        If the process has died, the next call starts another.
        """
        with self._lock:
            if self._child.has_ended:
                self._child, self.info = self._started()
            return self._asked(self._child, message)

    def _started(self) -> tuple[Child[object], ModelInfo]:
        child = Child(_CODE, f"the process for {self.job}", pickled)
        try:
            return child, cast(ModelInfo, self._asked(child, self._opening))
        except BaseException:
            child.end()
            raise

    def _asked(self, child: Child[object], message: object) -> object:
        try:
            reply = child.ask(message)
        except ChildEndedError as error:
            raise EngineDied(f"the process for {self.job} ended: {error.how}") from None
        if isinstance(reply, LocalSpecError):
            raise reply
        return reply


class Embedder(Encoder):
    """An open embedding model."""

    job = "embeddings"

    def embed(self, text: str | Sequence[int | str]) -> Embedding:
        """Return the vector of a text, or of tokens and texts; raises what `ask` raises."""
        return cast("Embedding", self.ask(text))


class Reranker(Encoder):
    """An open model for reranking."""

    job = "reranking"

    def score(self, query: str, document: str) -> Relevance:
        """Return the relevance of a document; raises what `ask` raises."""
        return cast("Relevance", self.ask((query, document)))


def main() -> None:
    """Open the model of the first message, and answer the others with it."""
    requests, replies = take_pipes()
    answers = None
    with suppress(EOFError):
        while True:
            message = pickle.load(requests)
            try:
                if answers is None:
                    answers, reply = _opened(message)
                else:
                    reply = answers(message)
            except LocalSpecError as error:
                reply = error
            pickle.dump(reply, replies)
            replies.flush()


def _opened(opening: _Opening) -> tuple[Callable[[Any], object], object]:
    """Open a model; return what answers messages, and its information."""
    if opening.job == "reranking":
        from localspec.llama.ranking import open_ranking_model

        ranking = open_ranking_model(opening.options)
        return lambda texts: ranking.score(*texts), ranking.info
    from localspec.llama.embedding import open_embedding_model

    model = open_embedding_model(opening.options, opening.pooling)
    return model.embed, model.info
