"""Grammars that hold in parts of an answer: from the head of a call to its end. All other text is free.

Heads are looked for in the bytes of tokens, so it does not matter how a vocabulary spells them. In thinking
and in blocks of code there are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

from localspec.code_fences import Fence, fences_after
from localspec.errors import UserError
from localspec.llama.grammar import CompiledGrammar, shared_tokens
from localspec.thinking_tags import THINKING_TAGS, ThinkingTags
from localspec.types.drafts import TokenMask
from localspec.types.request import Grammar, Trigger

LONGEST_HEAD = 1000  # bytes
_MASKS_KEPT = 64  # of the latest positions; more than a draft has

_CLOSING = {
    tags.opening.lower().encode(): re.compile(re.escape(tags.closing).encode(), re.IGNORECASE)
    for tags in THINKING_TAGS
}
_LONGEST_CLOSING = max(len(tags.closing.encode()) for tags in THINKING_TAGS)
_THINKING = re.compile(rb"[ \t]*(%s)" % b"|".join(map(re.escape, _CLOSING)), re.IGNORECASE)


class GrammarSource(Protocol):
    """The vocabulary of an answer, and grammars on it: what `Grammars` has."""

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token."""

    def byte_token(self, byte: int) -> int | None:
        """Return the token of a single byte, None without one."""

    def usable(self, grammar: Grammar) -> CompiledGrammar | None:
        """Return a grammar, None for one that cannot be used."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a trigger as a pattern of bytes."""

    pattern: re.Pattern[bytes]
    grammars: Mapping[bytes, Grammar]
    mark: bytes
    is_leading: bool

    @classmethod
    def of(cls, trigger: Trigger) -> Self:
        """Compile the head of a trigger; raises `UserError` for one that is no such expression."""
        grammars = {name.encode(): grammar for name, grammar in trigger.grammars}
        try:
            pattern = re.compile(trigger.head.encode())
        except re.error as error:
            raise UserError(f"the head of a trigger is no regular expression: {error}") from None
        if "name" not in pattern.groupindex:
            raise UserError("the head of a trigger has no group `name`")
        return cls(pattern, grammars, trigger.mark.encode(), trigger.is_leading)

    def found(self, data: bytearray, start: int) -> Iterator[re.Match[bytes]]:
        """Yield the heads from `start` on, near the end of the text."""
        if not self.is_leading:
            near = max(start, len(data) - LONGEST_HEAD)
            if data.find(self.mark, near) >= 0:
                yield from self.pattern.finditer(data, near)
        elif len(data) - start <= LONGEST_HEAD and (leading := self.pattern.match(data, start)):
            yield leading


class _Call:
    """A grammar from a head on, which has taken some tokens; they can be taken back."""

    def __init__(self, compiled: CompiledGrammar) -> None:
        self._compiled = compiled
        self._matcher = compiled.matcher.deep_copy()
        self._held: list[int] = []
        self._complete = [False]  # by number of tokens
        self._masks: dict[int, TokenMask | None] = {}  # by number of tokens

    def takes(self, count: int, token: int) -> bool:
        """Return whether a token may follow the first `count` tokens; if it may, it does."""
        held = self._held
        if held[count : count + 1] == [token]:
            return True
        self._go_back(count)
        if token in self._compiled.end_tokens or not self._matcher.try_consume_tokens([token]):
            return False
        held.append(token)
        self._complete.append(self._matcher.is_accepting())
        return True

    def is_over(self, count: int) -> bool:
        """Return whether the first `count` tokens complete the grammar."""
        return self._complete[count]

    def mask(self, count: int) -> TokenMask | None:
        """Return the tokens that may follow the first `count`; None, if llguidance gives up."""
        if count not in self._masks or count > len(self._held):
            self._go_back(count)
            bits = self._matcher.compute_bitmask()
            self._masks[count] = None if self._matcher.is_error() else self._compiled.mask_of(bits)
            self._masks.pop(count - _MASKS_KEPT, None)
        return self._masks[count]

    def _go_back(self, count: int) -> None:
        if len(self._held) > count:
            self._matcher.rollback(len(self._held) - count)
            del self._held[count:], self._complete[count + 1 :]
            self._masks = {place: mask for place, mask in self._masks.items() if place <= count}


@dataclass(frozen=True, slots=True)
class _Free:
    """Text that no grammar constrains; places are bytes of the answer."""

    origin: int  # its beginning
    start: int  # a head does not begin before
    line: int  # the beginning of the line that continues
    fences: tuple[Fence, ...] = ()  # of the code that continues
    fence_start: int = 0
    closing: re.Pattern[bytes] | None = None  # of the thinking that continues

    @classmethod
    def at(cls, place: int, closing: re.Pattern[bytes] | None = None) -> Self:
        """Return the beginning of such text."""
        return cls(place, place, place, closing=closing)


@dataclass(frozen=True, slots=True)
class _Bound:
    """Text of a call, of which its grammar has taken `count` tokens."""

    call: _Call
    count: int


class LazyConstraint:
    """Grammars for parts of an answer from a position on: a `Constraint` of decoding."""

    is_lazy = True

    def __init__(
        self,
        source: GrammarSource,
        heads: Sequence[Heads],
        start: int,
        thinking: ThinkingTags | None = None,
        begun: str = "",
    ) -> None:
        """Take the position of the answer, and what the prompt has of it.

        That is the tags of open thinking, or the text that the answer continues.
        """
        self._source = source
        self._heads = heads
        self._start = start
        self._thinking = thinking
        self._begun = begun
        self._held: list[int] = []  # tokens that were read
        self._data = bytearray()  # their bytes
        self._ends = [0]  # of the bytes, by number of tokens
        closing = None if thinking is None else _CLOSING[thinking.opening.lower().encode()]
        self._states: list[_Free | _Bound] = [_Free.at(0, closing)]  # by number of tokens
        for byte in begun.encode("utf-8", "replace"):
            self._data.append(byte)
            token = source.byte_token(byte) if isinstance(self._states[0], _Bound) else None
            self._states = [self._after_piece(self._states[0], token, bytes([byte]))]
            self._ends = [len(self._data)]

    def copy(self) -> Self:
        """Return another that says the same."""
        return type(self)(self._source, self._heads, self._start, self._thinking, self._begun)

    def mask(self, text: Sequence[int]) -> TokenMask | None:
        """Return the tokens that may follow; None means all."""
        self._read(text[self._start :])
        state = self._states[-1]
        return state.call.mask(state.count) if isinstance(state, _Bound) else None

    def may_refuse(self, text: Sequence[int], drafted: Sequence[int]) -> bool:
        """Return whether a token may be refused after a text, or after one of the tokens drafted for it."""
        self._read([*text[self._start :], *drafted])
        return any(isinstance(state, _Bound) for state in self._states[-1 - len(drafted) :])

    def _read(self, path: Sequence[int]) -> None:
        """Follow exactly these tokens of the answer."""
        shared = shared_tokens(self._held, path)
        if len(self._held) > shared:
            del self._held[shared:], self._ends[shared + 1 :], self._states[shared + 1 :]
            del self._data[self._ends[-1] :]
        for token in path[shared:]:
            piece = self._source.piece(token)
            self._data += piece
            self._states.append(self._after_piece(self._states[-1], token, piece))
            self._ends.append(len(self._data))
            self._held.append(token)

    def _after_piece(self, state: _Free | _Bound, token: int | None, piece: bytes) -> _Free | _Bound:
        """Return the state after a token, whose bytes are the last ones."""
        if isinstance(state, _Free):
            return self._after(state)
        end = len(self._data)
        if token is None or not state.call.takes(state.count, token):  # it ends the call, too
            return _Free.at(end)
        if not state.call.is_over(state.count + 1):
            return _Bound(state.call, state.count + 1)
        end -= len(piece) - self._length_in(state, piece)
        return self._after(_Free.at(end))

    def _length_in(self, state: _Bound, piece: bytes) -> int:
        """Return the number of bytes of the token that completes a call up to its end."""
        for count, byte in enumerate(piece):
            token = self._source.byte_token(byte)
            if token is None or not state.call.takes(state.count + count, token):
                break  # a special token
            if state.call.is_over(state.count + count + 1):
                return count + 1
        return len(piece)

    def _after(self, state: _Free) -> _Free | _Bound:
        """Return the state after more of free text."""
        state = self._after_lines(self._after_thinking(state))
        if state.closing is not None:
            return state
        for heads in self._heads:
            for found in heads.found(self._data, state.start):
                grammar = heads.grammars.get(found["name"])
                if grammar is not None and not self._is_in_code(state, found.start()):
                    return self._after_head(grammar, replace(state, start=found.end()))
        return state

    def _after_thinking(self, state: _Free) -> _Free:
        if state.closing is not None:
            since = max(state.start, self._ends[-1] - _LONGEST_CLOSING)
            if found := state.closing.search(self._data, since):
                return _Free.at(found.end())
        return state

    def _after_lines(self, state: _Free) -> _Free:
        """Follow the new text line by line, into code and out of it; thinking begins at the start of one."""
        while state.closing is None:
            if not state.fences and (opened := _THINKING.match(self._data, state.line)):
                thinking = _Free.at(opened.end(), _CLOSING[opened[1].lower()])
                state = self._after_thinking(thinking)
                continue
            end = self._data.find(b"\n", state.line) + 1
            if not end:
                break
            line = self._data[state.line : end].decode("utf-8", "replace")
            fences = fences_after(state.fences, line)
            if state.fences and not fences:
                state = _Free.at(end)
            else:
                start = state.fence_start if state.fences else state.line
                state = replace(state, line=end, fences=fences, fence_start=start)
        return state

    def _is_in_code(self, state: _Free, place: int) -> bool:
        """Return whether a place near the end of the text is in a block of code, or between backticks."""
        if state.fences and place > state.fence_start:
            return True
        line = max(self._data.rfind(b"\n", 0, place) + 1, state.origin)
        return self._data.count(b"`", line, place) % 2 == 1

    def _after_head(self, grammar: Grammar, free: _Free) -> _Free | _Bound:
        """Return the state after a head that the new text has completed, with the bytes that follow it."""
        compiled = self._source.usable(grammar)
        if compiled is None:
            return free
        call = _Call(compiled)
        rest = self._data[free.start :]
        for count, byte in enumerate(rest):
            token = self._source.byte_token(byte)
            if token is None or not call.takes(count, token):
                return free
            if call.is_over(count + 1):
                end = free.start + count + 1
                return self._after(_Free.at(end))
        return _Bound(call, len(rest))
