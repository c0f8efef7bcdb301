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

    `ratio` compares with measured plain decoding. `acceptance` is the share of the `drafted` tokens that were
    accepted, `accepted_length` the tokens per round with the target's own, `hit_rate` the share of prepared
    drafts.
    `thinking` says how much the model has thought so far, while it does.
    """

    mode: str
    tokens_per_s: float | None = None
    ratio: float | None = None
    acceptance: float | None = None
    accepted_length: float | None = None
    hit_rate: float | None = None
    note: str = ""
    drafted: int = 0
    thinking: str = ""


MEASURED_S = 1.0  # of decoding, in less of which a speed is not compared with another
FEW_DRAFTED = 20  # tokens, in fewer of which a share says little without their number


def accepted_words(share: float, drafted: int) -> str:
    """Return the acceptance rate in words, with the counts where it rests on few tokens."""
    counts = f" ({round(share * drafted)} of {drafted})" if 0 < drafted < FEW_DRAFTED else ""
    return f"{units.percent(share)} accepted{counts}"


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
        _measured_ratio(record),
        s.acceptance,
        s.accepted_length if s.drafted else None,
        s.hit_rate,
        last.reason if last else "",
        s.drafted,
    )


def _measured_ratio(record: AnswerRecord) -> float | None:
    """Return the speed-up of an answer over plain decoding, unless it was too short to say."""
    if record.plain is None or record.summary.decode_s < MEASURED_S:
        return None
    return ratio_to_plain(record.mode, record.summary.tokens_per_s, record.plain.tokens_per_s)


def ratio_to_plain(mode: str, tokens_per_s: float | None, plain: float | None) -> float | None:
    """Return the speed-up of an answer over plain decoding; None for a plain answer."""
    return None if mode == "off" or not tokens_per_s or not plain else tokens_per_s / plain


_WORDS: dict[str, Callable[[float], str]] = {
    "tokens_per_s": lambda speed: f"{units.rate(speed)} tokens/s",
    "ratio": lambda ratio: f"{ratio:.1f}× plain",
    "accepted_length": lambda tokens: f"{tokens:.1f} tokens/round",
    "hit_rate": lambda share: f"{units.percent(share)} prepared",
}


def in_words(figures: Figures) -> dict[str, str]:
    """Return the known figures as text, by field name."""
    share = figures.acceptance
    known = {name: getattr(figures, name) for name in _WORDS}
    words = {name: _WORDS[name](figure) for name, figure in known.items() if figure is not None}
    return words if share is None else {"acceptance": accepted_words(share, figures.drafted), **words}


def mode_name(mode: str) -> str:
    """Return a mode as a heading has it."""
    name = MODE_NAMES.get(mode, mode)
    return name[:1].upper() + name[1:]


def label(record: AnswerRecord) -> str:
    """Return the line under an answer: its time, its speed, the gain of speculation and the acceptance."""
    figures = of_record(record)
    words = in_words(figures)
    told = (words[name] for name in ("tokens_per_s", "ratio", "acceptance") if name in words)
    return "  ".join((*times(record.summary), figures.mode, *told))


def times(s: Summary) -> tuple[str, ...]:
    """Return the time of an answer and of its first token; empty for an answer without tokens."""
    if not s.tokens:
        return ()
    tokens = units.counted(s.tokens, "token")
    return f"{tokens} in {units.short(s.seconds)}", f"first token after {units.short(s.first_token_s)}"


def summary_line(mode: str, s: Summary) -> str:
    """Return the most important figures in one line."""
    figures = Figures(
        mode, s.tokens_per_s or 0.0, None, s.acceptance, s.accepted_length, s.hit_rate, "", s.drafted
    )
    words = in_words(figures)
    shares = ("acceptance", "accepted_length", "hit_rate") if s.drafted else ()
    parts = [words[name] for name in ("tokens_per_s", *shares) if name in words]
    tokens = f"{units.counted(s.tokens, 'token')}, first token after {s.first_token_s:.2f} s"
    return "  ".join((mode.upper(), *parts, tokens))


def table(settings: EngineSettings, reason: str, s: Summary) -> list[str]:
    """Return all figures of an answer, a line for each."""
    rows = [
        ("mode", f"{MODE_NAMES[settings.mode]} ({reason})"),
        ("answer", f"{units.counted(s.tokens, 'token')}, {_rate(s.tokens_per_s)}"),
        ("first token", f"{s.first_token_s:.3f} s"),
        (
            "prompt",
            f"{s.prompt_tokens} tokens, {s.cached_tokens} of them cached, {_rate(s.prompt_tokens_per_s)}",
        ),
    ]
    if s.acceptance is not None:
        length = f"{s.accepted_length or 0:.2f} tokens per round, the target's own included"
        rows += [
            ("acceptance", f"{units.percent(s.acceptance)} ({s.accepted} of {s.drafted} draft tokens)"),
            ("accepted length", length),
            ("by position", " ".join(units.percent(share or 0.0) for share in s.acceptance_by_position)),
        ]
    if s.hit_rate is not None:
        rows.append(("hit rate", f"{units.percent(s.hit_rate)} ({s.hits} of {s.hits + s.misses} rounds)"))
    if s.rounds:
        rows.append(("per round", _per_round(s)))
    return columns(rows)


def note(change: ModeChanged) -> str:
    """Return a change of mode as a line."""
    return f"note: mode {change.mode}: {change.reason}"


def _rate(tokens_per_s: float | None) -> str:
    return f"{units.rate(tokens_per_s or 0.0)} tokens/s"


def _per_round(s: Summary) -> str:
    costs = (("verify", s.verify_s), ("draft", s.draft_s), ("wait", s.wait_s), ("Python", s.python_s))
    text = ", ".join(f"{name} {1000 * seconds / s.rounds:.2f} ms" for name, seconds in costs)
    python_share = s.python_s / s.decode_s if s.decode_s else 0.0
    return f"{text} ({units.percent(python_share)} of the time)"
