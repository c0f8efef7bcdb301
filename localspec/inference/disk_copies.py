"""Copies of conversations' caches on disk: which models they fit, when they are written and read."""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from localspec.errors import LocalSpecError
from localspec.gguf import part_name
from localspec.llama.context import Context, state_memory
from localspec.storage.cache_file import DamagedFileError
from localspec.storage.cache_folder import CacheFolder, digest, is_continued, shared
from localspec.storage.kept_caches import figures, forget_named
from localspec.storage.pair_identity import MachineFacts, fingerprint
from localspec.types.models import CachesOnDisk
from localspec.types.saved_states import ConversationCopy

logger = logging.getLogger(__name__)

REST_S = 60.0  # without a further question, until a conversation is written: its text is always written whole
_SHARE = 4  # of a text that has to be of use: reading a file may take as long as the models for short ones
_FEWEST = 64  # tokens
_LEAVING_S = 0.5  # for a file that is given up
_ORIGINAL = "{arch}.rope.scaling.original_context_length"


def identity_of(context: Context, facts: MachineFacts, scales: Sequence[float] = ()) -> str:
    """Return a digest of everything that a cache depends on; raises ModelFileError.

    That is the model's files and the figures in their header, the types and the layout of the cache, the
    programs and processors that computed it, whether the context is one for which llama.cpp turns
    positions in another way (LongRoPE), and the LoRA adapters with their `scales`.
    """
    model = context.model
    options = context.options
    header = model.header
    first = options.path
    split = part_name(first.name)
    parts = [first.with_name(name) for name in split.every] if split else [first]
    own = f"{header.architecture}."
    figures_of_model = {
        **{key: value for key, value in header.values.items() if key.startswith(own)},
        **{key: value for key, value in header.numbers.items() if key.startswith(own)},
    }
    original = header.integer(_ORIGINAL)
    depends_on = (
        fingerprint(first),
        [part.stat().st_mtime_ns for part in parts],
        sorted(figures_of_model.items()),
        (options.kv_type_k, options.kv_type_v, options.flash_attention, context.is_windowed),
        (options.devices, options.split_mode, sorted(model.cards)),
        (facts.llama_cpp, facts.processor, facts.devices),
        0 < original < (context.cells if context.is_unified else context.context_size),
    )
    adapters = tuple(
        (fingerprint(adapter.path), adapter.path.stat().st_mtime_ns, scale)
        for adapter, scale in zip(options.adapters, scales, strict=False)
        if scale
    )
    return digest(repr((*depends_on, adapters) if adapters else depends_on).encode())


class DiskHome:
    """Files of conversations for one pair of models, written by a thread of its own.

    What goes wrong with files costs a line in the log for each kind of problem, and never an answer.
    """

    def __init__(
        self, limit: int, models: Callable[[tuple[float, ...]], Sequence[str]], context: int
    ) -> None:
        """Take the limit in bytes, the `identity_of` both models by scales, and the longest text."""
        self._limit = limit
        self._models = models
        self._folders: dict[tuple[float, ...], CacheFolder] = {}  # by those scales
        self._context = context
        self._changed = threading.Condition()
        self._due: dict[ConversationCopy, float] = {}  # when each is to be written
        self._leaving: ConversationCopy | None = None  # memory
        self._writing: ConversationCopy | None = None
        self._forgotten: set[str] = set()
        self._told: set[str] = set()  # of problems
        self._is_closed = False
        threading.Thread(target=self._write_all, name="localspec-caches", daemon=True).start()

    def find(
        self,
        prompt: Sequence[int],
        adapters: tuple[float, ...],
        at_hand: int,
        most: int,
        is_wanted: Callable[[], bool],
    ) -> ConversationCopy | None:
        """Read the copy with the longest prefix of a prompt, where that is worth it."""
        text = array("i", prompt)
        try:
            folder = self._folder(adapters)
            files, damaged = folder.files()
            for problem in damaged:
                self._tell("a saved cache was damaged, and is deleted", problem)
            found = None
            gain = 0
            for each in files:
                more = shared(each.tokens, text) - at_hand
                fits = len(each.tokens) <= self._context and each.size <= most
                if fits and more > gain and more >= max(_FEWEST, len(each.tokens) // _SHARE):
                    found = each
                    gain = more
            copy = None if found is None else folder.read(found, state_memory, is_wanted)
            return None if copy is None else replace(copy, adapters=adapters)
        except (OSError, LocalSpecError, DamagedFileError) as error:
            if not isinstance(error, FileNotFoundError):  # another program has removed it
                self._tell("a saved cache cannot be read", error)
            return None

    def keep(self, copy: ConversationCopy, *, at_once: bool = False) -> None:
        """Have a copy written once its conversation has rested for a while, or `at_once`."""
        with self._changed:
            if copy.kept_as not in self._forgotten and not self._is_closed:
                self._due[copy] = time.monotonic() + (0.0 if at_once else REST_S)
                self._changed.notify_all()

    def drop(self, copy: ConversationCopy) -> None:
        """Leave a copy unwritten: its conversation goes on."""
        with self._changed:
            self._due.pop(copy, None)

    def hurry(self, copy: ConversationCopy) -> None:
        """Have a copy written next, or never if another one is to be: it takes memory until then."""
        with self._changed:
            if copy not in self._due:
                return
            if self._leaving in self._due:
                del self._due[copy]
            else:
                self._leaving = copy
                self._due[copy] = 0.0
                self._changed.notify_all()

    def _folder(self, adapters: tuple[float, ...]) -> CacheFolder:
        """Return the files of texts that were read with some adapters; raises ModelFileError."""
        with self._changed:
            if adapters not in self._folders:
                self._folders[adapters] = CacheFolder(self._limit, self._models(adapters))
            return self._folders[adapters]

    def erase(self, text: Sequence[int], adapters: tuple[float, ...]) -> None:
        """Delete the files of a text, and write none of the copies of it that wait."""
        tokens = array("i", text)
        with self._changed:
            same = (copy for copy in self._due if copy.adapters == adapters)
            for copy in [copy for copy in same if is_continued(array("i", copy.tokens), tokens)]:
                del self._due[copy]
        try:
            self._folder(adapters).erase(text)
        except LocalSpecError as error:
            self._tell("a saved cache cannot be deleted", error)

    def forget(self, name: str) -> None:
        """Delete the files of a name, and write none before it is used again."""
        with self._changed:
            self._forgotten.add(name)
            for copy in [copy for copy in self._due if copy.kept_as == name]:
                del self._due[copy]
        forget_named(name)

    def remember(self, name: str | None) -> None:
        """Keep copies under a name again."""
        with self._changed:
            self._forgotten.discard(name or "")

    def figures(self) -> CachesOnDisk:
        """Return the size of all copies on disk."""
        return figures(self._limit)

    def finish(self, patience_s: float) -> None:
        """Write all that waits, what came last first, for so long at most; then write no more."""
        ends = time.monotonic() + patience_s
        with self._changed:
            self._due = dict.fromkeys(reversed(self._due), 0.0)
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: not self._due and self._writing is None, max(0.0, ends - time.monotonic())
            )
            self._is_closed = True
            self._due.clear()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._writing is None, _LEAVING_S)

    def _write_all(self) -> None:
        while (copy := self._next()) is not None:
            try:
                self._folder(copy.adapters).write(copy, partial(self._is_wanted, copy))
            except (OSError, LocalSpecError) as error:
                self._tell("the cache of a conversation cannot be saved", error)
            with self._changed:
                self._writing = None
                is_forgotten = copy.kept_as in self._forgotten
                self._changed.notify_all()
            if is_forgotten and copy.kept_as:  # while it got its name
                with suppress(LocalSpecError):
                    forget_named(copy.kept_as)

    def _next(self) -> ConversationCopy | None:
        """Wait for the next copy to write; None at the end."""
        with self._changed:
            while not self._is_closed:
                copy = min(self._due, key=self._due.__getitem__, default=None)
                left_s = None if copy is None else self._due[copy] - time.monotonic()
                if copy is None or (left_s is not None and left_s > 0):
                    self._changed.wait(left_s)
                    continue
                del self._due[copy]
                self._writing = copy
                return copy
        return None

    def _is_wanted(self, copy: ConversationCopy) -> bool:
        return not self._is_closed and copy.kept_as not in self._forgotten

    def _tell(self, what: str, error: Exception) -> None:
        """Write a problem to the log, one of its kind."""
        if what not in self._told:
            self._told.add(what)
            logger.warning("%s: %s", what, error)
