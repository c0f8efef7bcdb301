"""Lower the logits of tokens that the text has used lately, as llama.cpp does (src/llama-sampler.cpp)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.types import Sampling

Logits = NDArray[np.float32]
Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


def penalises(sampling: Sampling) -> bool:
    """Tell whether any penalty is on."""
    return sampling.penalty_window > 0 and (
        sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
    )


def penalised_row(logits: Logits, sampling: Sampling, history: Sequence[int]) -> Logits:
    """Return the row after penalties; the row itself where there are none."""
    if not history or not penalises(sampling):
        return logits
    recent = _recent(sampling, history)
    row, tokens = logits.copy(), list(recent)
    row[tokens] = _lowered(row[tokens].astype(np.float64), list(recent.values()), sampling)
    return row


def penalised_candidates(
    ids: Sequence[int] | Ids, logits: Sequence[float] | Logits, sampling: Sampling, history: Sequence[int]
) -> tuple[list[int], list[float]]:
    """Return some tokens with their logits after penalties, best first."""
    recent = _recent(sampling, history)
    known, counts = np.asarray(ids), [recent[int(token)] for token in ids]
    values = _lowered(np.asarray(logits, dtype=np.float64), counts, sampling)
    order = (-values).argsort(kind="stable")
    return known[order].tolist(), values[order].tolist()


def _recent(sampling: Sampling, history: Sequence[int]) -> Counter[int]:
    return Counter(history[-sampling.penalty_window :])


def _lowered(values: Floats, counts: Sequence[int], sampling: Sampling) -> Floats:
    """Return the logits of tokens that occur `counts` times in the penalty window."""
    times = np.asarray(counts, dtype=np.float64)
    repetition = sampling.repetition_penalty
    scaled = np.where(values <= 0, values * repetition, values / repetition)
    lowered = scaled - times * sampling.frequency_penalty - sampling.presence_penalty
    return np.where(times > 0, lowered, values)
