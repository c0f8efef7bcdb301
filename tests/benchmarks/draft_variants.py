"""Forms of a draft model that know the frequent tokens only, or hold the embedding in fewer bits."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from localspec.decoding.measurements import TraceSegment
from training.gguf_writing import add_tensor, finish
from training.plain_text import write_plain_text
from training.teacher_text import TeacherText

EMBEDDING, VOCABULARY = "token_embd.weight", "llama.vocab_size"
TOKENS, TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
READ_WEIGHT = 0.15  # of a token that is only read, beside the answers' candidates
PLAIN = 12_000_000  # characters
Ids = NDArray[np.int64]


@dataclass(slots=True)
class Variant:
    """A form of the draft: its file, whose rows are the target's tokens `keep`, and how it was judged."""

    name: str
    keep: Ids
    read_as: Ids
    path: Path
    masked: list[float] = field(default_factory=list)  # greedy: does the best allowed token match?
    match: list[float] = field(default_factory=list)  # the same of the file
    masked_overlap: list[float] = field(default_factory=list)  # the same two, sampled
    overlap: list[float] = field(default_factory=list)
    segments: dict[float, list[TraceSegment]] = field(default_factory=lambda: defaultdict(list))


def by_frequency(source: gguf.GGUFReader, data: Path, target: Path) -> Ids:
    """Return all ids: control tokens and single bytes first, then the most frequent."""
    plain = data / "plain.npz"
    if not plain.exists():
        write_plain_text(plain, target, PLAIN, seed=1)
    text = TeacherText.read([*sorted((data / "answers").glob("*.npz")), plain])
    tokens, types = (source.fields[name].contents() for name in (TOKENS, TYPES))
    weight = np.bincount(text.top.ravel(), text.chances.ravel(), len(tokens))
    weight = weight + READ_WEIGHT * np.bincount(text.ids, minlength=len(tokens))
    weight[[len(token) == 1 for token in tokens]] = 1e12
    weight[np.array(types) != gguf.TokenType.NORMAL] = 1e15
    return np.argsort(-weight, kind="stable")


def write(source: gguf.GGUFReader, variant: Variant, kind: gguf.GGMLQuantizationType) -> None:
    """Write the draft with the rows of a variant, its embedding in a type."""
    writer = gguf.GGUFWriter(variant.path, "llama")
    for name, given in source.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = given.contents()
        if name in (TOKENS, TYPES):
            value = [value[token] for token in variant.keep]
        inner = given.types[-1] if given.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, len(variant.keep) if name == VOCABULARY else value, given.types[0], inner)
    for tensor in source.tensors:
        if tensor.name != EMBEDDING:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        elif kind == tensor.tensor_type:
            writer.add_tensor(tensor.name, tensor.data[variant.keep], raw_dtype=kind)
        else:
            rows = gguf.quants.dequantize(tensor.data, tensor.tensor_type)[variant.keep]
            add_tensor(writer, tensor.name, rows, kind)
    finish(writer)


def stand_ins(source: gguf.GGUFReader, keep: Ids) -> Ids:
    """Return the row that every one of the target's tokens is read as: its own, or the most similar one."""
    tensor = next(tensor for tensor in source.tensors if tensor.name == EMBEDDING)
    rows = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    place = np.full(len(rows), -1)
    place[keep] = np.arange(len(keep))
    for missing in np.array_split(np.flatnonzero(place < 0), 16):
        place[missing] = (rows[missing] @ rows[keep].T).argmax(axis=1)
    return place
