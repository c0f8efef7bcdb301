"""What the export writes besides tensors: it needs no torch."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import jinja2
import numpy as np
import pytest

from training.documents import SPECIALS
from training.gguf_writing import (
    CHAT_TEMPLATE,
    TYPES,
    add_tensor,
    add_tokenizer,
    finish,
    interleave,
)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A vocabulary of five tokens, as the `tokenizers` package saves it."""
    tokens = [*SPECIALS, "a", "b", "ab"]
    specification = {
        "added_tokens": [{"id": i, "content": text, "special": True} for i, text in enumerate(SPECIALS)],
        "model": {
            "vocab": {text: i for i, text in reversed(list(enumerate(tokens)))},
            "merges": [["a", "b"]],
        },
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(specification), encoding="utf-8")
    return path


def test_interleave_turns_halves_into_neighbours() -> None:
    rows = np.arange(8, dtype=np.float32)[:, None].repeat(3, axis=1)  # two heads of four rows
    assert interleave(rows, heads=2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_rotation_of_halves_equals_llama_cpp_rotation_of_neighbours() -> None:
    rng = np.random.default_rng(0)
    weight, x = rng.normal(size=(8, 8)).astype(np.float32), rng.normal(size=8).astype(np.float32)
    angle = rng.normal(size=4)
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = np.split(weight @ x, 2)  # rotated as halves
    halves = np.stack([a * cos - b * sin, a * sin + b * cos])
    pairs = (interleave(weight, heads=1) @ x).reshape(4, 2)  # rotated as neighbours
    neighbours = np.stack([pairs[:, 0] * cos - pairs[:, 1] * sin, pairs[:, 0] * sin + pairs[:, 1] * cos])
    np.testing.assert_allclose(halves, neighbours, rtol=1e-5)


def test_tokenizer_keeps_ids_types_and_merges(tokenizer: Path, tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    add_tokenizer(writer, tokenizer)
    finish(writer)
    fields = {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()}
    assert fields["tokenizer.ggml.tokens"] == [*SPECIALS, "a", "b", "ab"]
    assert fields["tokenizer.ggml.token_type"] == [3, 3, 3, 1, 1, 1]
    assert fields["tokenizer.ggml.merges"] == ["a b"]
    assert fields["tokenizer.ggml.eos_token_id"] == SPECIALS.index("<|im_end|>")
    assert fields["tokenizer.ggml.add_bos_token"] is False


@pytest.mark.parametrize(("kind", "error"), [("f32", 0.0), ("f16", 1e-3), ("bf16", 8e-3), ("q8_0", 2e-2)])
def test_tensors_survive_their_type(kind: str, error: float, tmp_path: Path) -> None:
    path = tmp_path / "tensors.gguf"
    matrix = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(path, "llama")
    add_tensor(writer, "matrix", matrix, TYPES[kind][0])
    add_tensor(writer, "vector", matrix[0], TYPES[kind][0])
    finish(writer)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert tensors["matrix"].tensor_type.name.lower() == kind
    assert tensors["vector"].tensor_type == gguf.GGMLQuantizationType.F32
    read = gguf.quants.dequantize(tensors["matrix"].data, tensors["matrix"].tensor_type)
    np.testing.assert_allclose(read, matrix, atol=error * np.abs(matrix).max())


def test_chat_template_writes_chatml() -> None:
    template = jinja2.Environment(autoescape=False).from_string(CHAT_TEMPLATE)
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    chat = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
    assert template.render(messages=messages) == chat
    assert template.render(messages=messages, add_generation_prompt=True) == f"{chat}<|im_start|>assistant\n"
