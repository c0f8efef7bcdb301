"""What a GGUF file says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path

Scalar = bool | int | float | str

TOKENS = "tokenizer.ggml.tokens"

# ggml.h, enum ggml_type: (elements, bytes) of one block
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18), 42: (64, 18),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file: its sizes as ggml counts them, the innermost first; `kind` is ggml's number."""

    name: str
    kind: int
    sizes: tuple[int, ...]
    elements: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says of itself.

    `values` holds the scalars, `numbers` the short numeric arrays, `counts` every array's length;
    `weight_bytes` and `end` (where the last tensor ends in the file) are in bytes.
    `tokens_at` is where the texts of the vocabulary start in the file, `tokens_digest` a checksum of them.
    """

    path: Path
    architecture: str
    values: dict[str, Scalar]
    numbers: dict[str, tuple[float, ...]]
    counts: dict[str, int]
    tensors: int
    parameters: int
    weight_bytes: int
    end: int
    file_bytes: int
    tensor_list: tuple[Tensor, ...] = ()
    tokens_at: int = 0
    tokens_digest: str = ""

    def text(self, key: str) -> str:
        """Return a text value; empty where there is none."""
        value = self.values.get(key, "")
        return value if isinstance(value, str) else ""

    def integer(self, key: str, default: int = 0) -> int:
        """Return an integer value; `{arch}` in the key stands for the architecture."""
        value = self.values.get(key.replace("{arch}", self.architecture), default)
        return _whole(value) if isinstance(value, int | float) else default

    def fraction(self, key: str) -> float | None:
        """Return a value between 0 and 1; None where there is none."""
        value = self.values.get(key)
        return float(value) if isinstance(value, int | float) and 0 <= value <= 1 else None

    def per_layer(self, key: str, layers: int, default: int = 0) -> tuple[int, ...]:
        """Return an integer for each layer, whether the file gives one for all or one for each."""
        numbers = self.numbers.get(key.replace("{arch}", self.architecture))
        if numbers is None:
            return (self.integer(key, default),) * layers
        return tuple(_whole(number) for number in numbers[:layers])


def _whole(number: float) -> int:
    return int(number) if isfinite(number) else 0
