"""What a server said, for those who cannot wait: asked in the background, and remembered for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from localspec.errors import LocalSpecError

T = TypeVar("T")
FRESH_S = 60.0  # after which something is asked again
_MOST = 16  # answers that are remembered


@dataclass(frozen=True, slots=True)
class Known(Generic[T]):
    """An answer of a server, or the problem with it; neither before the first one has come."""

    answer: T | None = None
    problem: str = ""
    is_asked: bool = False  # at this moment


class Memory:
    """The answers of a server by what was asked. `on_news` is called in another thread when one has come."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.on_news: Callable[[], None] = lambda: None
        self._now = now
        self._known: dict[Hashable, tuple[float, Known[Any]]] = {}
        self._asked: set[Hashable] = set()
        self._lock = threading.Lock()

    def put(self, question: Hashable, known: Known[Any]) -> None:
        """Remember an answer in place of the oldest one."""
        with self._lock:
            self._known.pop(question, None)
            self._known[question] = (self._now(), known)
            while len(self._known) > _MOST:
                del self._known[next(iter(self._known))]

    def known(self, question: Hashable, ask: Callable[[], T] | None = None) -> Known[T]:
        """Return the latest answer; if that is old, have `ask` called in the background, once at a time."""
        with self._lock:
            nothing: Known[T] = Known()
            since, found = self._known.get(question, (0.0, nothing))
            if question in self._asked:
                return replace(found, is_asked=True)
            if ask is None or (question in self._known and self._now() - since < FRESH_S):
                return found
            self._asked.add(question)
        threading.Thread(
            target=self._ask, args=(question, ask), name="localspec-mcp-known", daemon=True
        ).start()
        return replace(found, is_asked=True)

    def _ask(self, question: Hashable, ask: Callable[[], object]) -> None:
        try:
            self.put(question, Known(ask()))
        except LocalSpecError as error:
            self.put(question, Known(problem=str(error)))
        finally:
            with self._lock:
                self._asked.discard(question)
            self.on_news()
