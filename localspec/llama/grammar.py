"""Grammars on a model's vocabulary: which tokens may follow, by llguidance."""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from localspec.errors import UserError
from localspec.llama.library import native
from localspec.llama.schemas.split import SPACING, split
from localspec.llama.vocabulary import Vocabulary
from localspec.thinking_tags import ThinkingTags
from localspec.types.drafts import TokenMask
from localspec.types.request import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_BYTES = 2**20  # of a grammar: a hundred times the largest in use
_GRAMMARS_KEPT = 32  # one for each tool that is called
_POSITIONS_KEPT = 64  # more than a draft has
_MASKS_KEPT = 16  # as lists of tokens: inside a string, say, one is wanted again and again
_NAMES = {"json_schema": "JSON schema", "gbnf": "grammar", "lark": "Lark grammar", "regex": "expression"}


class GrammarConstraint:
    """A grammar for an answer from a position on: a `Constraint` of decoding.

    With `thinking`, it begins where that ends. Once it is complete, only an end token may follow; tokens
    after that, or after a rejected token, are ignored.
    """

    is_lazy = False

    def __init__(self, compiled: CompiledGrammar, start: int, thinking: ClosingTag | None = None) -> None:
        self._compiled = compiled
        self._start = start
        self._thinking = None if thinking is None else _ThinkingEnd(thinking)
        self._matcher = compiled.matcher.deep_copy()
        self._held: list[int] = []  # tokens that the matcher has taken
        self._known: dict[int, TokenMask] = {}  # masks by number of tokens, because both models ask

    def copy(self) -> Self:
        """Return another that says the same."""
        thinking = None if self._thinking is None else self._thinking.closing
        return type(self)(self._compiled, self._start, thinking)

    def mask(self, text: Sequence[int]) -> TokenMask | None:
        """Return the tokens that may follow; None means all.

        Raises `UserError` if the grammar exceeds llguidance's limits.
        """
        path = text[self._start :]
        if self._thinking is not None:
            end = self._thinking.end(path)
            if end is None:
                return self._thinking.mask()
            path = path[end:]
        known = self._known.get(len(path))
        if known is not None and self._held[: len(path)] == path:
            return known
        if not self._go(path):
            return None
        bits = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise _refused(self._compiled.kind, self._matcher.get_error())
        found = self._known[len(path)] = self._compiled.mask_of(bits)
        self._known.pop(len(path) - _POSITIONS_KEPT, None)
        return found

    def may_refuse(self, text: Sequence[int], drafted: Sequence[int]) -> bool:
        """Return True: nearly everywhere."""
        return True

    def _go(self, path: Sequence[int]) -> bool:
        """Bring the matcher to exactly these tokens; return whether more than an end may follow."""
        held = self._held
        shared = shared_tokens(self._held, path)
        if len(held) > shared:
            self._matcher.rollback(len(held) - shared)
            del held[shared:]
            self._known = {count: tokens for count, tokens in self._known.items() if count <= shared}
        ends = self._compiled.end_tokens
        missing = list(takewhile(lambda token: token not in ends, path[shared:]))
        held += missing[: self._matcher.try_consume_tokens(missing)]
        return len(held) == len(path)


class ClosingTag:
    """The closing tag of thinking, which the vocabulary may split into tokens in several ways.

    The grammar begins after the token that completes it. So that token may contain only white space after the
    tag, because the grammar would not see more.
    """

    def __init__(self, tag: str, pieces: Sequence[bytes]) -> None:
        """Look at the bytes of every token."""
        raw = tag.lower().encode()
        self.pieces = pieces
        self.pattern = re.compile(re.escape(raw), re.IGNORECASE)
        self.length = len(raw)
        self._beginnings = [raw[:count] for count in range(1, len(raw))]
        small = [piece.lower() for piece in pieces]
        # by the length of the tag so far; one token may contain all of it
        self._refused = {0: [token for token, piece in enumerate(small) if _goes_past(piece, raw)]}
        for count in range(1, len(raw)):
            found = (token for token, piece in enumerate(small) if piece.startswith(raw[count:]))
            self._refused[count] = [
                token for token in found if small[token].removeprefix(raw[count:]).strip()
            ]

    def mask(self, end: bytes) -> TokenMask | None:
        """Return the tokens that may follow thinking of which these are the latest bytes."""
        end = end.lower()
        counts = (len(each) for each in self._beginnings if end.endswith(each))
        refused = {token for count in (0, *counts) for token in self._refused[count]}
        return TokenMask(np.array(sorted(refused), np.int64), are_refused=True) if refused else None


def _goes_past(piece: bytes, tag: bytes) -> bool:
    _, found, rest = piece.partition(tag)
    return bool(found) and bool(rest.strip())


class _ThinkingEnd:
    """Finds where thinking ends in the tokens of an answer, of which drafts may be taken back."""

    def __init__(self, closing: ClosingTag) -> None:
        self.closing = closing
        self._held: list[int] = []  # tokens that were read, up to the end of the thinking
        self._ends = [b""]  # the latest bytes by number of tokens
        self._is_over = False

    def end(self, path: Sequence[int]) -> int | None:
        """Return the number of an answer's tokens in its thinking, None if all are."""
        held = self._held
        closing = self.closing
        shared = shared_tokens(held, path)
        if len(held) > shared:
            del held[shared:], self._ends[shared + 1 :]
            self._is_over = False
        for token in path[shared:]:
            if self._is_over:
                break
            text = self._ends[-1] + closing.pieces[token]
            held.append(token)
            self._ends.append(text[-closing.length :])
            self._is_over = closing.pattern.search(text) is not None
        return len(held) if self._is_over else None

    def mask(self) -> TokenMask | None:
        """Return the tokens that may follow; None means all."""
        return self.closing.mask(self._ends[-1])


def shared_tokens(held: Sequence[int], path: Sequence[int]) -> int:
    """Return the length of the common prefix, or somewhat less; differences are drafts, near the end."""
    shared = min(len(held), len(path))
    back = 1
    while held[:shared] != path[:shared]:
        shared = max(0, shared - back)
        back = 2 * back
    return shared


class CompiledGrammar:
    """A grammar ready to be followed."""

    def __init__(self, kind: str, matcher: LLMatcher, size: int, end_tokens: frozenset[int]) -> None:
        self.kind = kind
        self.matcher = matcher
        self.end_tokens = end_tokens
        self.mask_of = lru_cache(_MASKS_KEPT)(partial(_mask_of, size))


class Grammars:
    """What makes grammars for a vocabulary; it prepares that once, which takes up to a second or two."""

    def __init__(self, vocabulary: Vocabulary, end_tokens: frozenset[int]) -> None:
        """Prepare nothing yet; `end_tokens` are those that end an answer."""
        self._vocabulary = vocabulary
        self._end_tokens = end_tokens
        self._compiled = lru_cache(_GRAMMARS_KEPT)(self._compile)
        self._closing_tag = lru_cache(lambda tag: ClosingTag(tag, self._pieces))

    def constraint(
        self, grammar: Grammar, prompt: Sequence[int], opened: ThinkingTags | None = None
    ) -> GrammarConstraint:
        """Return a grammar for the answer to a prompt, after any thinking that the prompt has opened.

        Raises `UserError` for an invalid or too large grammar.
        """
        closing = None if opened is None else self._closing_tag(opened.closing)
        return GrammarConstraint(self._compiled(grammar), len(prompt), closing)

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token, those of control tokens too."""
        return self._vocabulary.piece(token, special=True)

    def byte_token(self, byte: int) -> int | None:
        """Return the token of a single byte, None without one."""
        return self._byte_tokens.get(byte)

    def usable(self, grammar: Grammar) -> CompiledGrammar | None:
        """Return a grammar, None for an invalid or too large one."""
        try:
            return self._compiled(grammar)
        except UserError:
            return None

    @cached_property
    def _byte_tokens(self) -> dict[int, int]:
        others = self._vocabulary.special_tokens
        pieces = enumerate(self._pieces)
        return {piece[0]: token for token, piece in pieces if len(piece) == 1 and token not in others}

    @cached_property
    def _pieces(self) -> list[bytes]:
        return self._vocabulary.all_pieces()

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """Return the vocabulary as llguidance wants it: 0xff before what is not text (its llamacpp.py)."""
        from llguidance import LLTokenizer

        vocabulary = self._vocabulary
        ends = self._end_tokens
        control = vocabulary.control_tokens
        special = vocabulary.special_tokens
        if not ends:
            raise UserError("the model has no token that ends an answer", "use it without a grammar")
        tokens = [
            b"\xff" + piece if token in control or (token in special and piece[:1] == b"<") else piece
            for token, piece in enumerate(self._pieces)
        ]
        tokenize = ctypes.cast(native().llama_tokenize, ctypes.c_void_p).value
        maker: Any = LLTokenizer  # its stubs do not know the method
        made: LLTokenizer = maker.from_llamacpp(
            tokens=tokens, vocab_ptr=vocabulary.pointer, tokenize_fptr=tokenize, eos_token=sorted(ends)
        )
        return made

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, _source(grammar), log_level=0)
        if matcher.is_error():
            raise _refused(grammar.kind, matcher.get_error())
        return CompiledGrammar(grammar.kind, matcher, self._vocabulary.size, self._end_tokens)


def check(grammar: Grammar) -> None:
    """Raise `UserError` for a grammar that is wrong or too large, whatever the model."""
    from llguidance import LLMatcher

    is_wrong, complaints = LLMatcher.validate_grammar_with_warnings(_source(grammar))
    if is_wrong:
        raise _refused(grammar.kind, complaints[0])


def _source(grammar: Grammar) -> str:
    """Return a grammar as llguidance wants it."""
    from llguidance import LLMatcher, grammar_from

    if len(grammar.text.encode("utf-8", "replace")) > MAX_BYTES:
        raise _refused(grammar.kind, f"it has more than {MAX_BYTES:,} bytes")
    try:
        if grammar.kind == "json_schema":
            schema = split(json.loads(grammar.text)).grammar
            return LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=SPACING)
        return grammar_from(grammar.kind, grammar.text)
    except (ValueError, RecursionError) as error:
        raise _refused(grammar.kind, str(error)) from None


def _mask_of(size: int, bits: bytes) -> TokenMask:
    may = np.unpackbits(np.frombuffer(bits, np.uint8), count=size, bitorder="little").view(np.bool_)
    are_refused = bool(2 * np.count_nonzero(may) > size)
    return TokenMask(np.flatnonzero(~may if are_refused else may), are_refused)


def _refused(kind: str, reason: str) -> UserError:
    return UserError(
        f"the {_NAMES[kind]} cannot be used: {' '.join(reason.split())}", "change that part of it"
    )
