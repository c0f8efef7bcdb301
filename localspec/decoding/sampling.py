"""Turn logits into distributions, and distributions into tokens.

The steps and their order are llama.cpp's (src/llama-sampler.cpp):
penalties, top-k, top-p, min-p, temperature.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from math import exp, inf, log

import numpy as np
from numpy.typing import NDArray

from localspec.errors import LogitsError
from localspec.types.candidates import MOST, Candidates, FullRow, Ids, Logits, largest, masked, top_entries
from localspec.types.drafts import Distribution, TokenMask
from localspec.types.request import EngineSettings, Sampling

Floats = NDArray[np.float64]

FEW = 64  # candidates: up to here Python's own numbers are faster than calls of numpy
_CERTAIN: Floats = np.ones(1)
_CERTAIN.flags.writeable = False


def one_point(token: int) -> Distribution:
    """Return the distribution that always gives `token`."""
    return Distribution(np.array([token], dtype=np.int64), _CERTAIN)


def deciding(sampling: Sampling) -> int | None:
    """Return the number of a row's best candidates that decide what `sampling` draws; None: all or too many.

    Penalties that only lower logits push at most one candidate out for each token that they look at.
    """
    count = 1 if sampling.is_greedy else sampling.top_k
    if count and penalises(sampling):
        if not _only_lowers(sampling):
            return None
        count += sampling.penalty_window
    return count if 0 < count <= MOST else None


def distribution(
    row: Candidates, sampling: Sampling, history: Sequence[int], mask: TokenMask | None = None
) -> Distribution:
    """Return the distribution of the next token, sorted by probability unless nothing is cut off.

    `history` is the text so far, for the penalties; `mask` has the allowed tokens, None all.
    """
    if mask is None and (count := deciding(sampling)) is not None:
        return _of_few(row, count, sampling, history)
    logits = penalised_row(row.logits, sampling, history)
    if mask is None:
        return _sampled(logits, sampling)
    logits, ids = masked(logits, mask)
    p = _sampled(logits, sampling)
    if ids is None:
        return p
    return Distribution(ids if p.ids is None else ids[p.ids], p.probs)


def _of_few(row: Candidates, count: int, sampling: Sampling, history: Sequence[int]) -> Distribution:
    """Return the distribution of the next token, which a row's best `count` candidates decide."""
    if history and penalises(sampling):
        ids, logits = penalised_candidates(*row.top(count), sampling, history)
    elif sampling.is_greedy:
        return one_point(row.best())
    else:
        ids, logits = row.top(sampling.top_k)
    if sampling.is_greedy:
        return one_point(ids[0])
    probs = _truncated(logits[: sampling.top_k], sampling, sampling.temperature)
    return Distribution(np.array(ids[: len(probs)], np.int64), np.array(probs))


def _sampled(row: Logits, sampling: Sampling) -> Distribution:
    """Apply all steps but the penalties to logits."""
    if sampling.is_greedy or 0 < min(sampling.top_k, len(row)) <= MOST:
        return _of_few(FullRow(row), sampling.top_k, sampling, ())
    if 0 < sampling.top_k < len(row):
        ids, best = top_entries(row, sampling.top_k)
        values = best.astype(np.float64)
        kept = _kept(values, sampling)
        return Distribution(ids[:kept], _softmax(values[:kept], sampling.temperature, values[0]))
    if sampling.top_p >= 1 and sampling.min_p <= 0:
        return Distribution(None, _softmax(row, sampling.temperature, largest(row)))
    return _without_top_k(row, sampling)


def draft_distribution(
    ids: Sequence[int] | Ids,
    logits: Sequence[float] | Logits,
    sampling: Sampling,
    settings: EngineSettings,
    history: Sequence[int],
) -> Distribution:
    """Return the q to draw a draft token from, given the draft model's few best candidates.

    `ids` and `logits` are those of `Candidates.top`. After the target's own
    sampling steps the temperature is multiplied by `draft_temperature`, and the probabilities of the first
    `saguaro_top` tokens by `saguaro_c`. The order is that of the draft model's preference, before this
    down-weighting.
    """
    if history and penalises(sampling):
        ids, logits = penalised_candidates(ids, logits, sampling, history)
    temperature = sampling.temperature * settings.draft_temperature
    if temperature <= 0:
        return one_point(int(ids[0]))
    if 0 < sampling.top_k < len(logits):
        logits = logits[: sampling.top_k]
    probs = _truncated(logits, sampling, temperature)
    factor = settings.saguaro_c
    # one factor for all tokens would change nothing
    if factor != 1 and (top := saguaro_top(settings)) < len(probs):
        weighted = [*(x * factor for x in probs[:top]), *probs[top:]]
        probs = _normalised(weighted) if sum(weighted) > 0 else probs
    return Distribution(np.array(ids[: len(probs)], np.int64), np.array(probs))


def saguaro_top(settings: EngineSettings) -> int:
    """Return the number of a draft model's best tokens that are down-weighted at each position."""
    return max(1, settings.fan_out_budget // (settings.draft_length + 1)) + 1


def score(row: Logits, token: int, top: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Return a token's log-probability, and the best tokens with theirs, by the model's logits alone."""
    values = row.astype(np.float64)
    best = values.max()
    scale = float(best) + log(np.exp(values - best).sum())
    ids = top_entries(row, top)[0].tolist() if top else ()
    return values.item(token) - scale, tuple((each, values.item(each) - scale) for each in ids)


def probability(distribution: Distribution, token: int) -> float:
    """Return the probability of a token, 0 outside the support."""
    ids = distribution.ids
    if ids is None:
        return distribution.probs.item(token)
    if len(ids) <= FEW:
        few = ids.tolist()
        return distribution.probs.item(few.index(token)) if token in few else 0.0
    index = int((ids == token).argmax())
    return distribution.probs.item(index) if ids[index] == token else 0.0


def probabilities(distribution: Distribution, ids: Ids) -> Floats:
    """Return the probabilities of some tokens, 0 outside the support."""
    support = distribution.ids
    probs = distribution.probs
    if support is None:
        return probs[ids]
    order = support.argsort()
    places = order[support.searchsorted(ids, sorter=order).clip(max=len(order) - 1)]
    return np.where(support[places] == ids, probs[places], 0.0)


def draw(distribution: Distribution, uniform: float) -> int:
    """Return the token at `uniform` (0 <= uniform < 1) of the cumulative distribution.

    A token of probability 0 is never returned.
    """
    ids = distribution.ids
    probs = distribution.probs
    cumulative = list(accumulate(probs.tolist())) if len(probs) <= FEW else probs.cumsum()
    total = cumulative[-1]
    index = bisect_right(cumulative, uniform * total)
    if index >= len(cumulative):  # rounding has carried the product up to the total
        index = bisect_left(cumulative, total)
    return index if ids is None else ids.item(index)


def residual(p: Distribution, q: Distribution | int) -> Distribution:
    """Return normalise(max(p - q, 0)), from which the token after a rejection is drawn.

    `q` is a distribution, or the token of a one-hot one. Where rounding leaves nothing, p and q agree
    and a rejection has no probability but that of rounding: the answer is then p.
    """
    if p.ids is not None and len(p.ids) <= FEW:
        return _residual_of_few(p, p.ids.tolist(), q)
    rest = p.probs.copy()
    if not isinstance(q, Distribution):
        rest[q if p.ids is None else p.ids == q] = 0
    elif p.ids is not None:
        rest -= probabilities(q, p.ids)
    else:
        rest[slice(None) if q.ids is None else q.ids] -= q.probs
    np.maximum(rest, 0, out=rest)
    mass = rest.sum()
    return Distribution(p.ids, rest / mass) if mass > 0 else p


def _residual_of_few(p: Distribution, ids: list[int], q: Distribution | int) -> Distribution:
    if not isinstance(q, Distribution):
        taken = {q: 1.0}
    elif q.ids is None:
        taken = dict(zip(ids, q.probs[ids].tolist(), strict=True))
    else:
        taken = dict(zip(q.ids.tolist(), q.probs.tolist(), strict=True))
    rest = [max(x - taken.get(token, 0.0), 0.0) for token, x in zip(ids, p.probs.tolist(), strict=True)]
    return Distribution(p.ids, np.array(_normalised(rest))) if sum(rest) > 0 else p


def _normalised(weights: Sequence[float]) -> list[float]:
    mass = sum(weights)
    return [weight / mass for weight in weights]


def _truncated(values: Sequence[float] | Logits, sampling: Sampling, temperature: float) -> list[float]:
    """Return the probabilities of those of the few descending `values` that top-p and min-p leave."""
    best = float(values[0])
    if not -inf < best < inf:
        raise LogitsError
    gaps = [float(value) - best for value in values]
    kept = len(gaps)
    if sampling.top_p < 1:
        masses = list(accumulate(map(exp, gaps)))
        kept = min(kept, bisect_left(masses, sampling.top_p * masses[-1]) + 1)
    if sampling.min_p > 0:
        least = log(sampling.min_p)
        kept = next((place for place, gap in enumerate(gaps[:kept]) if gap < least), kept)
    return _normalised([exp(gap / temperature) for gap in gaps[: max(kept, 1)]])


def _softmax(values: Floats | Logits, temperature: float, best: float) -> Floats:
    """Return probabilities; `best` is the largest of the values."""
    scaled = values - best
    scaled /= temperature
    probs: Floats = np.exp(scaled, out=scaled).astype(np.float64, copy=False)
    mass = probs.sum()
    if not mass > 0:  # also when it is not a number
        raise LogitsError
    probs /= mass
    return probs


def _kept(values: Floats, sampling: Sampling, total: float | None = None) -> int:
    """Return the number of the descending `values` that top-p and min-p keep.

    `total` is the sum of exp(value - best) over everything that top-k kept, if that is more than `values`.
    Both keep a prefix of the same order, so the shorter one decides.
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
    weights = row - largest(row)
    total = float(np.exp(weights, out=weights).sum(dtype=np.float64))
    count = 256
    while True:
        ids, found = top_entries(row, count)
        values = found.astype(np.float64)
        kept = _kept(values, sampling, total)
        if kept < len(values) or len(values) == len(row):
            return Distribution(ids[:kept], _softmax(values[:kept], sampling.temperature, values[0]))
        count *= 16


def penalises(sampling: Sampling) -> bool:
    """Return whether any penalty is on."""
    return sampling.penalty_window > 0 and (
        sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
    )


def _only_lowers(sampling: Sampling) -> bool:
    """Return whether penalties make no token likelier."""
    return (
        sampling.repetition_penalty >= 1
        and sampling.presence_penalty >= 0
        and sampling.frequency_penalty >= 0
    )


def penalised_row(logits: Logits, sampling: Sampling, history: Sequence[int]) -> Logits:
    """Return the row after penalties; the row itself where there are none."""
    if not history or not penalises(sampling):
        return logits
    recent = Counter(history[-sampling.penalty_window :])
    row = logits.copy()
    tokens = list(recent)
    row[tokens] = _lowered(row[tokens].astype(np.float64), list(recent.values()), sampling)
    return row


def penalised_candidates(
    ids: Sequence[int] | Ids,
    logits: Sequence[float] | Logits | Floats,
    sampling: Sampling,
    history: Sequence[int],
) -> tuple[list[int], list[float]]:
    """Return some tokens with their logits after penalties, best first."""
    recent = Counter(history[-sampling.penalty_window :])
    known = np.asarray(ids)
    counts = [recent[int(token)] for token in ids]
    values = _lowered(np.asarray(logits, dtype=np.float64), counts, sampling)
    order = (-values).argsort(kind="stable")
    return known[order].tolist(), values[order].tolist()


def _lowered(values: Floats, counts: Sequence[int], sampling: Sampling) -> Floats:
    """Return the logits of tokens that occur `counts` times in the penalty window."""
    times = np.asarray(counts, dtype=np.float64)
    repetition = sampling.repetition_penalty
    scaled = np.where(values <= 0, values * repetition, values / repetition)
    lowered = scaled - times * sampling.frequency_penalty - sampling.presence_penalty
    return np.where(times > 0, lowered, values)
