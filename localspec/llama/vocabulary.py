"""A model's vocabulary: text to tokens, tokens to bytes, bytes to text."""

from __future__ import annotations

import codecs
import ctypes
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from localspec.errors import ContextFullError, EngineError, UserError
from localspec.llama import backends
from localspec.llama.library import native
from localspec.thinking_tags import THINKING_TAGS, marks_of
from localspec.types.request import Infill

_END_ROLES = ("eos", "eot", "fim_pad", "fim_rep", "fim_sep")
SPM = 1
BPE = 2
_USUAL_BYTES = 16  # of a token, seldom more: a text that fits by this needs no look at all tokens
_LONGEST_BYTES = 1024  # longer tokens are in no honest vocabulary
_TYPE_NAMES = {SPM: "SPM", BPE: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLaMo-2"}


class Vocabulary:
    """The vocabulary of an open model; it ends with the model."""

    def __init__(self, pointer: int, *, digest: str = "", likely_ends: Iterable[int] = ()) -> None:
        api = native()
        self._pointer: int | None = pointer
        self.digest = digest  # a checksum of its texts, if one is known
        self._pieces: dict[tuple[int, bool], bytes] = {}
        self._likely_ends = frozenset(likely_ends)  # to ask about; nothing but the file names them
        self.size: int = api.llama_vocab_n_tokens(pointer)
        self.type: int = api.llama_vocab_type(pointer)
        self.bos: int | None = _token(api.llama_vocab_bos(pointer))
        self.eos: int | None = _token(api.llama_vocab_eos(pointer))
        self.adds_bos: bool = api.llama_vocab_get_add_bos(pointer)
        self.adds_eos: bool = api.llama_vocab_get_add_eos(pointer)
        self.adds_sep: bool = api.llama_vocab_get_add_sep(pointer)

    @property
    def kind(self) -> str:
        """Return the name of its tokenizer."""
        return _TYPE_NAMES.get(self.type, f"type {self.type}")

    @cached_property
    def control_tokens(self) -> frozenset[int]:
        """Return the tokens that llama.cpp recognises in a text only when asked to parse special ones."""
        return self._having("CONTROL", "UNKNOWN")

    @cached_property
    def special_tokens(self) -> frozenset[int]:
        """Return the control tokens and those that the model's makers have added."""
        return self._having("CONTROL", "UNKNOWN", "USER_DEFINED")

    @cached_property
    def thinking_marks(self) -> frozenset[int]:
        """Return the control tokens that tags of thinking are written with, where it has all of a pair."""
        names = {self.decode([token], special=True).lower(): token for token in self.special_tokens}
        pairs = [marks for marks in map(marks_of, THINKING_TAGS) if marks <= names.keys()]
        return frozenset(names[mark] for marks in pairs for mark in marks) & self.control_tokens

    @cached_property
    def stripping_tokens(self) -> frozenset[int]:
        """Return the tokens that take spaces around them away."""
        return self._having("LSTRIP", "RSTRIP")

    @property
    def named_tokens(self) -> dict[str, int | None]:
        """Return the tokens that chat templates ask for by name, as transformers calls them."""
        api = native()
        unknown = self._having("UNKNOWN")
        others = {
            name: _token(getattr(api, f"llama_vocab_{name}")(self.pointer)) for name in ("sep", "pad", "mask")
        }
        return {"bos": self.bos, "eos": self.eos, "unk": min(unknown, default=None), **others}

    def spelled(self, text: str) -> list[int]:
        """Return the tokens of exactly this text, of whatever kind: one, or none."""
        raw = text.encode()
        return [token for token, own in enumerate(self.texts) if own == raw][:1]

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """Return every token that ends the model's turn according to the file and llama.cpp."""
        api = native()
        pointer = self.pointer
        # llama.cpp makes control tokens of those that it knows by their text; the others have a role
        named = {getattr(api, f"llama_vocab_{role}")(pointer) for role in _END_ROLES}
        candidates = self.special_tokens | named | self._likely_ends
        return frozenset(
            token for token in candidates if 0 <= token < self.size and api.llama_vocab_is_eog(pointer, token)
        )

    @cached_property
    def _attributes(self) -> NDArray[np.int32]:
        """Return the kind of each token, as llama.cpp's bits; not used for a draft model."""
        # undeclared arguments pass twice as fast
        kind = backends.function("llama_vocab_get_attr", ctypes.c_int)
        pointer = repeat(ctypes.c_void_p(self.pointer))
        return np.fromiter(map(kind, pointer, range(self.size)), np.int32, self.size)

    def _having(self, *attributes: str) -> frozenset[int]:
        bits = sum(getattr(native(), f"LLAMA_TOKEN_ATTR_{name}") for name in attributes)
        return frozenset(np.flatnonzero(self._attributes & bits).tolist())

    def close(self) -> None:
        """Forget the native vocabulary, which its model is about to free."""
        self._pointer = None

    def tokenize(self, text: str, *, special: bool = False, add_special: bool = False) -> list[int]:
        """Return the tokens of a text.

        `special` reads the texts of control tokens as those tokens;
        `add_special` puts BOS in front where the vocabulary asks for it (never EOS: it would end the prompt).
        """
        front = [self.bos] if add_special and self.adds_bos and self.bos is not None else []
        return [*front, *self._tokens(text, special=special)]

    def tokenize_to_embed(self, text: str) -> list[int]:
        """Return the tokens of a text for its vector, with those that the vocabulary puts around a text.

        These are BERT's [CLS] and [SEP], and BOS and EOS; texts of control tokens are read as those tokens.
        """
        return self._tokens(text, special=True, is_whole=True)

    def _tokens(self, text: str, *, special: bool, is_whole: bool = False) -> list[int]:
        raw = text.encode("utf-8", "replace")
        room = len(raw) + 8
        while True:
            tokens = (ctypes.c_int32 * room)()
            count = native().llama_tokenize(self.pointer, raw, len(raw), tokens, room, is_whole, special)
            if count >= 0:
                return tokens[:count]
            if -count <= room:
                raise EngineError(f"llama.cpp cannot tokenise a text of {len(raw):,} bytes")
            room = -count

    def infill(self, text: str, gap: Infill, room: int | None = None) -> list[int]:
        """Return the tokens that ask for the text in a gap.

        The order is that of llama.cpp's `format_prompt_infill`.
        Raises `UserError` if the vocabulary has no tokens for it.
        """
        api = native()
        names = ("pre", "suf", "mid", "rep", "sep")
        prefix, suffix, middle, project, file = (
            _token(getattr(api, f"llama_vocab_fim_{name}")(self.pointer)) for name in names
        )
        if prefix is None or suffix is None or middle is None:
            raise UserError(
                "the model cannot fill a gap: its vocabulary has no tokens for it",
                "open one that was trained for it, such as Qwen2.5-Coder",
            )
        parts: list[int | str] = [project, "project\n"] if project is not None and gap.files else []
        for name, content in gap.files:
            parts += ["\n\n" if file is None else file, f"{name}\n", content]
        parts += [file, "this file\n"] if file is not None and gap.files else []
        parts += [prefix, text, suffix, gap.suffix, middle]
        if room is not None:
            self.check_room((part for part in parts if isinstance(part, str)), room)
        tokens = ([part] if isinstance(part, int) else self.tokenize(part) for part in parts)
        return [*self.tokenize("", add_special=True), *chain.from_iterable(tokens)]

    def check_room(self, parts: Iterable[str], room: int) -> None:
        """Raise `ContextFullError` for a text, in parts, that is too long even for the longest tokens."""
        size = sum(len(part.encode("utf-8", "replace")) for part in parts)
        if size <= room * _USUAL_BYTES:
            return
        longest = min(max(map(len, self.texts)), _LONGEST_BYTES)
        if size > room * longest:
            raise ContextFullError(
                f"the prompt is at least {size // longest:,} tokens, but the context has {room:,}",
                "shorten it; a larger -c helps up to the trained length",
                tokens=size // longest,
                context=room,
            )

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of a token; control tokens are empty unless `special`."""
        piece = self._pieces.get((token, special))
        if piece is None:
            piece = self._pieces[token, special] = self._read_piece(token, special)
        return piece

    def all_pieces(self) -> list[bytes]:
        """Return the bytes of every token, those of control tokens too."""
        read = backends.function("llama_token_to_piece", ctypes.c_int32)  # undeclared arguments: see above
        pointer = ctypes.c_void_p(self.pointer)
        buffer = ctypes.create_string_buffer(_LONGEST_BYTES)
        counts = (read(pointer, token, buffer, _LONGEST_BYTES, 0, True) for token in range(self.size))
        return [
            buffer.raw[:count] if count >= 0 else self._read_piece(token, special=True)
            for token, count in enumerate(counts)
        ]

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of a complete run of tokens."""
        return b"".join(self.piece(token, special=special) for token in tokens).decode("utf-8", "replace")

    @cached_property
    def texts(self) -> tuple[bytes, ...]:
        """Return every token's text as the vocabulary spells it."""
        return tuple(map(native().llama_vocab_get_text, repeat(self.pointer), range(self.size)))

    def text(self, token: int) -> bytes:
        """Return a token's text as the vocabulary spells it."""
        text: bytes = native().llama_vocab_get_text(self.pointer, token)
        return text

    def _read_piece(self, token: int, special: bool) -> bytes:
        if not 0 <= token < self.size:
            raise ValueError(f"token {token} is outside the vocabulary of {self.size}")
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            count: int = native().llama_token_to_piece(self.pointer, token, buffer, room, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            room = -count

    @property
    def pointer(self) -> int:
        """Return the native vocabulary; raise `EngineError` once its model is closed."""
        if self._pointer is None:
            raise EngineError("the model of this vocabulary is closed")
        return self._pointer


class LlamaDetokenizer:
    """Turns a stream of tokens into text; a character split over tokens appears when it is complete."""

    def __init__(self, vocabulary: Vocabulary, *, special: bool = False, thinking: bool = False) -> None:
        """Start with nothing; `special` shows control tokens' texts, `thinking` those of its tags alone."""
        self._vocabulary = vocabulary
        self._special = special
        self._shown = vocabulary.thinking_marks if thinking else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """Take a token and return the text that is complete with it."""
        return self._decoder.decode(self.piece(token))

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token adds to the text."""
        return self._vocabulary.piece(token, special=self._special or token in self._shown)

    @property
    def has_pending(self) -> bool:
        """Whether bytes of an incomplete character wait."""
        return bool(self._decoder.getstate()[0])

    def flush(self) -> str:
        """Return the rest, an incomplete character as U+FFFD, and start again."""
        return self._decoder.decode(b"", final=True)


def _token(token: int) -> int | None:
    return token if token >= 0 else None
