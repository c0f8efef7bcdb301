"""GGUF files that are a little wrong: a known file and a list of edits, small enough to be kept.

An edit is a list whose first member names it, so that a corpus of them is lines of JSON.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

Edit = tuple[Any, ...]
STRING, ARRAY = 8, 9
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_ALIGNED = 32


@dataclass(slots=True)
class Entry:
    """A key and its value as it lies in the file."""

    key: bytes
    kind: int
    raw: bytes


@dataclass(slots=True)
class Listed:
    """What a file says of one tensor."""

    name: bytes
    sizes: list[int]
    kind: int
    offset: int


@dataclass(slots=True)
class Taken:
    """A file taken apart; the counts are what the header claims."""

    entries: list[Entry]
    tensors: list[Listed]
    weights: bytes = field(repr=False)
    entry_count: int
    tensor_count: int
    magic: bytes = b"GGUF\x03\0\0\0"


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return int(value)

    def text(self) -> bytes:
        size = self.number("Q")
        self.at += size
        return self.data[self.at - size : self.at]

    def value(self, kind: int) -> bytes:
        begin = self.at
        if kind == STRING:
            self.text()
        elif kind == ARRAY:
            inner, count = self.number("I"), self.number("Q")
            for _ in range(count):
                self.value(inner)
        else:
            self.at += struct.calcsize("<" + FORMATS[kind])
        return self.data[begin : self.at]


def taken_apart(data: bytes) -> Taken:
    """Read a whole file that is right."""
    cursor = _Cursor(data)
    cursor.at = 8
    tensor_count, entry_count = cursor.number("Q"), cursor.number("Q")
    entries = []
    for _ in range(entry_count):
        key, kind = cursor.text(), cursor.number("I")
        entries.append(Entry(key, kind, cursor.value(kind)))
    tensors = []
    for _ in range(tensor_count):
        name, dimensions = cursor.text(), cursor.number("I")
        sizes = [cursor.number("Q") for _ in range(dimensions)]
        tensors.append(Listed(name, sizes, cursor.number("I"), cursor.number("Q")))
    weights = data[-(-cursor.at // _ALIGNED) * _ALIGNED :]
    return Taken(entries, tensors, weights, entry_count, tensor_count)


def _text(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def put_together(taken: Taken) -> bytes:
    """Return the header of a file, up to its weights."""
    parts = [taken.magic, struct.pack("<QQ", taken.tensor_count % 2**64, taken.entry_count % 2**64)]
    for entry in taken.entries:
        parts += [_text(entry.key), struct.pack("<I", entry.kind % 2**32), entry.raw]
    for tensor in taken.tensors:
        sizes = struct.pack(f"<I{len(tensor.sizes)}Q", len(tensor.sizes), *(n % 2**64 for n in tensor.sizes))
        parts += [_text(tensor.name), sizes, struct.pack("<IQ", tensor.kind % 2**32, tensor.offset % 2**64)]
    header = b"".join(parts)
    return header + bytes(-len(header) % _ALIGNED)


def packed(kind: int, value: object) -> bytes:
    """Return a value as a file holds it; numbers that are too large are cut."""
    if kind == STRING:
        return _text(str(value).encode("utf-8", "surrogatepass"))
    if kind == ARRAY and isinstance(value, list | tuple):
        inner, members = value
        return struct.pack("<IQ", inner, len(members)) + b"".join(packed(inner, each) for each in members)
    number = value if isinstance(value, int | float) else 0
    form = FORMATS[kind]
    if form in "fd":
        fits = form == "d" or not isfinite(number) or abs(number) < 3e38
        return struct.pack("<" + form, float(number) if fits else 3e38)
    size = struct.calcsize(form)
    whole = int(number != 0) if form == "?" else int(number)
    return (whole & ((1 << 8 * size) - 1)).to_bytes(size, "little")


@dataclass(frozen=True, slots=True)
class Base:
    """A file that is right, to start from."""

    name: str
    path: Path

    def taken(self) -> Taken:
        """Take a copy of it apart."""
        return taken_apart(_bytes(self.path))

    def edited(self, edits: Sequence[Edit], into: Path, *, weights: bool = True) -> Path:
        """Write it with edits; without weights its end is a hole of the same size."""
        taken = self.taken()
        for edit in edits:
            if edit[0] in _STRUCTURED:
                _STRUCTURED[edit[0]](taken, *edit[1:])
        data = put_together(taken)
        rest = taken.weights
        size = len(data) + len(rest)
        for edit in edits:
            if edit[0] in _BYTES:
                data = _BYTES[edit[0]](data, *edit[1:])
        size = next((edit[1] for edit in edits if edit[0] == "size"), size)
        with into.open("wb") as file:
            file.write(data)
            if weights:
                file.write(rest)
            file.truncate(min(size, 2**40))
        return into


@cache
def _bytes(path: Path) -> bytes:
    return path.read_bytes()


def _set(taken: Taken, key: str, kind: int, value: object) -> None:
    raw = packed(kind, value)
    for entry in taken.entries:
        if entry.key == key.encode():
            entry.kind, entry.raw = kind, raw
            return
    taken.entries.append(Entry(key.encode("utf-8", "surrogatepass"), kind, raw))
    taken.entry_count += 1


def _without(taken: Taken, key: str) -> None:
    before = len(taken.entries)
    taken.entries = [entry for entry in taken.entries if entry.key != key.encode()]
    taken.entry_count -= before - len(taken.entries)


def _twice(taken: Taken, key: str) -> None:
    again = [entry for entry in taken.entries if entry.key == key.encode()]
    taken.entries += again
    taken.entry_count += len(again)


def _tensor(taken: Taken, place: int, what: str, value: object) -> None:
    if taken.tensors:
        tensor = taken.tensors[place % len(taken.tensors)]
        setattr(tensor, what, value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value)


def _gone(taken: Taken, place: int) -> None:
    if taken.tensors:
        del taken.tensors[place % len(taken.tensors)]
        taken.tensor_count -= 1


def _claims(taken: Taken, what: str, count: int) -> None:
    setattr(taken, what, count)


def _flip(data: bytes, place: int, mask: int) -> bytes:
    at = place % max(1, len(data))
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :] if data else data


def _over(data: bytes, place: int, hexes: str) -> bytes:
    at, new = place % max(1, len(data)), bytes.fromhex(hexes)
    return data[:at] + new + data[at + len(new) :]


def _cut(data: bytes, place: int) -> bytes:
    return data[: place % max(1, len(data))]


def _drop(data: bytes, place: int, count: int) -> bytes:
    at = place % max(1, len(data))
    return data[:at] + data[at + count :]


def _again(data: bytes, place: int, count: int) -> bytes:
    at = place % max(1, len(data))
    return data[: at + count] + data[at:]


_STRUCTURED: dict[str, Callable[..., None]] = {
    "set": _set, "without": _without, "twice": _twice, "tensor": _tensor, "gone": _gone, "claims": _claims,
}  # fmt: skip
_BYTES: dict[str, Callable[..., bytes]] = {
    "flip": _flip, "over": _over, "cut": _cut, "drop": _drop, "again": _again,
}  # fmt: skip

EXTREME = (0, 1, 2, 3, 7, 8, 31, 100, 127, 128, 255, 256, 1024, 65_535, 2**24, 2**31 - 1, 2**31, 2**32 - 1,
           2**40, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -1)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-5, 1e38, -1e38, float("inf"), float("-inf"), float("nan"), 5e-324, 1e308)
TEXTS = (
    "", " ", "x", "\0", "\x1b]52;c;aGk=\x07", "\x9b31m", "a\nb\rc", "\u202eevil", "\u2028", "\ud800",
    "%s%n{0}{x}", "../../etc/passwd", "/", "-h", "llama", "gpt2", "mamba", "none", "bert", "ü" * 300,
    "x" * 100_000,
)  # fmt: skip
KEYS = (
    "general.architecture", "general.name", "general.alignment", "general.file_type", "general.type",
    "general.quantization_version", "{a}.block_count", "{a}.context_length", "{a}.embedding_length",
    "{a}.feed_forward_length", "{a}.attention.head_count", "{a}.attention.head_count_kv",
    "{a}.attention.key_length", "{a}.attention.value_length", "{a}.attention.layer_norm_rms_epsilon",
    "{a}.attention.sliding_window", "{a}.attention.sliding_window_pattern", "{a}.attention.key_length_mla",
    "{a}.rope.dimension_count", "{a}.rope.freq_base", "{a}.expert_count", "{a}.expert_used_count",
    "{a}.expert_feed_forward_length", "{a}.nextn_predict_layers", "{a}.vocab_size", "{a}.ssm.conv_kernel",
    "{a}.ssm.inner_size", "{a}.ssm.state_size", "{a}.ssm.group_count", "{a}.wkv.head_size",
    "{a}.shortconv.l_cache", "{a}.kda.head_dim", "split.count", "split.no", "split.tensors.count",
    "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.scores",
    "tokenizer.ggml.token_type", "tokenizer.ggml.merges", "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id", "tokenizer.ggml.add_bos_token", "tokenizer.chat_template",
    "localspec.acceptance", "localspec.draft_for",
)  # fmt: skip
_NAMES = (
    "token_embd.weight",
    "output.weight",
    "blk.0.attn_q.weight",
    "blk.99999999999.x",
    "blk.-1.y",
    "blk.x",
    "",
)


def drawn(rng: random.Random, architecture: str = "llama") -> tuple[Edit, ...]:
    """Return one to four edits by chance."""
    return tuple(_one(rng, architecture) for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))))


def _one(rng: random.Random, architecture: str) -> Edit:
    key = rng.choice(KEYS).replace("{a}", architecture)
    match rng.randrange(3):
        case 0:
            return _of_bytes(rng)
        case 1:
            some: tuple[Edit, ...] = (
                (rng.choice(("without", "twice")), key),
                ("gone", rng.randrange(40)),
                ("claims", rng.choice(("entry_count", "tensor_count")), rng.choice(EXTREME)),
                ("size", rng.choice((0, 4, 24, 4096, 2**26))),
                ("tensor", rng.randrange(40), *_of_tensor(rng)),
                ("tensor", rng.randrange(40), *_of_tensor(rng)),
            )
            return rng.choice(some)
        case _:
            return "set", key, *_value(rng)


def _of_bytes(rng: random.Random) -> Edit:
    place = rng.randrange(2_000) if rng.random() < 0.6 else rng.randrange(2**20)
    width = rng.choice((4, 8))
    number = rng.choice(EXTREME) % 2 ** (8 * width)
    some: tuple[Edit, ...] = (
        ("flip", place, rng.choice((0xFF, 1, 0x80, rng.randrange(1, 256)))),
        ("over", place, number.to_bytes(width, "little").hex()),
        ("over", place, number.to_bytes(width, "little").hex()),
        ("cut", place),
        (rng.choice(("drop", "again")), place, rng.choice((1, 4, 8, 100))),
    )
    return rng.choice(some)


def _of_tensor(rng: random.Random) -> tuple[str, object]:
    return rng.choice(
        (
            ("sizes", [rng.choice(EXTREME) for _ in range(rng.randrange(6))]),
            ("kind", rng.choice((0, 1, 2, 14, 26, 39, 99, 2**32 - 1))),
            ("offset", rng.choice(EXTREME)),
            ("name", rng.choice((*_NAMES, *TEXTS))),
        )
    )


def _value(rng: random.Random) -> tuple[int, object]:
    match rng.randrange(6):
        case 0:
            return STRING, rng.choice(TEXTS)
        case 1:
            return rng.choice((6, 12)), rng.choice(FLOATS)
        case 2:
            inner = rng.choice((4, 5, 7, 10, 11))
            return ARRAY, [inner, [rng.choice(EXTREME) for _ in range(rng.choice((0, 1, 2, 5, 40)))]]
        case 3:
            return ARRAY, [STRING, [rng.choice(TEXTS) for _ in range(rng.choice((0, 1, 300)))]]
        case _:
            return rng.choice((0, 2, 4, 5, 7, 10, 11)), rng.choice(EXTREME)


_places = st.one_of(st.integers(0, 2000), st.integers(0, 2**20))
_numbers = st.sampled_from(EXTREME)
_values = st.one_of(
    st.tuples(st.just(STRING), st.text(max_size=30)),
    st.tuples(st.sampled_from((6, 12)), st.floats(width=32)),
    st.tuples(st.sampled_from((0, 2, 4, 5, 7, 10, 11)), st.one_of(_numbers, st.integers(-(2**63), 2**64))),
    st.tuples(st.just(ARRAY), st.tuples(st.sampled_from((4, 5, 10)), st.lists(_numbers, max_size=8))),
)
any_edits = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), _places, st.integers(1, 255)),
        st.tuples(st.just("over"), _places, st.binary(min_size=1, max_size=9).map(bytes.hex)),
        st.tuples(st.just("cut"), _places),
        st.tuples(st.sampled_from(("drop", "again")), _places, st.integers(1, 100)),
        st.tuples(st.just("without"), st.sampled_from(KEYS)),
        st.builds(
            lambda key, value: ("set", key.replace("{a}", "llama"), *value), st.sampled_from(KEYS), _values
        ),
        st.tuples(st.just("tensor"), st.integers(0, 40), st.just("sizes"), st.lists(_numbers, max_size=5)),
        st.tuples(st.just("tensor"), st.integers(0, 40), st.just("offset"), _numbers),
        st.tuples(st.just("claims"), st.sampled_from(("entry_count", "tensor_count")), _numbers),
    ),
    min_size=1,
    max_size=4,
)
"""The same for Hypothesis, which finds the smallest list that shows a fault."""
