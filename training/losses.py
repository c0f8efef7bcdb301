"""What training minimises, how it steps, and how it is judged on held-out text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from training.model import Model

Loss = Callable[[Tensor, Tensor], Tensor]
EVALUATION_TOKENS, EVALUATION_WINDOWS, EVALUATION_BATCH = 512, 24, 8


def autocast(device: str, enabled: bool) -> AbstractContextManager[None]:
    """Compute in bfloat16 where that is safe."""
    context: AbstractContextManager[None] = torch.autocast(
        torch.device(device).type, dtype=torch.bfloat16, enabled=enabled
    )
    return context


def next_token_loss(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of the next tokens y (batch, time) after x (batch, time), in nats."""
    return F.cross_entropy(model(x).float().flatten(0, 1), y.flatten())


def distillation_loss(model: Model, teacher: Model, x: Tensor, y: Tensor, hard_weight: float) -> Tensor:
    """Return KL(teacher || student), with `hard_weight` parts of the ordinary cross-entropy."""
    with torch.no_grad():
        wanted = F.log_softmax(teacher(x).float(), -1).flatten(0, 1)
    given = F.log_softmax(model(x).float(), -1).flatten(0, 1)
    divergence = F.kl_div(given, wanted, log_target=True, reduction="batchmean")
    if not hard_weight:
        return divergence
    return (1 - hard_weight) * divergence + hard_weight * F.nll_loss(given, y.flatten())


def make_optimizers(model: Model, lr: float, weight_decay: float) -> list[torch.optim.Optimizer]:
    """Take Muon for the matrices inside the blocks, AdamW for embeddings and norms."""
    matrices: list[Tensor] = []
    rest: list[Tensor] = []
    for name, weight in model.named_parameters():
        (matrices if weight.dim() == 2 and "token_embd" not in name else rest).append(weight)
    muon = torch.optim.Muon(
        matrices,
        lr=lr,
        momentum=0.95,
        weight_decay=weight_decay,
        ns_steps=5,
        adjust_lr_fn="match_rms_adamw",
    )
    return [torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.0), muon]


def schedule(progress: float, decay_from: float, warmup: float = 0.02) -> float:
    """Return the factor of the learning rate: short warm-up, plateau, then linear decay to zero."""
    if progress < warmup:
        return progress / warmup + 0.01
    if progress > decay_from:
        return max(0.0, (1 - progress) / (1 - decay_from))
    return 1.0


def evaluate(
    model: Model, held_out: Mapping[str, NDArray[np.uint16]], device: str, amp: bool
) -> dict[str, float]:
    """Return the loss in nats per token for every kind of document that fills a window."""
    seq = min(EVALUATION_TOKENS, model.cfg.context)
    model.eval()
    losses: dict[str, float] = {}
    for kind in sorted(held_out):
        ids = held_out[kind].astype(np.int64)
        windows = min(EVALUATION_WINDOWS, (len(ids) - 1) // seq)
        if windows == 0:
            continue
        rows = np.stack([ids[i * seq : i * seq + seq + 1] for i in range(windows)])
        total = 0.0
        for part in torch.from_numpy(rows).to(device).split(EVALUATION_BATCH):
            with torch.no_grad(), autocast(device, amp):
                total += next_token_loss(model, part[:, :-1], part[:, 1:]).item() * len(part)
        losses[kind] = total / windows
    model.train()
    return losses
