"""Turn logits into distributions, and distributions into tokens.

The steps and their order are llama.cpp's (src/llama-sampler.cpp):
penalties, top-k, top-p, min-p, temperature.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from localspec.errors import EngineError
from localspec.types import Distribution, Sampling

Logits = NDArray[np.float32]
Ids = NDArray[np.int64]
Floats = NDArray[np.float64]

_LARGE_VOCABULARY = 32768  # from here on, longer blocks find the best candidates faster
_CERTAIN: Floats = np.ones(1)
_CERTAIN.flags.writeable = False
_NOT_NUMBERS = "the model returned logits that are not numbers"


def one_point(token: int) -> Distribution:
    """Return the distribution that always gives `token`."""
    return Distribution(np.array([token], dtype=np.int64), _CERTAIN)


def top_candidates(rows: Logits, count: int) -> tuple[Ids, Logits]:
    """Return ids and logits of the `count` largest entries of each row, in descending order.

    `rows` float32 (n, vocabulary); the results are (n, count), narrower where the vocabulary is.
    Raises `EngineError` when the logits are not numbers.
    """
    size = rows.shape[1]
    count = min(count, size)
    ids = np.empty((len(rows), count), dtype=np.int64)
    logits = np.empty((len(rows), count), dtype=np.float32)
    thresholds = _thresholds(rows, count)
    for index, (row, threshold) in enumerate(zip(rows, thresholds, strict=True)):
        found = (row >= threshold).nonzero()[0]
        if len(found) < count:
            raise EngineError(_NOT_NUMBERS)
        values = row[found]
        order = values.argsort()[: -count - 1 : -1]
        ids[index] = found[order]
        logits[index] = values[order]
    return ids, logits


def _thresholds(rows: Logits, count: int) -> Logits:
    """Return for each row a value that at least `count` entries reach, and few more."""
    size = rows.shape[1]
    blocks = 16 if size < _LARGE_VOCABULARY else 64
    width = size // blocks
    if width <= count:
        return np.partition(rows, size - count, axis=1)[:, size - count]
    maxima = rows[:, : width * blocks].reshape(-1, blocks, width).max(axis=1)
    return np.partition(maxima, width - count, axis=1)[:, width - count]


def greedy_token(logits: Logits, sampling: Sampling, history: Sequence[int]) -> int:
    """Return the most likely token after penalties; `logits` float32 (vocabulary,)."""
    if penalises(sampling) and history:
        return int(_best(logits, 1, sampling, history)[0][0])
    token = int(logits.argmax())
    if logits[token] != logits[token]:
        raise EngineError(_NOT_NUMBERS)
    return token


def distribution(logits: Logits, sampling: Sampling, history: Sequence[int]) -> Distribution:
    """Return the distribution of the next token, sorted by probability unless it spans the vocabulary.

    `logits` float32 (vocabulary,); `history` is the text so far, which the penalties look at.
    """
    if sampling.temperature <= 0:
        return one_point(greedy_token(logits, sampling, history))
    if 0 < sampling.top_k < len(logits):
        ids, best = _best(logits, sampling.top_k, sampling, history)
        values = best.astype(np.float64)
        kept = _kept(values, sampling)
        return Distribution(ids[:kept], _softmax(values[:kept], sampling.temperature, values[0]))
    row = _penalised(logits, sampling, history)
    if sampling.top_p >= 1 and sampling.min_p <= 0:
        return Distribution(None, _softmax(row, sampling.temperature, row.max()))
    return _without_top_k(row, sampling)


def draft_distribution(  # noqa: PLR0913 - every one of them shapes q
    ids: Ids,
    logits: Logits,
    sampling: Sampling,
    *,
    draft_temperature: float,
    saguaro_c: float,
    saguaro_top: int,
    history: Sequence[int],
) -> Distribution:
    """Return the q to draw a draft token from, given the draft model's best candidates.

    `ids` (n,) and `logits` (n,) are one row of `top_candidates`. After the target's own sampling steps
    the temperature is multiplied by `draft_temperature`, and the probabilities of the first `saguaro_top`
    tokens by `saguaro_c`. The order is that of the draft model's preference, before this down-weighting.
    """
    values = logits.astype(np.float64)
    if penalises(sampling) and history:
        ids, values = _penalise_candidates(ids, values, sampling, history)
    temperature = sampling.temperature * draft_temperature
    if temperature <= 0:
        return one_point(int(ids[0]))
    if 0 < sampling.top_k < len(ids):
        values = values[: sampling.top_k]
    kept = _kept(values, sampling)
    probs = _softmax(values[:kept], temperature, values[0])
    if saguaro_c != 1 and 0 < saguaro_top < kept:  # one factor for all tokens would change nothing
        probs = _down_weighted(probs, saguaro_c, saguaro_top)
    return Distribution(ids[:kept], probs)


def probability(distribution: Distribution, token: int) -> float:
    """Return the probability of a token, 0 outside the support."""
    if distribution.ids is None:
        return float(distribution.probs[token])
    index = int((distribution.ids == token).argmax())
    return float(distribution.probs[index]) if distribution.ids[index] == token else 0.0


def draw(distribution: Distribution, uniform: float) -> int:
    """Return the token at `uniform` (0 <= uniform < 1) of the cumulative distribution.

    A token of probability 0 is never returned.
    """
    cumulative = distribution.probs.cumsum()
    total = cumulative[-1]
    index = int(cumulative.searchsorted(uniform * total, side="right"))
    if index >= len(cumulative):  # rounding has carried the product up to the total
        index = int(cumulative.searchsorted(total, side="left"))
    return index if distribution.ids is None else int(distribution.ids[index])


def residual(p: Distribution, q: Distribution | int) -> Distribution:
    """Return normalise(max(p - q, 0)), from which the token after a rejection is drawn.

    `q` is a distribution, or the token of a one-hot one. Where rounding leaves nothing, p and q agree
    and a rejection has no probability but that of rounding: the answer is then p.
    """
    rest = p.probs.copy()
    if not isinstance(q, Distribution):
        rest[q if p.ids is None else p.ids == q] = 0
    elif q.ids is None:
        rest -= q.probs if p.ids is None else q.probs[p.ids]
    elif p.ids is None:
        rest[q.ids] -= q.probs
    else:
        order = q.ids.argsort()
        sorted_ids = q.ids[order]
        places = np.minimum(sorted_ids.searchsorted(p.ids), len(order) - 1)
        rest -= np.where(sorted_ids[places] == p.ids, q.probs[order][places], 0)
    np.maximum(rest, 0, out=rest)
    mass = rest.sum()
    return Distribution(p.ids, rest / mass) if mass > 0 else p


def _down_weighted(probs: Floats, factor: float, first: int) -> Floats:
    weighted = probs.copy()
    weighted[:first] *= factor
    mass = weighted.sum()
    return weighted / mass if mass > 0 else probs


def _softmax(values: Floats | Logits, temperature: float, best: np.floating) -> Floats:
    """Return probabilities; `best` is the largest of the values."""
    scaled = values - best
    scaled /= temperature
    probs: Floats = np.exp(scaled, out=scaled).astype(np.float64, copy=False)
    mass = probs.sum()
    if not mass > 0:  # also when it is not a number
        raise EngineError(_NOT_NUMBERS)
    probs /= mass
    return probs


def _kept(values: Floats, sampling: Sampling, total: float | None = None) -> int:
    """Return how many of the descending `values` top-p and min-p leave.

    `total` is the sum of exp(value - best) over everything that top-k left, if that is more than `values`.
    Both steps keep a beginning of the same order, so the shorter one decides.
    """
    kept = len(values)
    if sampling.top_p < 1:
        masses = np.exp(values - values[0]).cumsum()
        wanted = sampling.top_p * (masses[-1] if total is None else total)
        kept = min(kept, int(masses.searchsorted(wanted, side="left")) + 1)
    if sampling.min_p > 0:
        least = values[0] + log(sampling.min_p)
        kept = min(kept, int(np.count_nonzero(values >= least)))
    return max(kept, 1)


def _without_top_k(row: Logits, sampling: Sampling) -> Distribution:
    """Truncate a whole row by top-p and min-p, looking at as few candidates as decide it."""
    weights = row - row.max()
    total = float(np.exp(weights, out=weights).sum(dtype=np.float64))
    count = 256
    while True:
        ids, found = top_candidates(row[None], count)
        values = found[0].astype(np.float64)
        kept = _kept(values, sampling, total)
        if kept < len(values) or len(values) == len(row):
            return Distribution(ids[0][:kept], _softmax(values[:kept], sampling.temperature, values[0]))
        count *= 16


def penalises(sampling: Sampling) -> bool:
    """Tell whether any penalty is on."""
    return sampling.penalty_window > 0 and (
        sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
    )


def _lowered(values: Floats, counts: Sequence[int], sampling: Sampling) -> Floats:
    """Return the logits of tokens that occur `counts` times in the penalty window."""
    times = np.asarray(counts, dtype=np.float64)
    repetition = sampling.repetition_penalty
    scaled = np.where(values <= 0, values * repetition, values / repetition)
    lowered = scaled - times * sampling.frequency_penalty - sampling.presence_penalty
    return np.where(times > 0, lowered, values)


def _recent(sampling: Sampling, history: Sequence[int]) -> Counter[int]:
    return Counter(history[-sampling.penalty_window :])


def _penalised(logits: Logits, sampling: Sampling, history: Sequence[int]) -> Logits:
    """Return the row after penalties; the row itself where there are none."""
    if not penalises(sampling) or not history:
        return logits
    recent = _recent(sampling, history)
    row, tokens = logits.copy(), list(recent)
    row[tokens] = _lowered(row[tokens].astype(np.float64), list(recent.values()), sampling)
    return row


def _best(logits: Logits, count: int, sampling: Sampling, history: Sequence[int]) -> tuple[Ids, Logits]:
    """Return the `count` best ids and logits after penalties, without copying the row."""
    if not penalises(sampling) or not history:
        ids, values = top_candidates(logits[None], count)
        return ids[0], values[0]
    recent = _recent(sampling, history)
    # That many hold at least `count` tokens without a penalty; those with one join whatever their rank.
    top_ids, top_values = top_candidates(logits[None], count + len(recent))
    free = [place for place, token in enumerate(top_ids[0].tolist()) if token not in recent]
    tokens = np.array(list(recent), dtype=np.int64)
    lowered = _lowered(logits[tokens].astype(np.float64), list(recent.values()), sampling)
    joined_ids = np.concatenate((top_ids[0][free], tokens))
    joined = np.concatenate((top_values[0][free], lowered.astype(np.float32)))
    order = joined.argsort()[: -count - 1 : -1]
    return joined_ids[order], joined[order]


def _penalise_candidates(
    ids: Ids, values: Floats, sampling: Sampling, history: Sequence[int]
) -> tuple[Ids, Floats]:
    recent = _recent(sampling, history)
    values = _lowered(values, [recent[token] for token in ids.tolist()], sampling)
    order = (-values).argsort(kind="stable")
    return ids[order], values[order]
