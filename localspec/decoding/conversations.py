"""KV caches of conversations that gave way to others, saved in memory for their next turns.

Copies on disk are the same ones. They are written from memory while their conversations rest, and read back
into memory before a prompt that they begin is placed.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from localspec.decoding.drafters.drafter import DraftState
from localspec.decoding.loop import Decoder
from localspec.decoding.prefixes import begin_alike, common_prefix
from localspec.errors import EngineError
from localspec.types.models import CachesOnDisk, SavedConversations
from localspec.types.saved_states import CachedText, ConversationCopy

FEWEST = 16  # tokens that are worth a copy of a cache ...
_SHARE = 16  # ... of up to this many times as many: copying is much faster than processing
_NEIGHBOURS = 32  # in the order of texts, of which some may be earlier turns of one
FEWEST_ON_DISK = 128  # tokens that are worth a file


class DiskCopies(Protocol):
    """Copies that outlive the program. Its methods are callable from any thread."""

    def find(
        self,
        prompt: Sequence[int],
        adapters: tuple[float, ...],
        at_hand: int,
        most: int,
        is_wanted: Callable[[], bool],
    ) -> ConversationCopy | None:
        """Read the copy of at most that many bytes with the longest prefix of a prompt, if that is worth it.

        `at_hand` is the number of tokens of the prompt that are to be had at no cost; `adapters` are the
        scales with which it was to be read.
        """

    def keep(self, copy: ConversationCopy, *, at_once: bool = False) -> None:
        """Have a copy written once its conversation has rested for a while, or `at_once`; never waits."""

    def drop(self, copy: ConversationCopy) -> None:
        """Leave a copy unwritten: its conversation goes on."""

    def hurry(self, copy: ConversationCopy) -> None:
        """Have a copy written now or never, because it leaves memory."""

    def erase(self, text: Sequence[int], adapters: tuple[float, ...]) -> None:
        """Delete the copies of a text, and write none of those that wait."""

    def figures(self) -> CachesOnDisk:
        """Return the size of all copies on disk."""


class _Store:
    """Saved conversations, the least recently used first, and the limit of their bytes."""

    def __init__(self) -> None:
        self.saved: dict[ConversationCopy, None] = {}
        self.size = 0  # of them, in bytes
        self.limit = 0
        self.disk: DiskCopies | None = None
        self.adapters: tuple[float, ...] = ()  # scales with which all present texts were read
        self._by_text: list[ConversationCopy] = []  # in the order of `_key`
        self._lock = threading.Lock()  # of the two; some look while another answer saves

    def usable(self, adapters: tuple[float, ...]) -> list[ConversationCopy]:
        """Return the saved conversations that were read with some adapters."""
        return [each for each in self.saved.copy() if each.adapters == adapters]

    def add(self, copy: ConversationCopy) -> None:
        """Save a conversation, as the one that was used last."""
        with self._lock:
            self.saved[copy] = None
            self.size += copy.size
            insort(self._by_text, copy, key=_key)

    def remove(self, copy: ConversationCopy) -> None:
        """Drop a saved conversation."""
        with self._lock:
            del self.saved[copy]
            self.size -= copy.size
            place = bisect_left(self._by_text, _key(copy), key=_key)
            del self._by_text[self._by_text.index(copy, place)]

    def near(self, text: Sequence[int], adapters: tuple[float, ...], most: int) -> list[ConversationCopy]:
        """Return the usable copies whose texts come right before and after a text in order, `most` of each.

        No other shares more with it.
        """
        with self._lock:
            place = bisect_left(self._by_text, (adapters, (*text,)), key=_key)
            found = self._by_text[max(0, place - most) : place + most]
        return [each for each in found if each.adapters == adapters]

    def longest(
        self, prompt: Sequence[int], adapters: tuple[float, ...]
    ) -> tuple[ConversationCopy | None, int]:
        """Return the usable copy with the longest prefix of a prompt, and that prefix's length."""
        near = self.near(prompt, adapters, 1) if prompt else []
        shared = [common_prefix(each.tokens, prompt) for each in near]
        return (near[shared.index(max(shared))], max(shared)) if near else (None, 0)


def _key(copy: ConversationCopy) -> tuple[tuple[float, ...], tuple[int, ...]]:
    return copy.adapters, copy.tokens


class Conversations:
    """Copies of caches, of at most `limit` bytes together: the least recently used go first."""

    def __init__(self, *caches: Decoder | DraftState, beside: Conversations | None = None) -> None:
        """Take the target's cache, and perhaps the draft model's.

        Those `beside` others have the same copies and the same limit.
        """
        self._caches = caches
        self.store: _Store = _Store() if beside is None else beside.store
        self.kept_as: str | None = ""  # of the present text, as in `Request`
        self._sent: list[int] = []  # the present text that was last sent to the disk

    @property
    def limit(self) -> int:
        """Return the limit in bytes."""
        return self.store.limit

    def forget_draft(self) -> None:
        """From now on save only the target's caches."""
        self._caches = self._caches[:1]

    def figures(self) -> SavedConversations:
        """Return the saved caches' size; callable from any thread."""
        saved = self.store.saved.copy()
        disk = self.store.disk
        tokens = sum(len(each.tokens) for each in saved)
        found = SavedConversations(len(saved), tokens, self.store.size, self.limit)
        return found if disk is None else replace(found, on_disk=disk.figures())

    def keep(self, limit: int, disk: DiskCopies | None = None) -> None:
        """Set the limit in bytes, and the copies on disk."""
        self.store.limit = limit
        self.store.disk = disk
        self._make_room(0, 0)

    def find_on_disk(
        self,
        prompt: Sequence[int],
        adapters: tuple[float, ...],
        at_hand: int,
        is_wanted: Callable[[], bool],
    ) -> ConversationCopy | None:
        """Read a copy from disk if it is worth more than those in memory; uses nothing that answers need."""
        disk = self.store.disk
        if disk is None:
            return None
        at_hand = max(at_hand, self.store.longest(prompt, adapters)[1])
        return disk.find(prompt, adapters, at_hand, self.limit, is_wanted)

    def take_in(self, copy: ConversationCopy) -> None:
        """Hold a copy from disk in memory, unless it is there or finds no room."""
        near = self.store.near(copy.tokens, copy.adapters, 1)
        is_new = all(each.tokens != copy.tokens for each in near)
        if is_new and self._make_room(0, copy.size):
            self.store.add(copy)

    @property
    def is_unwritten(self) -> bool:
        """Return whether the present text is worth a file and was not sent to the disk."""
        held = self._caches[0].cached_tokens()
        return self._goes_to_disk(len(held)) and held != self._sent

    def write_present(self) -> None:
        """Have the present text written to the disk; it stays in the caches."""
        assert self.store.disk is not None
        self._sent = self._caches[0].cached_tokens()
        copy = self._copied(lambda size: size <= self.limit)
        if copy is not None:
            self.store.disk.keep(copy, at_once=True)

    def copy_of(self, text: Sequence[int], adapters: tuple[float, ...]) -> ConversationCopy | None:
        """Return a copy of a text's caches, or of one that continues it, read with some adapters.

        None if there is none. It is made of the caches if they hold the text. Raises `EngineError` if there
        is no memory for it.
        """
        if adapters != self.store.adapters or self._caches[0].cached_tokens() != [*text]:
            usable = self.store.usable(adapters)
            continued = (each for each in usable if begin_alike(each.tokens, text, len(text)))
            return min(continued, key=lambda each: len(each.tokens), default=None)
        copy = self._copied(lambda _size: True)
        if copy is None:
            raise EngineError("there is not enough memory for a copy of the conversation")
        return copy

    def erase(self, text: Sequence[int], adapters: tuple[float, ...]) -> None:
        """Drop the saved copies of a text that was read with some adapters, also those on disk."""
        for each in self.store.usable(adapters):
            if _is_same(each.tokens, text):
                self.store.remove(each)
        if self.store.disk is not None:
            self.store.disk.erase(text, adapters)

    def _goes_to_disk(self, tokens: int) -> bool:
        return self.store.disk is not None and self.kept_as is not None and tokens >= FEWEST_ON_DISK

    def turn_to(self, prompt: Sequence[int], *, evicts: bool = True, elsewhere: int = 0) -> bool:
        """Restore the saved cache with the longest prefix of `prompt`, if that saves enough tokens.

        Cells that this or the prompt would drop are saved first. Without `evicts`, nothing changes where that
        would cost a conversation its cache; returns whether it turned. `elsewhere` is the number of
        tokens of the prompt that are to be had at no cost.
        """
        held = self._caches[0].cached_tokens()
        shared = common_prefix(held, prompt)
        loses = len(held) - shared >= worth(held)
        if not self.limit:
            return evicts or not loses
        found, common = self.store.longest(prompt, self.store.adapters)
        if found is not None and common - max(shared, elsewhere) < worth(found.tokens):
            found = None
        if found is not None:
            self.store.remove(found)  # removed first, so saving the current cache cannot evict it
        is_kept = not loses or self._keep_present(0 if found is None else found.size, evicts=evicts)
        if not is_kept and not evicts:
            if found is not None:
                self.store.add(found)
            return False
        if found is not None:
            self.take_up(found)
            if len(found.tokens) - common >= worth(found.tokens):  # another prompt may continue from there
                self.store.add(found)
            elif self.store.disk is not None:
                self.store.disk.drop(found)
        return True

    def _keep_present(self, taken: int, *, evicts: bool) -> bool:
        """Save the caches, replacing saved prefixes of the same text, with `taken` bytes still free.

        Return whether there was memory for the target's.
        """
        text = self._caches[0].cached_tokens()
        disk = self.store.disk
        for each in self.store.near(text, self.store.adapters, _NEIGHBOURS):
            if begin_alike(each.tokens, text, len(each.tokens) - worth(each.tokens) + 1):
                self.store.remove(each)
                if disk is not None:
                    disk.drop(each)
        copy = self._copied(partial(self._make_room, taken, evicts=evicts))
        if copy is None:
            return False
        self.store.add(copy)
        if disk is not None and self._goes_to_disk(len(copy.tokens)):
            disk.keep(copy)
        return True

    def _copied(self, room: Callable[[int], bool]) -> ConversationCopy | None:
        """Return a copy of the caches; None if there is no memory for the target's.

        That is the one that costs most to read again.
        """
        target, *draft = self._caches
        copy = _copied(target, room)
        if copy is None:
            return None
        size = copy.saved.size
        other = _copied(draft[0], lambda more: room(size + more)) if draft else None
        return ConversationCopy(copy, other, self.kept_as, self.store.adapters)

    def take_up(self, copy: ConversationCopy) -> None:
        """Restore a copy into the caches, which are then as if they had read its text."""
        self.kept_as = copy.kept_as
        for cache, cached in zip(self._caches, (copy.target, copy.draft), strict=False):
            if cached is not None:
                cache.model.restore(cached.saved, cached.tokens)
                cache.set_cached(cached.tokens)

    def _make_room(self, taken: int, size: int, *, evicts: bool = True) -> bool:
        """Evict the least recently used until `size` bytes are free; return whether they are."""
        store = self.store
        if taken + size + (0 if evicts else store.size) > self.limit:
            return False
        while store.saved and taken + size + store.size > self.limit:
            evicted = next(iter(store.saved))
            store.remove(evicted)
            if store.disk is not None:
                store.disk.hurry(evicted)
        return True


def _copied(cache: Decoder | DraftState, room: Callable[[int], bool]) -> CachedText | None:
    saved = cache.model.save(room)
    return None if saved is None else CachedText(tuple(cache.cached_tokens()[: saved.length]), saved)


def _is_same(text: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether one of two texts is the beginning of the other, but perhaps for its end."""
    shorter = min(text, other, key=len)
    return len(shorter) - common_prefix(text, other) < worth(shorter)


def worth(text: Sequence[int]) -> int:
    """Return the number of tokens that a copy of a text's cache must save to be worth its time."""
    return max(FEWEST, len(text) // _SHARE)
