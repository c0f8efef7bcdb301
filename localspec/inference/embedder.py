"""The embedding model of a server, in a process of its own; if native code ends that, a new one starts."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from localspec.child_process import Child, ChildEndedError, pickled, take_pipes
from localspec.errors import EngineDied, LocalSpecError
from localspec.types.models import ModelInfo, ModelOptions

if TYPE_CHECKING:
    from localspec.llama.embedding import Embedding

_CODE = "from localspec.inference.embedder import main; main()"


class Embedder:
    """An open embedding model; any thread may ask, and texts are read one after the other."""

    def __init__(self, options: ModelOptions) -> None:
        """Open it; raises UserError and EngineError."""
        self._options = options
        self._lock = threading.Lock()
        self._child, self.info = self._started()

    def embed(self, text: str | Sequence[int | str]) -> Embedding:
        """Return the vector of a text, or of tokens and texts; raises UserError and EngineError.

        If the process has died, the next call starts another.
        """
        with self._lock:
            if self._child.has_ended:
                self._child, self.info = self._started()
            return cast("Embedding", self._asked(self._child, text))

    def close(self) -> None:
        """End the process."""
        self._child.end()

    def _started(self) -> tuple[Child[object], ModelInfo]:
        child = Child(_CODE, "the process for embeddings", pickled)
        try:
            return child, cast(ModelInfo, self._asked(child, self._options))
        except BaseException:
            child.end()
            raise

    def _asked(self, child: Child[object], message: object) -> object:
        try:
            reply = child.ask(message)
        except ChildEndedError as error:
            raise EngineDied(f"the process for embeddings ended: {error.how}") from None
        if isinstance(reply, LocalSpecError):
            raise reply
        return reply


def main() -> None:
    """Open the model of the first message, and embed the texts of the others."""
    from localspec.llama.embedding import open_embedding_model

    requests, replies = take_pipes()
    model = None
    with suppress(EOFError):
        while True:
            message = pickle.load(requests)
            try:
                if model is None:
                    model = open_embedding_model(message)
                    reply: object = model.info
                else:
                    reply = model.embed(message)
            except LocalSpecError as error:
                reply = error
            pickle.dump(reply, replies)
            replies.flush()
