"""A plain llama-architecture decoder: RMSNorm, RoPE, SwiGLU, tied embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.rounding import unrounded

PLAIN_ATTENTION_TOKENS = 512  # up to here, on a CPU, matrix products beat the fused kernel


@dataclass(frozen=True, slots=True)
class Config:
    """The shape of a model."""

    vocab: int = 8192
    dim: int = 256
    layers: int = 6
    heads: int = 4
    ffn: int = 768
    context: int = 1024
    rope_theta: float = 10000.0
    eps: float = 1e-5


def rope_tables(cfg: Config, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (context, head_dim / 2) for a rotation of the head's two halves.

    llama.cpp rotates neighbours instead; the export reorders the rows of q and k for it.
    """
    half = cfg.dim // cfg.heads // 2
    inverse = cfg.rope_theta ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
    angle = torch.arange(cfg.context, device=device, dtype=torch.float32)[:, None] * inverse[None]
    return angle.cos(), angle.sin()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + head_dim / 2) of x (batch, heads, time, head_dim)."""
    a, b = x.chunk(2, -1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention of q, k, v (batch, heads, time, head_dim)."""
    time = q.shape[2]
    if q.device.type != "cpu" or time > PLAIN_ATTENTION_TOKENS:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    mask = torch.full((time, time), float("-inf"), dtype=q.dtype).triu(1)
    scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2)) + mask
    return torch.matmul(scores.softmax(-1, dtype=scores.dtype), v)


class Block(nn.Module):
    """One layer: attention and a gated feed-forward network, each added to the residual stream."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        dim, self.heads = cfg.dim, cfg.heads
        self.attn_norm = nn.RMSNorm(dim, eps=cfg.eps)
        self.attn_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.attn_output = nn.Linear(dim, dim, bias=False)
        self.ffn_norm = nn.RMSNorm(dim, eps=cfg.eps)
        self.ffn_gate_up = nn.Linear(dim, 2 * cfg.ffn, bias=False)
        self.ffn_down = nn.Linear(cfg.ffn, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the residual stream (batch, time, dim) after this layer."""
        batch, time, dim = x.shape
        qkv = self.attn_qkv(self.attn_norm(x)).view(batch, time, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = attention(apply_rope(q, cos, sin), apply_rope(k, cos, sin), v)
        x = x + self.attn_output(y.transpose(1, 2).reshape(batch, time, dim))
        gate, up = self.ffn_gate_up(self.ffn_norm(x)).chunk(2, -1)
        return x + self.ffn_down(F.silu(gate) * up)


class Model(nn.Module):
    """The decoder; its embedding is also its output matrix."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.cfg = cfg
        self.rounding: Callable[[Tensor], Tensor] = unrounded  # of the embedding
        self.token_embd = nn.Embedding(cfg.vocab, cfg.dim)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.layers))
        self.output_norm = nn.RMSNorm(cfg.dim, eps=cfg.eps)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=initial_spread(name, cfg))

    def hidden(self, ids: Tensor) -> Tensor:
        """Return what the output matrix reads, (batch, time, dim), for ids (batch, time)."""
        cos, sin = rope_tables(self.cfg, ids.device)
        cos, sin = cos[: ids.shape[1]], sin[: ids.shape[1]]
        x = self.rounding(self.token_embd(ids))
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.output_norm(x)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (batch, time, vocabulary) for ids (batch, time)."""
        return F.linear(self.hidden(ids), self.rounding(self.token_embd.weight))


def initial_spread(name: str, cfg: Config) -> float:
    """Return the deviation that a matrix starts with; what adds to the residual stream starts small."""
    if "token_embd" in name:
        return 0.02
    spread = cfg.dim**-0.5 * 0.6
    is_output = name.endswith(("attn_output.weight", "ffn_down.weight"))
    return spread / math.sqrt(2 * cfg.layers) if is_output else spread


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model, and how it came about."""

    model: Model
    tokens: int  # that it was trained on, runs that it continued included
    seconds: float  # of its last run
    held_out: dict[str, float] = field(default_factory=dict)  # nats per token

    def save(self, path: Path) -> None:
        """Write the checkpoint."""
        content = {
            "config": asdict(self.model.cfg),
            "model": self.model.state_dict(),
            "tokens": self.tokens,
            "seconds": self.seconds,
            "heldout": self.held_out,
        }
        torch.save(content, path)

    @classmethod
    def load(cls, path: Path, device: str = "cpu") -> Checkpoint:
        """Read a checkpoint."""
        content = torch.load(path, map_location=device, weights_only=True)
        model = Model(Config(**content["config"])).to(device)
        model.load_state_dict(content["model"])
        return cls(model, int(content["tokens"]), float(content["seconds"]), content["heldout"])
