"""Tiny models with random weights, written when a test asks for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

WIDTH, FEED_FORWARD, LAYERS, HEADS, CONTEXT = 64, 96, 2, 2, 512
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|im|>", "<think>"]
CONTROL, USER_DEFINED, UNKNOWN, NORMAL = 3, 4, 2, 1
TYPES = [UNKNOWN, CONTROL, CONTROL, CONTROL, CONTROL, CONTROL, USER_DEFINED]


def byte_texts() -> list[str]:
    """The visible characters by which byte-level BPE spells the bytes 0 to 255."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelled = {byte: chr(byte) for byte in visible}
    hidden = [byte for byte in range(256) if byte not in spelled]
    return [spelled.get(byte) or chr(256 + hidden.index(byte)) for byte in range(256)]


class Recipe:
    """A GGUF file in the making."""

    def __init__(self, path: Path, architecture: str, seed: int = 0) -> None:
        self.path = path
        self.writer = gguf.GGUFWriter(str(path), architecture)
        self.architecture = architecture
        self._random = np.random.default_rng(seed)

    def vocabulary(
        self, *, extra: int = 0, adds_bos: bool = True, template: str | None = None, change: int | None = None
    ) -> int:
        tokens = [*SPECIAL, *byte_texts(), "Ġt", *(f"[pad{number}]" for number in range(extra))]
        if change is not None:
            tokens[change] = f"[changed{change}]"
        self.writer.add_tokenizer_model("gpt2")
        self.writer.add_tokenizer_pre("gpt-2")
        self.writer.add_token_list(tokens)
        self.writer.add_token_types([*TYPES, *[NORMAL] * (len(tokens) - len(TYPES))])
        self.writer.add_token_merges(["Ġ t"])
        self.writer.add_bos_token_id(1)
        self.writer.add_eos_token_id(2)
        self.writer.add_add_bos_token(adds_bos)
        if template is not None:
            self.writer.add_chat_template(template)
        return len(tokens)

    def matrix(self, name: str, *shape: int) -> None:
        values = self._random.normal(0, 0.3, shape).astype(np.float32)
        self.writer.add_tensor(f"{name}.weight", values)

    def ones(self, *names: str, width: int = WIDTH) -> None:
        for name in names:
            self.writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))

    def write(self) -> Path:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
        return self.path


def _shape(recipe: Recipe) -> None:
    writer = recipe.writer
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)


def _attention_block(recipe: Recipe, layer: int, experts: int = 0) -> None:
    for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
        recipe.matrix(f"blk.{layer}.{part}", WIDTH, WIDTH)
    recipe.ones(f"blk.{layer}.attn_norm", f"blk.{layer}.ffn_norm")
    if experts:
        recipe.matrix(f"blk.{layer}.ffn_gate_inp", experts, WIDTH)
        recipe.matrix(f"blk.{layer}.ffn_gate_exps", experts, FEED_FORWARD, WIDTH)
        recipe.matrix(f"blk.{layer}.ffn_up_exps", experts, FEED_FORWARD, WIDTH)
        recipe.matrix(f"blk.{layer}.ffn_down_exps", experts, WIDTH, FEED_FORWARD)
        return
    recipe.matrix(f"blk.{layer}.ffn_gate", FEED_FORWARD, WIDTH)
    recipe.matrix(f"blk.{layer}.ffn_up", FEED_FORWARD, WIDTH)
    recipe.matrix(f"blk.{layer}.ffn_down", WIDTH, FEED_FORWARD)


def llama(
    path: Path,
    *,
    extra: int = 0,
    adds_bos: bool = True,
    template: str | None = None,
    change: int | None = None,
    adjust: Callable[[Recipe], None] | None = None,
) -> Path:
    recipe = Recipe(path, "llama")
    tokens = recipe.vocabulary(extra=extra, adds_bos=adds_bos, template=template, change=change)
    _shape(recipe)
    recipe.writer.add_rope_dimension_count(WIDTH // HEADS)
    recipe.matrix("token_embd", tokens, WIDTH)
    recipe.matrix("output", tokens, WIDTH)
    recipe.ones("output_norm")
    for layer in range(LAYERS):
        _attention_block(recipe, layer)
    if adjust is not None:
        adjust(recipe)
    return recipe.write()


def mixture(path: Path, *, experts: int = 4, used: int | list[int] = 2, template: str | None = None) -> Path:
    recipe = Recipe(path, "llama")
    tokens = recipe.vocabulary(template=template)
    _shape(recipe)
    recipe.writer.add_expert_count(experts)
    if isinstance(used, int):
        recipe.writer.add_expert_used_count(used)
    else:
        recipe.writer.add_array("llama.expert_used_count", used)
    recipe.writer.add_expert_feed_forward_length(FEED_FORWARD)
    recipe.matrix("token_embd", tokens, WIDTH)
    recipe.ones("output_norm")
    for layer in range(LAYERS):
        _attention_block(recipe, layer, experts)
    return recipe.write()


def sliding_window(path: Path, window: int = 16) -> Path:
    recipe = Recipe(path, "gemma2")
    tokens = recipe.vocabulary()
    _shape(recipe)
    recipe.writer.add_key_length(WIDTH // HEADS)
    recipe.writer.add_value_length(WIDTH // HEADS)
    recipe.writer.add_sliding_window(window)
    recipe.writer.add_attn_logit_softcapping(50.0)
    recipe.writer.add_final_logit_softcapping(30.0)
    recipe.matrix("token_embd", tokens, WIDTH)
    recipe.ones("output_norm")
    for layer in range(LAYERS):
        _attention_block(recipe, layer)
        recipe.ones(f"blk.{layer}.post_attention_norm", f"blk.{layer}.post_ffw_norm")
    return recipe.write()


def recurrent(path: Path) -> Path:
    inner, state, kernel, rank = 2 * WIDTH, 16, 4, 4
    recipe = Recipe(path, "mamba")
    tokens = recipe.vocabulary()
    _shape(recipe)
    recipe.writer.add_ssm_conv_kernel(kernel)
    recipe.writer.add_ssm_inner_size(inner)
    recipe.writer.add_ssm_state_size(state)
    recipe.writer.add_ssm_time_step_rank(rank)
    recipe.matrix("token_embd", tokens, WIDTH)
    recipe.ones("output_norm")
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        recipe.ones(f"{block}.attn_norm")
        recipe.matrix(f"{block}.ssm_in", 2 * inner, WIDTH)
        recipe.matrix(f"{block}.ssm_conv1d", inner, kernel)
        recipe.matrix(f"{block}.ssm_x", rank + 2 * state, inner)
        recipe.matrix(f"{block}.ssm_dt", inner, rank)
        recipe.matrix(f"{block}.ssm_out", WIDTH, inner)
        for name in ("ssm_conv1d.bias", "ssm_dt.bias", "ssm_d"):
            recipe.writer.add_tensor(f"{block}.{name}", np.full(inner, 0.1, np.float32))
        recipe.writer.add_tensor(f"{block}.ssm_a", np.full((inner, state), -1.0, np.float32))
    return recipe.write()


def encoder(path: Path, *, adjust: Callable[[Recipe], None] | None = None) -> Path:
    """A model that looks both ways, as embedding models of BERT's kind do."""
    recipe = Recipe(path, "bert")
    tokens = recipe.vocabulary()
    _shape(recipe)
    writer = recipe.writer
    writer.add_layer_norm_eps(1e-5)
    writer.add_causal_attention(False)
    writer.add_token_type_count(2)
    recipe.matrix("token_embd", tokens, WIDTH)
    recipe.matrix("position_embd", CONTEXT, WIDTH)
    recipe.matrix("token_types", 2, WIDTH)
    recipe.ones("token_embd_norm")
    writer.add_tensor("token_embd_norm.bias", np.zeros(WIDTH, np.float32))
    for layer in range(LAYERS):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            recipe.matrix(f"blk.{layer}.{part}", WIDTH, WIDTH)
            writer.add_tensor(f"blk.{layer}.{part}.bias", np.zeros(WIDTH, np.float32))
        recipe.matrix(f"blk.{layer}.ffn_up", FEED_FORWARD, WIDTH)
        recipe.matrix(f"blk.{layer}.ffn_down", WIDTH, FEED_FORWARD)
        writer.add_tensor(f"blk.{layer}.ffn_up.bias", np.zeros(FEED_FORWARD, np.float32))
        writer.add_tensor(f"blk.{layer}.ffn_down.bias", np.zeros(WIDTH, np.float32))
        for norm in ("attn_output_norm", "layer_output_norm"):
            recipe.ones(f"blk.{layer}.{norm}")
            writer.add_tensor(f"blk.{layer}.{norm}.bias", np.zeros(WIDTH, np.float32))
    if adjust is not None:
        adjust(recipe)
    return recipe.write()


def thinker(path: Path, *, adjust: Callable[[Recipe], None] | None = None) -> Path:
    """A model of Qwen3's kind, whose head may rank documents."""
    recipe = Recipe(path, "qwen3")
    tokens = recipe.vocabulary(adds_bos=False)
    _shape(recipe)
    recipe.writer.add_key_length(WIDTH // HEADS)
    recipe.writer.add_value_length(WIDTH // HEADS)
    recipe.matrix("token_embd", tokens, WIDTH)
    recipe.ones("output_norm")
    for layer in range(LAYERS):
        _attention_block(recipe, layer)
        recipe.ones(f"blk.{layer}.attn_q_norm", f"blk.{layer}.attn_k_norm", width=WIDTH // HEADS)
    if adjust is not None:
        adjust(recipe)
    return recipe.write()


def embedding(path: Path) -> Path:
    recipe = Recipe(path, "bert")
    recipe.vocabulary()
    recipe.writer.add_pooling_type(gguf.PoolingType.MEAN)
    recipe.ones("token_embd")
    return recipe.write()
