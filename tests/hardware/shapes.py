"""Models of several shapes with random weights, large enough for percentages to mean something."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.llama.tiny import Recipe


@dataclass(frozen=True, slots=True)
class Build:
    """The numbers that a model is made of; `bare` leaves the weights out, only their places are there."""

    architecture: str = "llama"
    layers: int = 6
    width: int = 256
    feed_forward: int = 768
    heads: int = 8
    kv_heads: int = 8
    head: int = 0
    vocabulary: int = 4096
    experts: int = 0
    experts_used: int = 0
    window: int = 0
    tied: bool = False
    context: int = 32768
    bare: bool = False


SHAPES = {
    "dense": Build(),
    "grouped heads": Build(kv_heads=2, feed_forward=1024),
    "mixture of experts": Build(
        "qwen3moe", layers=4, kv_heads=2, head=32, experts=8, experts_used=2, feed_forward=256
    ),
    "sliding window": Build(architecture="gemma3", layers=8, kv_heads=4, head=32, window=512, tied=True),
    "tied output": Build(architecture="qwen2", kv_heads=2, tied=True, vocabulary=8192),
}  # fmt: skip


class Maker(Recipe):
    def __init__(self, path: Path, build: Build) -> None:
        super().__init__(path, build.architecture, seed=1)
        self.build = build
        self.whole = 0

    def matrix(self, name: str, *shape: int) -> None:
        if self.build.bare:
            size = 2 * int(np.prod(shape))
            self.writer.add_tensor_info(f"{name}.weight", shape, np.dtype(np.float16), size)
            self.whole += -(-size // 32) * 32
            return
        values = self._random.standard_normal(shape, np.float32) * np.float32(0.05)
        self.writer.add_tensor(f"{name}.weight", values.astype(np.float16))

    def ones(self, *names: str, width: int = 0) -> None:
        for name in names:
            size = width or self.build.width
            if self.build.bare:
                self.writer.add_tensor_info(f"{name}.weight", (size,), np.dtype(np.float32), 4 * size)
                self.whole += -(-4 * size // 32) * 32
            else:
                self.writer.add_tensor(f"{name}.weight", np.ones(size, np.float32))

    def write(self) -> Path:
        if not self.build.bare:
            return super().write()
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_ti_data_to_file()
        self.writer.close()
        with self.path.open("r+b") as file:  # a hole in the file, however large
            file.truncate(-(-self.path.stat().st_size // 32) * 32 + self.whole)
        return self.path


def make(path: Path, build: Build) -> Path:
    maker = Maker(path, build)
    _numbers(maker, build)
    maker.matrix("token_embd", build.vocabulary, build.width)
    maker.ones("output_norm")
    if not build.tied:
        maker.matrix("output", build.vocabulary, build.width)
    for layer in range(build.layers):
        _layer(maker, build, f"blk.{layer}")
    return maker.write()


def _numbers(maker: Maker, build: Build) -> None:
    writer, head = maker.writer, build.head or build.width // build.heads
    maker.vocabulary(extra=build.vocabulary - 264)
    writer.add_context_length(build.context)
    writer.add_embedding_length(build.width)
    writer.add_block_count(build.layers)
    writer.add_feed_forward_length(build.feed_forward)
    writer.add_head_count(build.heads)
    writer.add_head_count_kv(build.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(head)
    if build.head:
        writer.add_key_length(head)
        writer.add_value_length(head)
    if build.window:
        writer.add_sliding_window(build.window)
    if build.experts:
        writer.add_expert_count(build.experts)
        writer.add_expert_used_count(build.experts_used)
        writer.add_expert_feed_forward_length(build.feed_forward)


def _layer(maker: Maker, build: Build, block: str) -> None:
    width, head = build.width, build.head or build.width // build.heads
    maker.ones(f"{block}.attn_norm", f"{block}.ffn_norm")
    maker.matrix(f"{block}.attn_q", build.heads * head, width)
    maker.matrix(f"{block}.attn_k", build.kv_heads * head, width)
    maker.matrix(f"{block}.attn_v", build.kv_heads * head, width)
    maker.matrix(f"{block}.attn_output", width, build.heads * head)
    if build.architecture in ("gemma3", "qwen3", "qwen3moe"):
        maker.ones(f"{block}.attn_q_norm", f"{block}.attn_k_norm", width=head)
    if build.architecture in ("gemma2", "gemma3"):
        maker.ones(f"{block}.post_attention_norm", f"{block}.post_ffw_norm")
    if not build.experts:
        maker.matrix(f"{block}.ffn_gate", build.feed_forward, width)
        maker.matrix(f"{block}.ffn_up", build.feed_forward, width)
        maker.matrix(f"{block}.ffn_down", width, build.feed_forward)
        return
    maker.matrix(f"{block}.ffn_gate_inp", build.experts, width)
    maker.matrix(f"{block}.ffn_gate_exps", build.experts, build.feed_forward, width)
    maker.matrix(f"{block}.ffn_up_exps", build.experts, build.feed_forward, width)
    maker.matrix(f"{block}.ffn_down_exps", build.experts, width, build.feed_forward)
