"""Small models of today's kinds on the bundled vocabulary: random weights, and heads that are fitted to them.

A target's text hangs mostly on its last tokens, because its layers add little, so a head that ridge
regression finds from a few calls is accepted often.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

import training
from localspec.demo import bundled_pair
from localspec.llama.context import Context
from localspec.llama.heads import HiddenStates
from localspec.llama.library import native
from localspec.llama.model import Model
from localspec.types.models import ModelOptions
from training.gguf_writing import add_tensor, copy_tokenizer, finish

Floats = NDArray[np.float64]

WIDTH, HEADS, HEAD_WIDTH, LAYERS, EVERY = 64, 2, 32, 4, 4
STATE, KEY_HEADS, VALUE_HEADS, KERNEL = 32, 1, 2, 4  # of a gated delta net
INNER = VALUE_HEADS * STATE
WINDOW = 200  # nearly all of the 256 cells that llama.cpp makes at least: what is older is soon gone
EXPERTS = 2  # all are used: a choice among them would hang on rounding
MIX, OF_HEAD = 0.09, 1e-3  # of what a layer adds: in a model, in its head
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
        is_exact = "conv1d" in name or name.endswith(".bias")
        kind = gguf.GGMLQuantizationType.F32 if is_exact else self._kind
        add_tensor(self.writer, name, values.astype(np.float32), kind)

    def matrix(self, name: str, inputs: int, outputs: int, gain: float = 1.0) -> None:
        self.add(f"{name}.weight", self.random.normal(0, gain / np.sqrt(inputs), (outputs, inputs)))

    def ones(self, *names: str, width: int = WIDTH) -> None:
        for name in names:
            self.add(f"{name}.weight", 1 + self.random.normal(0, 0.05, width))


def hybrid(
    path: Path, *, kind: str = "q8_0", head: bool = True, trunk: bool = True, claims_head: bool = False
) -> Path:
    """Write a qwen35: three gated delta nets and a layer of attention, an MTP head, or both.

    It may claim a head that it lacks.
    """
    weights = Weights(path, "qwen35", kind)
    _describe_hybrid(weights.writer, heads=int(head or claims_head))
    embedding = _embeddings(weights)
    for layer in range(LAYERS) if trunk else ():
        _around(weights, layer)
        if (layer + 1) % EVERY:
            _delta_net(weights, layer)
        else:
            _attention(weights, layer)
    if head:
        trunk_alone = hybrid(path.with_suffix(".trunk.gguf"), kind=kind, head=False)
        _around(weights, LAYERS, mix=OF_HEAD)
        _attention(weights, LAYERS, mix=OF_HEAD)
        _mtp(weights, LAYERS, _fitted(trunk_alone, embedding))
    finish(weights.writer)
    return path


def attention(path: Path) -> Path:
    """Write a llama with the hybrid's embeddings and output, so that they often agree."""
    weights = Weights(path, "llama", "q8_0")
    _describe(weights.writer, 1, kv_heads=HEADS)
    _embeddings(weights)
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


def windowed(path: Path, window: int = WINDOW, layers: int = 6) -> Path:
    """Write a gemma3 with the hybrid's embeddings and output; its sixth layers alone see everything."""
    weights = Weights(path, "gemma3", "f32")
    _describe(weights.writer, layers)
    weights.writer.add_sliding_window(window)
    _embeddings(weights)
    for layer in range(layers):
        block = f"blk.{layer}"
        weights.ones(f"{block}.attn_norm", f"{block}.post_attention_norm")
        weights.ones(f"{block}.ffn_norm", f"{block}.post_ffw_norm")
        weights.ones(f"{block}.attn_q_norm", f"{block}.attn_k_norm", width=HEAD_WIDTH)
        _plain_attention(weights, layer, 1.0)
        weights.matrix(f"{block}.ffn_gate", WIDTH, 2 * WIDTH)
        weights.matrix(f"{block}.ffn_up", WIDTH, 2 * WIDTH)
        weights.matrix(f"{block}.ffn_down", 2 * WIDTH, WIDTH)
    finish(weights.writer)
    return path


def gpt_oss(path: Path, window: int = WINDOW) -> Path:
    """Write a gpt-oss: experts, and every second layer sees everything."""
    weights, layers = Weights(path, "gpt-oss", "f32"), 6
    _describe(weights.writer, layers)
    _describe_experts(weights.writer)
    weights.writer.add_sliding_window(window)
    _embeddings(weights)
    for layer in range(layers):
        block = f"blk.{layer}"
        weights.ones(f"{block}.attn_norm", f"{block}.post_attention_norm")
        _plain_attention(weights, layer, 4 * MIX)
        weights.add(f"{block}.attn_output.bias", np.zeros(WIDTH))
        weights.add(f"{block}.attn_sinks.weight", weights.random.normal(0, 1, HEADS))
        _experts(weights, layer)
        for name, shape in (
            ("ffn_gate_inp", (EXPERTS,)),
            ("ffn_gate_exps", (EXPERTS, 2 * WIDTH)),
            ("ffn_up_exps", (EXPERTS, 2 * WIDTH)),
            ("ffn_down_exps", (EXPERTS, WIDTH)),
        ):
            weights.add(f"{block}.{name}.bias", np.zeros(shape))
    finish(weights.writer)
    return path


def windowed_mtp(path: Path, window: int = WINDOW, *, head: bool = True) -> Path:
    """Write a cohere2moe, of which every fourth layer sees everything, perhaps with its MTP head."""
    weights = Weights(path, "cohere2moe", "f32")
    writer = weights.writer
    _describe(writer, LAYERS + head)
    _describe_experts(writer)
    writer.add_sliding_window(window)
    writer.add_logit_scale(1.0)
    writer.add_leading_dense_block_count(0)
    embedding = _embeddings(weights)
    for layer in range(LAYERS):
        weights.ones(f"blk.{layer}.attn_norm")
        _plain_attention(weights, layer, 4 * MIX)
        _experts(weights, layer)
    if head:
        writer.add_uint32("cohere2moe.nextn_predict_layers", 1)
        trunk_alone = windowed_mtp(path.with_suffix(".trunk.gguf"), window, head=False)
        weights.ones(f"blk.{LAYERS}.attn_norm")
        _plain_attention(weights, LAYERS, OF_HEAD)
        _experts(weights, LAYERS, OF_HEAD)
        _mtp(weights, LAYERS, _fitted(trunk_alone, embedding))
    finish(writer)
    return path


def _describe(writer: gguf.GGUFWriter, blocks: int, *, kv_heads: int = 1, rotated: int = HEAD_WIDTH) -> None:
    writer.add_block_count(blocks)
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(HEAD_WIDTH)
    writer.add_value_length(HEAD_WIDTH)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(rotated)


def _embeddings(weights: Weights) -> Floats:
    """Add and return the embeddings of tokens, with the output layer; models of one seed share both."""
    embedding = weights.random.normal(0, 1, (weights.vocabulary, WIDTH))
    weights.add("token_embd.weight", embedding)
    weights.ones("output_norm")
    weights.matrix("output", WIDTH, weights.vocabulary, 3.0)
    return embedding


def _describe_experts(writer: gguf.GGUFWriter) -> None:
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(EXPERTS)
    writer.add_expert_feed_forward_length(2 * WIDTH)


def _experts(weights: Weights, layer: int, mix: float = MIX) -> None:
    block = f"blk.{layer}"
    weights.matrix(f"{block}.ffn_gate_inp", WIDTH, EXPERTS)
    for name, inputs, outputs, gain in (
        ("gate", WIDTH, 2 * WIDTH, 1.0),
        ("up", WIDTH, 2 * WIDTH, 1.0),
        ("down", 2 * WIDTH, WIDTH, mix),
    ):
        values = weights.random.normal(0, gain / np.sqrt(inputs), (EXPERTS, outputs, inputs))
        weights.add(f"{block}.ffn_{name}_exps.weight", values)


def _plain_attention(weights: Weights, layer: int, mix: float) -> None:
    block = f"blk.{layer}"
    weights.matrix(f"{block}.attn_q", WIDTH, HEADS * HEAD_WIDTH)
    weights.matrix(f"{block}.attn_k", WIDTH, HEAD_WIDTH)
    weights.matrix(f"{block}.attn_v", WIDTH, HEAD_WIDTH)
    weights.matrix(f"{block}.attn_output", HEADS * HEAD_WIDTH, WIDTH, mix)


def _mtp(weights: Weights, block: int, matrix: Floats) -> None:
    """Add what makes a block an MTP head."""
    weights.add(f"blk.{block}.nextn.eh_proj.weight", matrix)
    for name in ("enorm", "hnorm"):
        weights.add(f"blk.{block}.nextn.{name}.weight", np.ones(WIDTH))


def _describe_hybrid(writer: gguf.GGUFWriter, heads: int) -> None:
    writer.add_name("Made hybrid")
    _describe(writer, LAYERS + heads, rotated=HEAD_WIDTH // 4)  # the head counts as a block
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


EAGLE_LAYERS, EAGLE_HEAD_WIDTH = (1, 3, 5), 64
TEXTS_READ, LONGEST = 110, 200  # that a head is fitted to, and their most tokens
FEATURES = 1024  # by chance, of which the feed-forward network makes what no matrix can
SMALL = 0.05  # of what the encoder hands on, so that its norm counts and not what adds it to the sum


def eagle3(
    path: Path,
    *,
    own: bool = False,
    drafted: int = 0,
    layers: Sequence[int] = EAGLE_LAYERS,
    target: Path | None = None,
) -> Path:
    """Write an EAGLE-3 head for a target, the bundled one unless named; it borrows what is not its `own`.

    With `drafted` it knows only N of the tokens. This and its `own` tensors need a target whose output layer
    is its embeddings.
    """
    target = target or bundled_pair()[0]
    table, norm = _table_and_norm(target)
    width = table.shape[1]
    weights = Weights(path, "eagle3", "f32")
    _describe_eagle3(weights.writer, width, layers)
    fitted, counts = _eagle3_fitted(target, tuple(layers))
    for name, matrix in fitted.items():
        weights.add(f"{name}.weight", matrix)
    weights.add("output_norm.weight", norm)
    for name in ("attn_norm", "attn_norm_2", "ffn_norm"):
        weights.add(f"blk.0.{name}.weight", np.ones(width))
    if drafted:
        chosen = np.sort(np.argsort(-counts, kind="stable")[:drafted])
        weights.writer.add_tensor("d2t", chosen, raw_dtype=gguf.GGMLQuantizationType.I64)
        weights.add("output.weight", table[chosen])
    if own:
        weights.add("token_embd.weight", table)
        weights.add("output.weight", table)
    finish(weights.writer)
    return path


@cache
def _eagle3_fitted(target: Path, layers: tuple[int, ...]) -> tuple[dict[str, Floats], NDArray[np.int64]]:
    """Return a head's matrices, and how often each token stood in the texts that they were fitted to.

    What it makes of the target's states and of its own is to be the target's next state. Attention looks at
    the token itself alone, so all of it is linear but for the feed-forward network.
    """
    table, norm = _table_and_norm(target)
    texts = [(tokens, read, left / norm) for tokens, read, left in _seen(target, layers)]
    token = rms(table[np.concatenate([tokens[1:] for tokens, _, _ in texts])])
    read = np.concatenate([read[:-1] for _, read, _ in texts])
    state, wanted = (
        np.concatenate([left[part] for _, _, left in texts]) for part in (slice(-1), slice(1, None))
    )
    attention, one = ridge(np.concatenate([token, rms(state)], 1), wanted - state), np.eye(len(norm))
    for _ in range(2):
        of_token, of_state = np.split(attention, 2, axis=1)
        encoder = np.linalg.solve(of_state, ridge(read, wanted - token @ of_token.T))
        encoder *= SMALL / np.sqrt(np.square(read @ encoder.T).mean())
        given = np.concatenate([read @ encoder.T, state])
        seen = np.concatenate([np.concatenate([token] * 2), rms(given)], 1)
        attention = ridge(seen, np.concatenate([wanted] * 2) - given)
    given += seen @ attention.T
    random = np.random.default_rng(0)
    gate, up = random.normal(0, 1.5 / np.sqrt(len(norm)), (2, FEATURES, len(norm))).astype(np.float32)
    normed = rms(given).astype(np.float32)
    gates = normed @ gate.T
    features = gates / (1 + np.exp(-gates)) * (normed @ up.T)
    block = {
        "attn_q": 2 * np.concatenate([one, one], 1),
        "attn_k": 2 * np.concatenate([one, one], 1),
        "attn_v": attention,
        "attn_output": one,
        "ffn_gate": gate,
        "ffn_up": up,
        "ffn_down": ridge(features, (np.concatenate([wanted] * 2) - given).astype(np.float32)),
    }
    counts = np.bincount(np.concatenate([tokens for tokens, _, _ in texts]), minlength=len(table))
    return {"fc": encoder} | {f"blk.0.{name}": matrix for name, matrix in block.items()}, counts


def _describe_eagle3(writer: gguf.GGUFWriter, width: int, layers: Sequence[int]) -> None:
    writer.add_name("Made EAGLE-3 head")
    writer.add_block_count(1)
    writer.add_context_length(1024)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(FEATURES)
    heads = width // EAGLE_HEAD_WIDTH
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(EAGLE_HEAD_WIDTH)
    writer.add_rope_freq_base(10000.0)
    writer.add_array("eagle3.target_layers", list(layers))
    writer.add_uint32("eagle3.target_hidden_size", width)


def _seen(target: Path, layers: Sequence[int]) -> Iterator[tuple[NDArray[np.int64], Floats, Floats]]:
    """Yield chats with what some layers of a target read, and what its last norm leaves."""
    options = ModelOptions(path=target, context=LONGEST, gpu_layers=0, threads=1)
    with lzma.open(Path(training.__file__).parent / "corpus" / "corpus-heldout.txt.xz", "rt") as file:
        documents = [text.partition("\n")[2] for text in file.read().split("<|doc:")]
    chats = [text for text in documents if "<|im_start|>" in text]
    with closing(Model.open(options)) as model:
        context = Context(model, options, rows=LONGEST)
        states = HiddenStates(context, layers)
        states.switch(on=True)
        native().llama_set_embeddings(context.pointer, True)
        for text in chats[:: len(chats) // TEXTS_READ]:
            tokens = model.vocabulary.tokenize(text, special=True)[:LONGEST]
            context.truncate(0)
            context.evaluate(tokens, len(tokens))
            left = native().llama_get_embeddings(context.pointer)
            normed = np.ctypeslib.as_array(left, (len(tokens), states.width // len(layers)))
            yield np.array(tokens), states.last(len(tokens)).astype(np.float64), normed.astype(np.float64)


def _table_and_norm(target: Path) -> tuple[Floats, Floats]:
    """Return a target's embeddings of tokens and the weights of its last norm."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(target).tensors}
    table, norm = (
        np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float64)
        for tensor in (tensors["token_embd.weight"], tensors["output_norm.weight"])
    )
    return table, norm


def _fitted(target: Path, embedding: Floats) -> Floats:
    """Return what makes of a token and the hidden state before it the hidden state after it."""
    seen, wanted = [], []
    for tokens, hidden in _hidden_states(target, len(embedding)):
        seen.append(np.concatenate([rms(embedding[tokens[1:]]), rms(hidden[:-1])], 1))
        wanted.append(hidden[1:])
    return ridge(np.concatenate(seen), np.concatenate(wanted))


def _hidden_states(target: Path, vocabulary: int) -> Iterator[tuple[NDArray[np.int64], Floats]]:
    """Yield random texts with the states before the target's last norm."""
    options = ModelOptions(path=target, context=LENGTH, gpu_layers=0, threads=1)
    with closing(Model.open(options)) as model:
        context = Context(model, options)
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


def adapter(path: Path, target: Path, *, seed: int = 0, rank: int = 4, architecture: str = "") -> Path:
    """Write a LoRA adapter for a model: random, and strong enough to change its answers."""
    reader = gguf.GGUFReader(target)
    kind = architecture or str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(path, kind)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    random = np.random.default_rng(seed)
    for tensor in reader.tensors:
        if tensor.name.endswith(("attn_q.weight", "attn_v.weight", "ffn_down.weight")):
            inputs, outputs = (int(size) for size in tensor.shape)
            down = random.normal(0, 1 / np.sqrt(inputs), (rank, inputs))
            up = random.normal(0, 0.5, (outputs, rank))
            writer.add_tensor(f"{tensor.name}.lora_a", down.astype(np.float32))
            writer.add_tensor(f"{tensor.name}.lora_b", up.astype(np.float32))
    finish(writer)
    return path
