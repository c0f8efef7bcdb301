"""Simulations that a test can check: their optimum is known."""

from __future__ import annotations

import math

from localspec.types.request import EngineSettings

BEST = EngineSettings(
    "ssd", draft_length=6, fan_out_budget=9, fan_out_shape="geometric", draft_temperature=0.8, saguaro_c=0.6
)
BEST_RATE = 150.0
PLAIN_RATE = 60.0
_MODES = {"ngram": 0.55, "sd": 0.85, "ssd": 1.0}


def rate(settings: EngineSettings) -> float:
    """Return tokens per second, 150 at `BEST` and less everywhere else."""
    if settings.mode == "off":
        return PLAIN_RATE
    value = BEST_RATE * _MODES[settings.mode]
    value *= math.exp(-0.02 * (settings.draft_length - BEST.draft_length) ** 2)
    if settings.min_confidence is not None:
        value *= 0.97 - 0.2 * (settings.min_confidence - 0.4) ** 2
    if settings.mode == "ssd":
        value *= math.exp(-0.1 * math.log(settings.fan_out_budget / BEST.fan_out_budget) ** 2)
        value *= {"geometric": 1.0, "best-first": 0.98, "uniform": 0.9}[settings.fan_out_shape]
        value *= 1.0 if settings.fallback == "just-in-time" else 0.95
    if settings.mode in {"sd", "ssd"}:
        if settings.acceptance == "match":
            return value * 0.85
        value *= math.exp(-0.3 * math.log(settings.draft_temperature / BEST.draft_temperature) ** 2)
        value *= 1.0 - 0.15 * (settings.saguaro_c - BEST.saguaro_c) ** 2
    return value


def simulate(settings: EngineSettings) -> float:
    """Return the rate."""
    return rate(settings)
