"""Weights as a file of few bits will hold them, while they are still being trained."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK, LEVELS = 32, 16  # weights that share a scale, and what one of them can be


def unrounded(weight: Tensor) -> Tensor:
    """Return weights as they are."""
    return weight


def as_q4_0(weight: Tensor) -> Tensor:
    """Return weights (..., columns) as Q4_0 holds them (ggml's quantize_row_q4_0_ref).

    Gradients pass as if nothing were rounded: the straight-through estimate.
    """
    blocks = weight.detach().float().unflatten(-1, (-1, BLOCK))
    scale = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True)) / (-LEVELS // 2)
    inverse = torch.where(scale == 0, 0, 1 / scale)
    levels = (blocks * inverse + (LEVELS // 2 + 0.5)).trunc().clamp(0, LEVELS - 1)
    rounded = (levels - LEVELS // 2) * scale.half().float()
    return weight + (rounded.flatten(-2).to(weight.dtype) - weight.detach())
