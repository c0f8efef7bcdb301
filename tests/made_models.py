"""Small models of today's kinds on the bundled vocabulary: random weights, and heads that are fitted to them.

A target's text hangs mostly on its last tokens, because its layers add little, so a head that ridge
regression finds from a few calls is accepted often.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from localspec.demo import bundled_pair
from localspec.demo.training.gguf_writing import add_tensor, copy_tokenizer, finish
from localspec.llama.context import Context
from localspec.llama.heads import HiddenStates
from localspec.llama.library import native
from localspec.llama.model import Model
from localspec.types import ModelOptions

Floats = NDArray[np.float64]

WIDTH, HEADS, HEAD_WIDTH, LAYERS, EVERY = 64, 2, 32, 4, 4
STATE, KEY_HEADS, VALUE_HEADS, KERNEL = 32, 1, 2, 4  # of a gated delta net
INNER = VALUE_HEADS * STATE
MIX = 0.09  # of what a layer adds
TEXTS, LENGTH = 10, 250  # that a head is fitted to


class Weights:
    """The tensors of a model in the making: random, matrices in one type."""

    def __init__(self, path: Path, architecture: str, kind: str, seed: int = 0) -> None:
        self.writer = gguf.GGUFWriter(path, architecture)
        self.random = np.random.default_rng(seed)
        self._kind = gguf.GGMLQuantizationType[kind.upper()]
        self.vocabulary = len(_bundled().fields["tokenizer.ggml.tokens"].data)
        copy_tokenizer(self.writer, _bundled())

    def add(self, name: str, values: Floats) -> None:
        kind = gguf.GGMLQuantizationType.F32 if "conv1d" in name else self._kind
        add_tensor(self.writer, name, values.astype(np.float32), kind)

    def matrix(self, name: str, inputs: int, outputs: int, gain: float = 1.0) -> None:
        self.add(f"{name}.weight", self.random.normal(0, gain / np.sqrt(inputs), (outputs, inputs)))

    def ones(self, *names: str, width: int = WIDTH) -> None:
        for name in names:
            self.add(f"{name}.weight", 1 + self.random.normal(0, 0.05, width))


def hybrid(path: Path, *, kind: str = "q8_0", head: bool = True, trunk: bool = True) -> Path:
    """Write a qwen35: three gated delta nets and a layer of attention, an MTP head, or both."""
    weights = Weights(path, "qwen35", kind)
    _describe_hybrid(weights.writer, heads=int(head))
    embedding = weights.random.normal(0, 1, (weights.vocabulary, WIDTH))
    weights.add("token_embd.weight", embedding)
    weights.ones("output_norm")
    weights.matrix("output", WIDTH, weights.vocabulary, 3.0)
    for layer in range(LAYERS) if trunk else ():
        _around(weights, layer)
        if (layer + 1) % EVERY:
            _delta_net(weights, layer)
        else:
            _attention(weights, layer)
    if head:
        block, headless = f"blk.{LAYERS}", path.with_suffix(".trunk.gguf")
        matrix = _fitted(hybrid(headless, kind=kind, head=False), embedding)
        _around(weights, LAYERS, mix=1e-3)
        _attention(weights, LAYERS, mix=1e-3)
        weights.add(f"{block}.nextn.eh_proj.weight", matrix)
        for name in ("enorm", "hnorm"):
            weights.add(f"{block}.nextn.{name}.weight", np.ones(WIDTH))
    finish(weights.writer)
    return path


def attention(path: Path) -> Path:
    """Write a llama with the hybrid's embeddings and output, so that they often agree."""
    weights = Weights(path, "llama", "q8_0")
    writer = weights.writer
    writer.add_block_count(1)
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(HEAD_WIDTH)
    weights.add("token_embd.weight", weights.random.normal(0, 1, (weights.vocabulary, WIDTH)))
    weights.ones("output_norm")
    weights.matrix("output", WIDTH, weights.vocabulary, 3.0)
    weights.ones("blk.0.attn_norm", "blk.0.ffn_norm")
    for part in "qkv":
        weights.matrix(f"blk.0.attn_{part}", WIDTH, WIDTH)
    weights.matrix("blk.0.attn_output", WIDTH, WIDTH, MIX)
    for part, shape in (
        ("gate", (WIDTH, 2 * WIDTH)),
        ("up", (WIDTH, 2 * WIDTH)),
        ("down", (2 * WIDTH, WIDTH)),
    ):
        weights.matrix(f"blk.0.ffn_{part}", *shape, MIX)
    finish(weights.writer)
    return path


def _describe_hybrid(writer: gguf.GGUFWriter, heads: int) -> None:
    writer.add_name("Made hybrid")
    writer.add_block_count(LAYERS + heads)  # the head counts as a block
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_key_length(HEAD_WIDTH)
    writer.add_value_length(HEAD_WIDTH)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(HEAD_WIDTH // 4)
    writer.add_rope_freq_base(1e6)
    writer.add_array("qwen35.rope.dimension_sections", [2, 1, 1, 0])
    writer.add_uint32("qwen35.full_attention_interval", EVERY)
    writer.add_ssm_conv_kernel(KERNEL)
    writer.add_ssm_inner_size(INNER)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_time_step_rank(VALUE_HEADS)
    writer.add_uint32("qwen35.ssm.group_count", KEY_HEADS)
    if heads:
        writer.add_uint32("qwen35.nextn_predict_layers", heads)


def _around(weights: Weights, layer: int, mix: float = MIX) -> None:
    block = f"blk.{layer}"
    weights.ones(f"{block}.attn_norm", f"{block}.post_attention_norm")
    weights.matrix(f"{block}.ffn_gate", WIDTH, 2 * WIDTH)
    weights.matrix(f"{block}.ffn_up", WIDTH, 2 * WIDTH)
    weights.matrix(f"{block}.ffn_down", 2 * WIDTH, WIDTH, mix)


def _attention(weights: Weights, layer: int, mix: float = MIX) -> None:
    block = f"blk.{layer}"
    weights.matrix(f"{block}.attn_q", WIDTH, 2 * HEADS * HEAD_WIDTH)  # queries and gates
    weights.matrix(f"{block}.attn_k", WIDTH, HEAD_WIDTH)
    weights.matrix(f"{block}.attn_v", WIDTH, HEAD_WIDTH)
    weights.matrix(f"{block}.attn_output", HEADS * HEAD_WIDTH, WIDTH, 4 * mix)
    weights.ones(f"{block}.attn_q_norm", f"{block}.attn_k_norm", width=HEAD_WIDTH)


def _delta_net(weights: Weights, layer: int) -> None:
    block, convolved = f"blk.{layer}", 2 * KEY_HEADS * STATE + INNER
    weights.matrix(f"{block}.attn_qkv", WIDTH, convolved)
    weights.matrix(f"{block}.attn_gate", WIDTH, INNER)
    weights.add(f"{block}.ssm_conv1d.weight", weights.random.normal(0, 0.5, (convolved, KERNEL)))
    weights.add(f"{block}.ssm_dt.bias", weights.random.normal(0, 0.5, VALUE_HEADS))
    weights.add(f"{block}.ssm_a", -weights.random.uniform(0.02, 0.3, VALUE_HEADS))  # it forgets slowly
    weights.matrix(f"{block}.ssm_beta", WIDTH, VALUE_HEADS)
    weights.matrix(f"{block}.ssm_alpha", WIDTH, VALUE_HEADS)
    weights.ones(f"{block}.ssm_norm", width=STATE)
    weights.matrix(f"{block}.ssm_out", INNER, WIDTH, 2 * MIX)


EAGLE_LAYERS = (1, 3, 5)
WRITERS, WRITTEN = 24, 120  # texts that the target writes at once, and their lengths


def eagle3(
    path: Path, target: Path, *, own: bool = False, drafted: int = 0, layers: Sequence[int] = EAGLE_LAYERS
) -> Path:
    """Write an EAGLE-3 head for the bundled target or a copy of it; it borrows what is not its `own`.

    With `drafted` it knows only so many of the tokens.
    """
    table, norm = map(_of_bundled, ("token_embd.weight", "output_norm.weight"))
    width, kind = table.shape[1], "f32"
    weights = Weights(path, "eagle3", kind)
    _describe_eagle3(weights.writer, width, layers)
    known, wanted = [], []
    texts = _written(target)
    for tokens, read, left in _seen(target, layers, texts):
        known.append(np.concatenate([read[:-1], rms(table[tokens[1:]])], 1))
        wanted.append((left / norm)[1:])
    matrix = ridge(np.concatenate(known), np.concatenate(wanted))
    one, none = np.eye(width), np.zeros((width, width))
    weights.add("fc.weight", matrix[:, : 3 * width])
    weights.add("output_norm.weight", norm)
    block = "blk.0"
    for name in ("attn_norm", "attn_norm_2", "ffn_norm"):
        weights.add(f"{block}.{name}.weight", np.ones(width))
    for name in ("attn_q", "attn_k"):  # a token looks at itself
        weights.add(f"{block}.{name}.weight", np.concatenate([2 * one, none], 1))
    weights.add(f"{block}.attn_v.weight", np.concatenate([one, none], 1))
    weights.add(f"{block}.attn_output.weight", matrix[:, 3 * width :])
    for name in ("gate", "up", "down"):
        weights.matrix(f"{block}.ffn_{name}", width, width, 0.05)
    if drafted:
        often = np.argsort(-np.bincount(texts.ravel(), minlength=len(table)), kind="stable")
        chosen = np.sort(often[:drafted])
        weights.writer.add_tensor("d2t", chosen, raw_dtype=gguf.GGMLQuantizationType.I64)
        weights.add("output.weight", table[chosen])
    if own:
        weights.add("token_embd.weight", table)
        weights.add("output.weight", table)
    finish(weights.writer)
    return path


def _describe_eagle3(writer: gguf.GGUFWriter, width: int, layers: Sequence[int]) -> None:
    writer.add_name("Made EAGLE-3 head")
    writer.add_block_count(1)
    writer.add_context_length(1024)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(width)
    writer.add_head_count(3)
    writer.add_head_count_kv(3)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // 3)
    writer.add_rope_freq_base(10000.0)
    writer.add_array("eagle3.target_layers", list(layers))
    writer.add_uint32("eagle3.target_hidden_size", width)


def _written(target: Path) -> NDArray[np.int64]:
    """Return texts that the target has written, at a temperature of 0.7."""
    random = np.random.default_rng(0)
    options = ModelOptions(path=target, context=WRITERS * WRITTEN, gpu_layers=0)
    with closing(Model.open(options)) as model:
        writers = [*range(WRITERS)]
        context = Context(model, options, sequences=WRITERS, threads=1)
        texts = random.integers(10, model.vocabulary.size, (WRITERS, WRITTEN))
        for at in range(WRITTEN - 1):
            rows = context.step(texts[:, at].tolist(), writers) / 0.7
            if at >= 3:  # what comes before is by chance
                texts[:, at + 1] = (rows + random.gumbel(size=rows.shape)).argmax(1)
    return texts


def _seen(
    target: Path, layers: Sequence[int], texts: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], Floats, Floats]]:
    """Yield texts with what some layers of the target read, and what its last norm leaves."""
    options = ModelOptions(path=target, context=WRITTEN, gpu_layers=0)
    with closing(Model.open(options)) as model:
        context = Context(model, options, threads=1)
        states = HiddenStates(context, layers)
        states.switch(on=True)
        native().llama_set_embeddings(context.pointer, True)
        for tokens in texts:
            context.truncate(0)
            context.evaluate(tokens.tolist(), WRITTEN)
            left = native().llama_get_embeddings(context.pointer)
            normed = np.ctypeslib.as_array(left, (WRITTEN, states.width // len(layers)))
            yield tokens, states.last(WRITTEN).astype(np.float64), normed.astype(np.float64)


def _of_bundled(name: str) -> Floats:
    found = next(each for each in _bundled().tensors if each.name == name)
    return np.asarray(gguf.quants.dequantize(found.data, found.tensor_type), np.float64)


def _fitted(target: Path, embedding: Floats) -> Floats:
    """Return what makes of a token and the hidden state before it the hidden state after it."""
    seen, wanted = [], []
    for tokens, hidden in _hidden_states(target, len(embedding)):
        seen.append(np.concatenate([rms(embedding[tokens[1:]]), rms(hidden[:-1])], 1))
        wanted.append(hidden[1:])
    return ridge(np.concatenate(seen), np.concatenate(wanted))


def _hidden_states(target: Path, vocabulary: int) -> Iterator[tuple[NDArray[np.int64], Floats]]:
    """Yield random texts with the states before the target's last norm."""
    options = ModelOptions(path=target, context=LENGTH, gpu_layers=0)
    with closing(Model.open(options)) as model:
        context = Context(model, options, threads=1)
        states = HiddenStates(context, (model.layers,))
        states.switch(on=True)
        for seed in range(TEXTS):
            tokens = np.random.default_rng(seed).integers(10, vocabulary, LENGTH)
            context.truncate(0)
            context.evaluate(tokens.tolist())
            yield tokens, states.last(LENGTH).astype(np.float64)


@cache
def _bundled() -> gguf.GGUFReader:
    return gguf.GGUFReader(bundled_pair()[0])  # 1 s


def rms(rows: Floats) -> Floats:
    """Return rows of the same length."""
    return np.asarray(rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + 1e-6))


def ridge(x: Floats, y: Floats) -> Floats:
    """Return the matrix that makes y of x with least error, and without large numbers."""
    return np.asarray(np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ y).T, np.float64)
