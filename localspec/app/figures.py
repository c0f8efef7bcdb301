"""Put the figures of an answer into words and into JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import PurePath
from typing import TYPE_CHECKING

from localspec.safe_text import whole_text
from localspec.types.events import ModeChanged, Summary
from localspec.types.request import EngineSettings
from localspec.units import MODE_NAMES, columns

if TYPE_CHECKING:
    from localspec.inference.interface import OpenModels

Json = dict[str, object]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def finite(value: object) -> object:
    """Return a value without what JSON has no word for; paths become texts."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    if isinstance(value, str | PurePath):
        return whole_text(str(value))
    return None if isinstance(value, float) and not isfinite(value) else value


def new_prompt_tokens(s: Summary) -> int:
    """Return how many tokens of the prompt had to be read."""
    return s.prompt_tokens - s.cached_tokens


def decoded_tokens(s: Summary) -> int:
    """Return how many tokens the counted rounds wrote: the first comes with the prompt."""
    return max(0, s.tokens - 1)


def summary_line(mode: str, s: Summary) -> str:
    """Return the most important figures in one line."""
    parts = [mode.upper(), f"{_ratio(decoded_tokens(s), s.decode_s):.1f} tok/s"]
    if s.drafted:
        parts.append(f"acc {_ratio(s.accepted, s.drafted):.0%}")
        parts.append(f"len {_ratio(decoded_tokens(s), s.rounds):.1f}")
    if s.hits + s.misses:
        parts.append(f"hit {_ratio(s.hits, s.hits + s.misses):.0%}")
    parts.append(f"{s.tokens} tokens, first after {s.first_token_s:.2f} s")
    return "  ".join(parts)


def table(settings: EngineSettings, reason: str, s: Summary) -> list[str]:
    """Return all figures of an answer, a line for each."""
    prefill = f"{_ratio(new_prompt_tokens(s), s.prompt_s):.1f} tok/s"
    rows = [
        ("mode", f"{MODE_NAMES[settings.mode]} ({reason})"),
        ("answer", f"{s.tokens} tokens, {_ratio(decoded_tokens(s), s.decode_s):.1f} tok/s"),
        ("first token", f"{s.first_token_s:.3f} s"),
        ("prompt", f"{s.prompt_tokens} tokens, {s.cached_tokens} of them known, {prefill}"),
    ]
    if s.drafted:
        rows += [
            ("acceptance", f"{_ratio(s.accepted, s.drafted):.1%} ({s.accepted} of {s.drafted} draft tokens)"),
            (
                "accepted length",
                f"{_ratio(decoded_tokens(s), s.rounds):.2f} tokens per round, the target's own included",
            ),
            ("by position", " ".join(f"{share:.2f}" for share in accepted_by_position(s))),
        ]
    if s.hits + s.misses:
        rows.append(
            ("hit rate", f"{_ratio(s.hits, s.hits + s.misses):.1%} ({s.hits} of {s.hits + s.misses} rounds)")
        )
    if s.rounds:
        rows.append(("per round", _per_round(s)))
    return columns(rows)


def _per_round(s: Summary) -> str:
    costs = (("verify", s.verify_s), ("draft", s.draft_s), ("wait", s.wait_s), ("Python", s.python_s))
    text = ", ".join(f"{name} {1000 * seconds / s.rounds:.2f} ms" for name, seconds in costs)
    return f"{text} ({_ratio(s.python_s, s.decode_s):.1%} of the time)"


def accepted_by_position(s: Summary) -> tuple[float, ...]:
    """Return the share of judged draft tokens that were accepted, for each position in a draft."""
    return tuple(_ratio(a, n) for a, n in zip(s.accepted_at, s.drafted_at, strict=True))


def timings(s: Summary) -> Json:
    """Return the figures under the names of llama.cpp's server, and ours beside them."""
    new = new_prompt_tokens(s)
    return {
        "cache_n": s.cached_tokens,
        "prompt_n": new,
        "prompt_ms": 1000 * s.prompt_s,
        "prompt_per_token_ms": _ratio(1000 * s.prompt_s, new),
        "prompt_per_second": _ratio(new, s.prompt_s),
        "predicted_n": s.tokens,
        "predicted_ms": 1000 * s.decode_s,
        "predicted_per_token_ms": _ratio(1000 * s.decode_s, decoded_tokens(s)),
        "predicted_per_second": _ratio(decoded_tokens(s), s.decode_s),
        "draft_n": s.drafted,
        "draft_n_accepted": s.accepted,
        "first_token_ms": 1000 * s.first_token_s,
    }


def note(change: ModeChanged) -> str:
    """Return a change of mode as a line."""
    return f"note: mode {change.mode}: {change.reason}"


def speculation(
    settings: EngineSettings, reason: str, s: Summary, changes: Sequence[ModeChanged] = ()
) -> Json:
    """Return how the answer was decoded, why so, and how well that went."""
    return {
        "reason": reason,
        "settings": asdict(settings),
        "changes": [{"mode": change.mode, "reason": change.reason} for change in changes],
        "rounds": s.rounds,
        "acceptance": _ratio(s.accepted, s.drafted),
        "accepted_length": _ratio(decoded_tokens(s), s.rounds),
        "accepted_by_position": list(accepted_by_position(s)),
        "hits": s.hits,
        "misses": s.misses,
        "hit_rate": _ratio(s.hits, s.hits + s.misses),
        "verify_ms": 1000 * s.verify_s,
        "draft_ms": 1000 * s.draft_s,
        "wait_ms": 1000 * s.wait_s,
        "python_ms": 1000 * s.python_s,
    }


def models(opened: OpenModels) -> Json:
    """Return what the open models are."""
    return {"model": asdict(opened.target), "draft": opened.draft and asdict(opened.draft)}
