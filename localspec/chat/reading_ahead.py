"""What idle models read before the next answer: the chat as it will be asked, with what is typed so far."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from localspec.chat.loading import ModelLoader
from localspec.chat.messages import Attachment
from localspec.chat.prompting import question_of
from localspec.chat.session import ChatSession
from localspec.inference.interface import OpenModels, ReadsAhead
from localspec.types.events import ReadAhead

MIN_TYPED = 24  # tokens of an unsent question that are worth reading
_UNFINISHED_WORD = re.compile(r"\s*\S*\Z")


class ReadingAhead:
    """Asks the open models to read ahead for a session's chat; every method returns at once."""

    def __init__(
        self, session: ChatSession, loader: ModelLoader, is_working: Callable[[], bool] = lambda: False
    ) -> None:
        """Take the session and its models; nothing is read while `is_working`."""
        self._session = session
        self._loader = loader
        self._is_working = is_working
        self._has_files = False
        self._models: ReadsAhead | None = None  # which have something to read

    def ask(self, text: str = "", files: Sequence[Attachment] = (), tokens: int = 0) -> None:
        """Have the open chat read with an unsent question of so many tokens, up to its last whole word.

        A short question is left out, and so is a command.
        """
        models = self._able(self._loader.ready)
        if models is None or self._is_working():
            return
        is_short = tokens < MIN_TYPED and not files
        begun = "" if is_short or text.startswith("/") else _UNFINISHED_WORD.sub("", text)
        self._has_files, self._models = bool(files), models
        models.read_ahead(self._session.next_request(models, question_of(begun, files)))

    def stop(self) -> None:
        """Have nothing more read: something is asked."""
        if self._models is not None:
            self._models.read_ahead(None)
        self._models = None

    def so_far(self) -> ReadAhead | None:
        """Return how much is read, None where nothing is to be read."""
        return None if self._models is None else self._models.read_so_far()

    @property
    def has_read_files(self) -> bool:
        """Return whether the attached files are read, with what else precedes the question."""
        so_far = self.so_far()
        return self._has_files and so_far is not None and so_far.tokens == so_far.total

    def _able(self, models: OpenModels | None) -> ReadsAhead | None:
        """Return the models if they can read ahead and may."""
        if self._session.reads_ahead and isinstance(models, ReadsAhead):
            return models
        self.stop()
        return None
