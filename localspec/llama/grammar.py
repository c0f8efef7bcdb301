"""Grammars on a model's vocabulary: which tokens may follow, by llguidance."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from localspec.errors import UserError
from localspec.llama.library import native
from localspec.llama.vocabulary import Vocabulary
from localspec.types import THINKING_TAGS, Grammar, TokenMask

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

MOST_BYTES = 2**20  # of a grammar: a hundred times the largest in use
_GRAMMARS_KEPT = 8
_LONGEST_TAG = 16  # tokens, and blanks behind it
_POSITIONS_KEPT = 64  # more than a draft has
_MASKS_KEPT = 16  # as lists of tokens: inside a string, say, one is wanted again and again
# Between JSON's tokens, as llama.cpp has it: without an end of it some models write blanks for ever.
_JSON: JsonCompileOptions = {"whitespace_pattern": r"( |\n{1,2}[ \t]{0,20})?"}
_NAMES = {"json_schema": "JSON schema", "gbnf": "grammar", "lark": "Lark grammar", "regex": "expression"}


class GrammarConstraint:
    """A grammar that an answer follows from a position of the text on: a `Constraint` of decoding.

    With `thinks_until` it begins only behind that token. When it is fulfilled nothing but an end token may
    follow; what comes behind one, or behind a token that was refused, is nobody's concern.
    """

    def __init__(self, compiled: CompiledGrammar, start: int, thinks_until: int | None = None) -> None:
        self._compiled = compiled
        self._start = start
        self._thinks_until = thinks_until
        self._matcher = compiled.matcher.deep_copy()
        self._held: list[int] = []  # tokens that the matcher has taken
        self._known: dict[int, TokenMask] = {}  # what may follow so many of them: both models ask

    def copy(self) -> Self:
        """Return another that says the same."""
        return type(self)(self._compiled, self._start, self._thinks_until)

    def mask(self, text: Sequence[int]) -> TokenMask | None:
        """Return the tokens that may follow; None stands for all.

        Raises `UserError` where the grammar asks for more work than llguidance does.
        """
        begin = self._begin(text)
        if begin is None:
            return None
        path = text[begin:]
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

    def _begin(self, text: Sequence[int]) -> int | None:
        """Return where the grammar begins in a text, None while the model thinks."""
        if self._thinks_until is None:
            return self._start
        try:
            return text.index(self._thinks_until, self._start) + 1
        except ValueError:
            return None

    def _go(self, path: Sequence[int]) -> bool:
        """Let the matcher have taken exactly these tokens; tell whether more than an end may follow."""
        held, shared = self._held, min(len(self._held), len(path))
        back = 1
        while held[:shared] != path[:shared]:  # what differs are drafts, near the end
            shared, back = max(0, shared - back), 2 * back
        if len(held) > shared:
            self._matcher.rollback(len(held) - shared)
            del held[shared:]
            self._known = {count: tokens for count, tokens in self._known.items() if count <= shared}
        ends = self._compiled.end_tokens
        missing = list(takewhile(lambda token: token not in ends, path[shared:]))
        held += missing[: self._matcher.try_consume_tokens(missing)]
        return len(held) == len(path)


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
        self._vocabulary, self._end_tokens = vocabulary, end_tokens
        self._compiled = lru_cache(_GRAMMARS_KEPT)(self._compile)

    def constraint(self, grammar: Grammar, prompt: Sequence[int]) -> GrammarConstraint:
        """Return a grammar for the answer to a prompt, or for what comes after the thinking that it opens.

        The end of that must be one token; else the grammar leaves no thinking.
        Raises `UserError` for a grammar that is wrong or too large.
        """
        return GrammarConstraint(self._compiled(grammar), len(prompt), self._thinks_until(prompt))

    def _thinks_until(self, prompt: Sequence[int]) -> int | None:
        end = self._vocabulary.decode(prompt[-_LONGEST_TAG:], special=True).rstrip().lower()
        closing = next((tag for opening, tag in THINKING_TAGS.items() if end.endswith(opening)), "")
        tokens = self._vocabulary.tokenize(closing, special=True)
        return tokens[0] if len(tokens) == 1 else None

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """Return the vocabulary as llguidance wants it: 0xff before what is no text (its llamacpp.py)."""
        from llguidance import LLTokenizer

        vocabulary = self._vocabulary
        ends, control, special = self._end_tokens, vocabulary.control_tokens, vocabulary.special_tokens
        if not ends:
            raise UserError("the model has no token that ends an answer", "use it without a grammar")
        tokens = [
            b"\xff" + piece if token in control or (token in special and piece[:1] == b"<") else piece
            for token, piece in enumerate(vocabulary.all_pieces())
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

    is_wrong, said = LLMatcher.validate_grammar_with_warnings(_source(grammar))
    if is_wrong:
        raise _refused(grammar.kind, said[0])


def _source(grammar: Grammar) -> str:
    """Return a grammar as llguidance wants it."""
    from llguidance import LLMatcher, grammar_from

    if len(grammar.text.encode("utf-8", "replace")) > MOST_BYTES:
        raise _refused(grammar.kind, f"it has more than {MOST_BYTES:,} bytes")
    try:
        if grammar.kind == "json_schema":
            return LLMatcher.grammar_from_json_schema(grammar.text, defaults=_JSON)
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
