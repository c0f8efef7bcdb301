"""Pearson's test of whether counts follow a distribution."""

from __future__ import annotations

from math import erfc, exp, lgamma, log, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MIN_EXPECTED = 5.0

Floats = NDArray[np.float64]


def chi_square_p_value(observed: ArrayLike, expected: ArrayLike) -> float:
    """Return the p-value of Pearson's test that the counts `observed` follow `expected`.

    `expected` (counts or probabilities) is scaled to the sum of `observed`;
    cells that expect fewer than 5 are pooled. An observation in a cell that expects none gives 0.
    """
    counts = np.asarray(observed, dtype=np.float64).ravel()
    shares = np.asarray(expected, dtype=np.float64).ravel()
    if bool(((shares <= 0) & (counts > 0)).any()):
        return 0.0
    if counts.sum() == 0:
        return 1.0
    wanted = shares * (counts.sum() / shares.sum())
    counts, wanted = _pooled(counts, wanted)
    statistic = float(((counts - wanted) ** 2 / wanted).sum())
    return _chi_square_survival(statistic, len(counts) - 1)


def _pooled(counts: Floats, wanted: Floats) -> tuple[Floats, Floats]:
    """Merge the cells that expect least until every cell expects enough."""
    order = wanted.argsort()
    counts, wanted = counts[order], wanted[order]
    small = int((wanted < _MIN_EXPECTED).sum())
    while 0 < small < len(wanted) and wanted[:small].sum() < _MIN_EXPECTED:
        small += 1
    if small == 0:
        return counts, wanted
    return (
        np.concatenate(([counts[:small].sum()], counts[small:])),
        np.concatenate(([wanted[:small].sum()], wanted[small:])),
    )


def _chi_square_survival(statistic: float, freedom: int) -> float:
    """Return the chance that chi-square of N degrees of freedom exceeds a value.

    From two degrees to two more, the regularised upper incomplete gamma function grows by one term.
    """
    half, odd = statistic / 2, freedom % 2
    if half <= 0:
        return 1.0
    powers = (step + odd / 2 for step in range(freedom // 2))
    terms = sum(exp(power * log(half) - half - lgamma(power + 1)) for power in powers)
    return min(1.0, (erfc(sqrt(half)) if odd else 0.0) + terms)
