"""Write a bigger GGUF that computes exactly the same function as a small one.

    python -m training.inflate demo-target.gguf big-target.gguf [--layers 24] [--verify]

For benchmarks: the text, and so the acceptance of draft tokens, stays that of the small model,
while every pass costs as much as a model of the bigger shape. The result is BF16, norms F32.

How the function stays the same (llama architecture):
  * extra layers have random weights, but attn_output and ffn_down are zero: they add nothing;
  * extra FFN units and attention heads read with random weights, but their columns in ffn_down and
    attn_output are zero;
  * extra residual dimensions are always zero; since RMSNorm then averages over more dimensions,
    the norm weights are scaled by sqrt(old/new) and epsilon by old/new.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from localspec.errors import ModelFileError, UserError
from training.gguf_writing import add_tensor, finish
from training.progress import log, show_progress

BF16 = gguf.GGMLQuantizationType.BF16
NAME = "LocalSpec demo target, inflated"
Matrix = NDArray[np.float32]
EMPTY: Matrix = np.zeros((0, 0), np.float32)


@dataclass(frozen=True, slots=True)
class Shape:
    """The residual width, the layers and the FFN width to grow to; None keeps the small model's."""

    dim: int | None = 768
    layers: int | None = 24
    ffn: int | None = 2048


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The shape of one model."""

    dim: int
    layers: int
    ffn: int
    head_dim: int

    @property
    def heads(self) -> int:
        """Return the number of attention heads."""
        return self.dim // self.head_dim

    def grown(self, shape: Shape) -> Dimensions:
        """Return the dimensions of the bigger model; raises `UserError` where it would not be bigger."""
        new = Dimensions(
            shape.dim or self.dim, shape.layers or self.layers, shape.ffn or self.ffn, self.head_dim
        )
        for name in ("dim", "layers", "ffn"):
            if getattr(new, name) < getattr(self, name):
                raise UserError(
                    f"{name} {getattr(new, name)} is smaller than the model's {getattr(self, name)}"
                )
        if new.dim % new.head_dim:
            raise UserError(f"dim {new.dim} is no multiple of the head width {new.head_dim}")
        return new


class SmallModel:
    """The weights and the metadata of the model to inflate."""

    def __init__(self, path: Path) -> None:
        self.reader = gguf.GGUFReader(path)
        if self.value("general.architecture") != "llama":
            raise ModelFileError(f"{path} is not of the llama architecture", "only that one can be inflated")
        heads = int(self.value("llama.attention.head_count"))
        if int(self.value("llama.attention.head_count_kv")) != heads:
            raise ModelFileError(f"{path} groups its key and value heads", "such models cannot be inflated")
        dim = int(self.value("llama.embedding_length"))
        layers, ffn = int(self.value("llama.block_count")), int(self.value("llama.feed_forward_length"))
        self.dimensions = Dimensions(dim, layers, ffn, dim // heads)
        self.weights: dict[str, Matrix] = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            for tensor in self.reader.tensors
        }

    def value(self, key: str) -> str | int | float:
        """Return a number or a text of the metadata."""
        value: str | int | float = self.reader.fields[key].contents()
        return value


class Growth:
    """Places the small model's weights inside those of the big one."""

    def __init__(self, small: SmallModel, new: Dimensions, seed: int) -> None:
        self._weights, self._old, self._new = small.weights, small.dimensions, new
        self._rng = np.random.default_rng(seed)

    def tensors(self) -> Iterator[tuple[str, Matrix]]:
        """Yield the big model's weights; the original layers are spread evenly among the new ones."""
        vocabulary = len(self._weights["token_embd.weight"])
        for name, random_columns in (("token_embd.weight", False), ("output.weight", True)):
            if name in self._weights:
                shape = (vocabulary, self._new.dim)
                yield name, self._matrix(self._weights[name], shape, random_columns=random_columns)
        yield "output_norm.weight", self._norm(self._weights["output_norm.weight"])
        last_old, last_new = max(1, self._old.layers - 1), self._new.layers - 1
        origin = {round(index * last_new / last_old): index for index in range(self._old.layers)}
        for layer in range(self._new.layers):
            for part, weight in self._layer(origin.get(layer)):
                yield f"blk.{layer}.{part}.weight", weight

    def _layer(self, origin: int | None) -> Iterator[tuple[str, Matrix]]:
        def old(part: str) -> Matrix:
            return EMPTY if origin is None else self._weights[f"blk.{origin}.{part}.weight"]

        dim, ffn = self._new.dim, self._new.ffn
        for part in ("attn_norm", "ffn_norm"):
            yield part, self._norm(None if origin is None else old(part))
        for part in ("attn_q", "attn_k", "attn_v"):
            yield part, self._matrix(old(part), (dim, dim), random_rows=True, random_columns=True)
        for part in ("ffn_gate", "ffn_up"):
            yield part, self._matrix(old(part), (ffn, dim), random_rows=True, random_columns=True)
        yield "attn_output", self._matrix(old("attn_output"), (dim, dim))
        yield "ffn_down", self._matrix(old("ffn_down"), (dim, ffn))

    def _norm(self, old: Matrix | None) -> Matrix:
        weight = np.ones(self._new.dim, np.float32)
        if old is not None:
            weight[: self._old.dim] = old * np.sqrt(self._old.dim / self._new.dim)
        return weight

    def _matrix(
        self, old: Matrix, shape: tuple[int, int], *, random_rows: bool = False, random_columns: bool = False
    ) -> Matrix:
        """Put `old` into the upper left corner of a bigger matrix; what is new is random or zero."""
        rows, columns = old.shape
        new = np.zeros(shape, np.float32)
        if random_columns:
            new[:rows, columns:] = self._noise(rows, shape[1] - columns)
        if random_rows:
            new[rows:] = self._noise(shape[0] - rows, shape[1])
        new[:rows, :columns] = old
        return new

    def _noise(self, rows: int, columns: int) -> Matrix:
        return self._rng.standard_normal((rows, columns), np.float32) * np.float32(0.02)


def copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter, changed: Mapping[str, object]) -> None:
    """Copy every field, with new values for some."""
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in {"general.architecture", "general.size_label"}:
            continue  # the writer's own, and no longer true
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        value = changed.get(key, field.contents())
        writer.add_key_value(key, value, field.types[0], sub_type=field.types[-1] if is_array else None)


def inflate(source: Path, out: Path, shape: Shape, seed: int = 1, name: str = NAME) -> None:
    """Write a model of the given shape that computes what `source` computes.

    Raises `ModelFileError` for other architectures and grouped heads, `UserError` for a smaller shape.
    """
    small = SmallModel(source)
    old = small.dimensions
    new = old.grown(shape)
    epsilon = float(small.value("llama.attention.layer_norm_rms_epsilon"))
    writer = gguf.GGUFWriter(out, "llama")
    changed = {
        "general.name": name,
        "general.file_type": int(gguf.LlamaFileType.MOSTLY_BF16),
        "llama.embedding_length": new.dim,
        "llama.block_count": new.layers,
        "llama.feed_forward_length": new.ffn,
        "llama.attention.head_count": new.heads,
        "llama.attention.head_count_kv": new.heads,
        "llama.attention.layer_norm_rms_epsilon": epsilon * old.dim / new.dim,
    }
    copy_metadata(small.reader, writer, changed)
    writer.add_bool("localspec.inflated", True)
    parameters = 0
    for tensor_name, weight in Growth(small, new, seed).tensors():
        parameters += weight.size
        add_tensor(writer, tensor_name, weight, BF16)
    finish(writer)
    log.info("%s: %.0f M parameters, %.0f MB, %s", out, parameters / 1e6, out.stat().st_size / 1e6, new)


def main(argv: Sequence[str] | None = None) -> None:
    """Inflate one model, and compare its logits if asked to."""
    show_progress()
    parser = argparse.ArgumentParser(
        prog="inflate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dim", type=int, default=768, help="residual width; 0 keeps the old one")
    parser.add_argument("--layers", type=int, default=24, help="0 keeps the old number")
    parser.add_argument("--ffn", type=int, default=2048, help="FFN width; 0 keeps the old one")
    parser.add_argument("--name", default=NAME)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verify", action="store_true", help="compare the logits of both files")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args(argv)
    shape = Shape(arguments.dim or None, arguments.layers or None, arguments.ffn or None)
    try:
        inflate(arguments.source, arguments.out, shape, arguments.seed, arguments.name)
    except UserError as error:
        raise SystemExit(f"error: {error}") from error
    if arguments.verify:
        from training.export_check import compare_models  # loads llama.cpp

        compare_models(arguments.source, arguments.out, arguments.threads)


if __name__ == "__main__":
    main()
