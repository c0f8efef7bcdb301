"""KV caches of conversations that gave way to others, saved in memory for their next turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from localspec.decoding.drafters.drafter import DraftState, common_prefix
from localspec.decoding.loop import Decoder
from localspec.decoding.model import SavedState
from localspec.types.models import SavedConversations

FEWEST = 16  # tokens that are worth a copy of a cache ...
_SHARE = 16  # ... of up to this many times as many: copying is much faster than processing


@dataclass(frozen=True, slots=True)
class _Conversation:
    text: tuple[int, ...]  # in the target's cache
    states: tuple[tuple[SavedState, tuple[int, ...]] | None, ...]  # of each model, with its text

    @property
    def size(self) -> int:
        return sum(each[0].size for each in self.states if each is not None)


class _Store:
    """Saved conversations, the least recently used first, and the limit of their bytes."""

    def __init__(self) -> None:
        self.saved: list[_Conversation] = []
        self.limit = 0


class Conversations:
    """Copies of caches, of at most `limit` bytes together: the least recently used go first."""

    def __init__(self, *caches: Decoder | DraftState, beside: Conversations | None = None) -> None:
        """Take the target's cache, and perhaps the draft model's.

        Those `beside` others have the same copies and the same limit.
        """
        self._caches = caches
        self.store: _Store = _Store() if beside is None else beside.store
        self._saved = self.store.saved

    @property
    def limit(self) -> int:
        """Return the limit in bytes."""
        return self.store.limit

    def forget_draft(self) -> None:
        """From now on save only the target's caches."""
        self._caches = self._caches[:1]

    def figures(self) -> SavedConversations:
        """Return the saved caches' size; callable from any thread."""
        saved = self._saved.copy()
        tokens, size = sum(len(each.text) for each in saved), sum(each.size for each in saved)
        return SavedConversations(len(saved), tokens, size, self.limit)

    def keep(self, limit: int) -> None:
        """Set the limit in bytes."""
        self.store.limit = limit
        self._make_room(0, 0)

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
        found = max(self._saved, key=lambda each: common_prefix(each.text, prompt), default=None)
        common = 0 if found is None else common_prefix(found.text, prompt)
        if found is not None and common - max(shared, elsewhere) < worth(found.text):
            found = None
        if found is not None:
            self._saved.remove(found)  # removed first, so saving the current cache cannot evict it
        is_kept = not loses or self._keep_present(0 if found is None else found.size, evicts=evicts)
        if not is_kept and not evicts:
            if found is not None:
                self._saved.append(found)
            return False
        if found is not None:
            self._take_up(found)
            if len(found.text) - common >= worth(found.text):  # another prompt may continue from there
                self._saved.append(found)
        return True

    def _keep_present(self, taken: int, *, evicts: bool) -> bool:
        """Save the caches, replacing saved prefixes of the same text, with `taken` bytes still free.

        Return whether there was memory for the target's.
        """
        text = self._caches[0].cached_tokens()
        for each in self._saved.copy():
            if len(each.text) - common_prefix(each.text, text) < worth(each.text):
                self._saved.remove(each)
        states: list[tuple[SavedState, tuple[int, ...]] | None] = []
        for cache in self._caches:
            state = cache.model.save(partial(self._make_room, taken, evicts=evicts))
            if state is None and not states:
                return False  # the target's is what costs most to read again
            states.append(None if state is None else (state, tuple(cache.cached_tokens()[: state.length])))
            taken += 0 if state is None else state.size
        assert states[0] is not None
        self._saved.append(_Conversation(states[0][1], tuple(states)))
        return True

    def _take_up(self, conversation: _Conversation) -> None:
        for cache, saved in zip(self._caches, conversation.states, strict=False):
            if saved is not None:
                state, text = saved
                cache.model.restore(state)
                cache.set_cached(text)

    def _make_room(self, taken: int, size: int, *, evicts: bool = True) -> bool:
        """Evict the least recently used until `size` bytes are free; return whether they are."""
        if taken + size + (0 if evicts else sum(each.size for each in self._saved)) > self.limit:
            return False
        while self._saved and taken + size + sum(each.size for each in self._saved) > self.limit:
            del self._saved[0]
        return True


def worth(text: Sequence[int]) -> int:
    """Return the number of tokens that a copy of a text's cache must save to be worth its time."""
    return max(FEWEST, len(text) // _SHARE)
