"""What idle models read before the next answer: the chat as it will be asked, with what is typed so far."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import takewhile

from localspec.chat.loading import ModelLoader
from localspec.chat.messages import Attachment
from localspec.chat.prompting import question_of
from localspec.chat.session import ChatSession
from localspec.inference.interface import OpenModels, ReadsAhead
from localspec.types.events import ReadAhead

MIN_TYPED = 24  # tokens of an unsent question that are worth reading
_LONGEST_WORD = 40  # characters: what is longer, such as a text in Chinese, is read but for its end


class ReadingAhead:
    """Asks the open models to read ahead for a session's chat; every method returns at once."""

    def __init__(
        self, session: ChatSession, loader: ModelLoader, is_working: Callable[[], bool] = lambda: False
    ) -> None:
        """Take the session and its models; nothing is read while `is_working`."""
        self._session = session
        self._loader = loader
        self._is_working = is_working
        self._sending = threading.Lock()  # so that nothing older than `stop` is asked after it
        self._models: ReadsAhead | None = None  # which have something to read
        self._so_far: ReadAhead | None = None
        self._files: tuple[Attachment, ...] = ()  # of what is to be read
        self._read_files: tuple[Attachment, ...] = ()

    def ask(self, text: str = "", files: Sequence[Attachment] = (), tokens: int = 0) -> None:
        """Have the open chat read with an unsent question of that many tokens, up to its last whole word.

        A short question is left out, and so is a command.
        """
        models = self._able(self._loader.ready)
        if models is None:
            return
        is_short = tokens < MIN_TYPED and not files
        begun = "" if is_short or text.startswith("/") else whole_words(text)
        request = self._session.next_request(models, question_of(begun, files))
        with self._sending:
            if not self._is_working():
                models.read_ahead(request)
                self._models = models
                self._files = tuple(files)

    def stop(self) -> None:
        """Have nothing more read: something is asked."""
        with self._sending:
            if self._models is not None:
                self._models.read_ahead(None)
            self._models = self._so_far = None
            self._files = self._read_files = ()

    def so_far(self) -> ReadAhead | None:
        """Return the progress of reading: the last that is known, None where nothing is to be read."""
        models = self._models
        files = self._files
        if models is None:
            return None
        if (news := models.read_so_far()) is not None:
            self._so_far = news
            if news.tokens == news.total:
                self._read_files = files
        return self._so_far

    def files_read(self, files: Sequence[Attachment]) -> int:
        """Return the number of attached files, from the first, that are read."""
        pairs = zip(files, self._read_files, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def _able(self, models: OpenModels | None) -> ReadsAhead | None:
        """Return the models if they can read ahead and may."""
        if self._session.shared.reads_ahead and isinstance(models, ReadsAhead):
            return models
        self.stop()
        return None


def whole_words(text: str) -> str:
    """Return a text without a last word that may still grow."""
    if not text or text[-1].isspace():
        return text.rstrip()
    *before, last = text.rsplit(maxsplit=1)
    if len(last) > _LONGEST_WORD:
        return text[:-_LONGEST_WORD].rstrip()
    return before[0].rstrip() if before else ""
