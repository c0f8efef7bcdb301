"""Answers, their figures and the open models as JSON; a figure that is unknown is 0 there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import PurePath
from typing import TYPE_CHECKING

from localspec.safe_text import whole_text
from localspec.types.events import ModeChanged, Summary
from localspec.types.request import EngineSettings

if TYPE_CHECKING:
    from localspec.inference.interface import OpenModels

Json = dict[str, object]


def finite(value: object) -> object:
    """Return a value that JSON can represent: no NaN or infinity; paths become texts."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    if isinstance(value, str | PurePath):
        return whole_text(str(value))
    return None if isinstance(value, float) and not isfinite(value) else value


def timings(s: Summary) -> Json:
    """Return the figures under the names of llama.cpp's server, with our additional ones."""
    new = s.new_prompt_tokens
    decoded = s.decoded_tokens
    return {
        "cache_n": s.cached_tokens,
        "prompt_n": new,
        "prompt_ms": 1000 * s.prompt_s,
        "prompt_per_token_ms": 1000 * s.prompt_s / new if new else 0.0,
        "prompt_per_second": s.prompt_tokens_per_s or 0.0,
        "predicted_n": s.tokens,
        "predicted_ms": 1000 * s.decode_s,
        "predicted_per_token_ms": 1000 * s.decode_s / decoded if decoded else 0.0,
        "predicted_per_second": s.tokens_per_s or 0.0,
        "draft_n": s.drafted,
        "draft_n_accepted": s.accepted,
        "first_token_ms": 1000 * s.first_token_s,
    }


def speculation(
    settings: EngineSettings, reason: str, s: Summary, changes: Sequence[ModeChanged] = ()
) -> Json:
    """Return the JSON of an answer: settings, reason and figures."""
    return {
        "reason": reason,
        "settings": asdict(settings),
        "changes": [{"mode": change.mode, "reason": change.reason} for change in changes],
        "rounds": s.rounds,
        "acceptance": s.acceptance or 0.0,
        "accepted_length": s.accepted_length or 0.0,
        "accepted_by_position": [share or 0.0 for share in s.acceptance_by_position],
        "hits": s.hits,
        "misses": s.misses,
        "hit_rate": s.hit_rate or 0.0,
        "verify_ms": 1000 * s.verify_s,
        "draft_ms": 1000 * s.draft_s,
        "wait_ms": 1000 * s.wait_s,
        "python_ms": 1000 * s.python_s,
    }


def models(opened: OpenModels) -> Json:
    """Return the open models' information."""
    return {"model": asdict(opened.target), "draft": opened.draft and asdict(opened.draft)}
