"""What a target wrote, with its candidates, as windows to train a draft on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localspec.errors import UserError

CANDIDATES = 16  # of a position that are kept
HELD_OUT = 40  # every so many-th shard, beginning with the first, is kept from training


@dataclass(frozen=True, slots=True)
class TeacherText:
    """A stream of tokens; `top[i]` and `chances[i]` are the candidates that token i was chosen from.

    `ids` (n) and `written` (n) are aligned; the candidates (m, 16) belong to the written tokens in turn.
    `row[i]` is the candidates' row of token i, meaningless where it was not written.
    """

    ids: NDArray[np.int64]
    written: NDArray[np.bool_]
    row: NDArray[np.int64]
    top: NDArray[np.int64]
    chances: NDArray[np.float32]

    @classmethod
    def read(cls, shards: Sequence[Path]) -> TeacherText:
        """Read shards, one after the other."""
        parts = []
        for path in shards:
            with np.load(path) as file:
                parts.append([file[name] for name in ("ids", "written", "top", "log_chances")])
        ids, written, top, logs = (np.concatenate(column) for column in zip(*parts, strict=True))
        chances = np.exp(logs.astype(np.float32))
        chances /= chances.sum(axis=1, keepdims=True)
        return cls(ids.astype(np.int64), written, np.cumsum(written) - 1, top.astype(np.int64), chances)

    def frequent(self, vocabulary: int, count: int) -> NDArray[np.int64]:
        """Return the ids that the target gave most weight to, in order of their number."""
        weight = np.bincount(self.top.ravel(), self.chances.ravel(), vocabulary)
        return np.sort(np.argsort(-weight)[:count])


def split_shards(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the shards to train on, and those that only judge."""
    shards = sorted(folder.glob("*.npz"))
    if len(shards) < 2:
        raise UserError(f"there are too few answers in {folder}", "let a target write them with `answers`")
    return [path for i, path in enumerate(shards) if i % HELD_OUT], shards[::HELD_OUT]
