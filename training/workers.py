"""Several processes that train one model: one reads the clock, all share their gradients."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor


def own_rank() -> int:
    """Return this process's number among those that `torch.distributed.run` started, 0 for the only one."""
    return int(os.environ.get("RANK", "0"))


def own_seed(seed: int) -> int:
    """Return a seed of this process's own, `seed` for the first: each is to read windows of its own."""
    return seed + 1000 * own_rank()


@dataclass(frozen=True, slots=True)
class Workers:
    """This process among those that `torch.distributed.run` started."""

    device: str
    rank: int = 0
    world: int = 1

    @classmethod
    def join(cls, device: str) -> Workers:
        """Meet the other processes, if there are any."""
        rank, world = own_rank(), int(os.environ.get("WORLD_SIZE", "1"))
        if world > 1:
            torch.distributed.init_process_group("gloo" if device == "cpu" else "nccl")
        return cls(device, rank, world)

    @property
    def is_first(self) -> bool:
        """Tell whether this process reports and saves."""
        return self.rank == 0

    def agree(self, value: float) -> float:
        """Return the first process's value."""
        if self.world == 1:
            return value
        shared = torch.tensor([value], device=self.device)
        torch.distributed.broadcast(shared, 0)
        return float(shared.item())

    def average_gradients(self, model: torch.nn.Module) -> None:
        """Replace all gradients by their mean over the processes."""
        if self.world == 1:
            return
        gradients: list[Tensor] = [p.grad for p in model.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        torch.distributed.all_reduce(flat)
        flat /= self.world
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
