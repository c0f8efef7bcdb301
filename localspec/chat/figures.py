"""The figures of an answer in words: in a status line, under an answer, and in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from localspec import units
from localspec.chat.messages import AnswerRecord
from localspec.types.events import ModeChanged, Summary
from localspec.types.request import EngineSettings
from localspec.units import MODE_NAMES, columns


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a status line; None where a figure is not known.

    `ratio` compares with measured plain decoding. `acceptance` is accepted / verified draft tokens,
    `accepted_length` the tokens per round with the target's own, `hit_rate` the share of prepared drafts.
    `thinking` says how much the model has thought so far, while it does.
    """

    mode: str
    tokens_per_s: float | None = None
    ratio: float | None = None
    acceptance: float | None = None
    accepted_length: float | None = None
    hit_rate: float | None = None
    note: str = ""
    thinking: str = ""


def of_record(record: AnswerRecord) -> Figures:
    """Return the figures of a whole answer."""
    s = record.summary
    last = record.changes[-1] if record.changes else None
    mode = MODE_NAMES.get(record.mode, record.mode)
    if last is not None and last.mode != record.mode:
        mode = f"{mode} → {MODE_NAMES.get(last.mode, last.mode)}"
    return Figures(
        mode,
        s.tokens_per_s,
        ratio_to_plain(record.mode, s.tokens_per_s, record.plain.tokens_per_s if record.plain else None),
        s.acceptance,
        s.accepted_length if s.drafted else None,
        s.hit_rate,
        last.reason if last else "",
    )


def ratio_to_plain(mode: str, tokens_per_s: float | None, plain: float | None) -> float | None:
    """Return the speed-up of an answer over plain decoding; None for a plain answer."""
    return None if mode == "off" or not tokens_per_s or not plain else tokens_per_s / plain


_WORDS: dict[str, Callable[[float], str]] = {
    "acceptance": lambda share: f"{units.percent(share)} accepted",
    "tokens_per_s": lambda speed: f"{units.rate(speed)} tokens/s",
    "ratio": lambda ratio: f"{ratio:.1f}× plain",
    "accepted_length": lambda tokens: f"{tokens:.1f} tokens/round",
    "hit_rate": lambda share: f"{units.percent(share)} prepared",
}


def in_words(figures: Figures) -> dict[str, str]:
    """Return the known figures as text, by field name."""
    known = {name: getattr(figures, name) for name in _WORDS}
    return {name: _WORDS[name](figure) for name, figure in known.items() if figure is not None}


def mode_name(mode: str) -> str:
    """Return a mode as a heading has it."""
    name = MODE_NAMES.get(mode, mode)
    return name[:1].upper() + name[1:]


def label(record: AnswerRecord) -> str:
    """Return the line under an answer: its time, its speed and the gain of speculation."""
    figures = of_record(record)
    words = in_words(figures)
    speeds = (words[name] for name in ("tokens_per_s", "ratio") if name in words)
    return "  ".join((*times(record.summary), figures.mode, *speeds))


def times(s: Summary) -> tuple[str, ...]:
    """Return the time of an answer and of its first token; empty for an answer without tokens."""
    if not s.tokens:
        return ()
    tokens = units.counted(s.tokens, "token")
    return f"{tokens} in {units.short(s.seconds)}", f"first token after {units.short(s.first_token_s)}"


def summary_line(mode: str, s: Summary) -> str:
    """Return the most important figures in one line."""
    parts = [mode.upper(), _tokens_per_s(s)]
    if s.acceptance is not None:
        parts.append(f"acc {s.acceptance:.0%}")
        parts.append(f"len {s.accepted_length or 0:.1f}")
    if s.hit_rate is not None:
        parts.append(f"hit {s.hit_rate:.0%}")
    parts.append(f"{s.tokens} tokens, first token after {s.first_token_s:.2f} s")
    return "  ".join(parts)


def table(settings: EngineSettings, reason: str, s: Summary) -> list[str]:
    """Return all figures of an answer, a line for each."""
    prefill = f"{s.prompt_tokens_per_s or 0:.1f} tok/s"
    rows = [
        ("mode", f"{MODE_NAMES[settings.mode]} ({reason})"),
        ("answer", f"{s.tokens} tokens, {_tokens_per_s(s)}"),
        ("first token", f"{s.first_token_s:.3f} s"),
        ("prompt", f"{s.prompt_tokens} tokens, {s.cached_tokens} of them known, {prefill}"),
    ]
    if s.acceptance is not None:
        length = f"{s.accepted_length or 0:.2f} tokens per round, the target's own included"
        rows += [
            ("acceptance", f"{s.acceptance:.1%} ({s.accepted} of {s.drafted} draft tokens)"),
            ("accepted length", length),
            ("by position", " ".join(f"{share or 0:.2f}" for share in s.acceptance_by_position)),
        ]
    if s.hit_rate is not None:
        rows.append(("hit rate", f"{s.hit_rate:.1%} ({s.hits} of {s.hits + s.misses} rounds)"))
    if s.rounds:
        rows.append(("per round", _per_round(s)))
    return columns(rows)


def note(change: ModeChanged) -> str:
    """Return a change of mode as a line."""
    return f"note: mode {change.mode}: {change.reason}"


def _tokens_per_s(s: Summary) -> str:
    return f"{s.tokens_per_s or 0:.1f} tok/s"


def _per_round(s: Summary) -> str:
    costs = (("verify", s.verify_s), ("draft", s.draft_s), ("wait", s.wait_s), ("Python", s.python_s))
    text = ", ".join(f"{name} {1000 * seconds / s.rounds:.2f} ms" for name, seconds in costs)
    python_share = s.python_s / s.decode_s if s.decode_s else 0.0
    return f"{text} ({python_share:.1%} of the time)"
