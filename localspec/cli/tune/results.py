"""What the tuner settled on, as lines for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from textwrap import wrap

from localspec.tuning.events import ConfirmedContender, TaskResult
from localspec.tuning.words import (
    UNICODE,
    Glyphs,
    dropped_words,
    figure,
    gain_interval,
    interval,
    mode_words,
    settings_words,
)
from localspec.types import EngineSettings
from localspec.units import columns

Json = dict[str, object]

_HEAD = (
    "task", "mode", "K", "fan-out", "temp", "C", "tok/s (95%)", "of plain (95%)", "llama.cpp", "simulated",
)  # fmt: skip
_RIGHT = frozenset({2, 3, 8})
_NONE = "-"


def result_lines(results: Sequence[TaskResult], width: int, with_: Glyphs = UNICODE) -> list[str]:
    """Return each result on a line under common headings, or in a few lines where it is narrow.

    Why a task is better off without speculation follows, and what could not be measured.
    """
    if not results:
        return []
    lines = columns((_HEAD, *(_row(result, with_) for result in results)), _RIGHT)
    if max(map(len, lines)) > width:
        lines = [line for result in results for line in _narrow(result, width, with_)]
    for result in results:
        if result.settings.mode == "off":
            lines += _wrapped([f"{result.task}: {result.reason}"], width, "")
        for dropped in result.dropped:
            lines += _wrapped([f"{result.task}: {dropped_words(dropped)}"], width, "")
    return lines


def llama_ratio(result: TaskResult) -> float | None:
    """Return how fast the settings are in what llama.cpp's defaults reach, None if those were not run."""
    other = next((each for each in result.contenders if each.name == "llama.cpp"), None)
    return None if other is None or not other.rate.value else result.winner.rate.value / other.rate.value


def as_json(result: TaskResult) -> Json:
    """Return a result as it is written to JSON."""
    return asdict(result) | {"winner": asdict(result.winner), "of_llama_cpp": llama_ratio(result)}


def _row(result: TaskResult, with_: Glyphs) -> tuple[str, ...]:
    settings, winner, times = result.settings, result.winner, with_.times
    drafts, tempers = settings.mode != "off", _is_tempered(settings)
    ssd = settings.mode == "ssd"
    ratio = llama_ratio(result)
    return (
        result.task,
        mode_words(settings),
        str(settings.draft_length) if drafts else _NONE,
        str(settings.fan_out_budget) if ssd else _NONE,
        (f"{settings.draft_temperature:.2g}" if tempers else "match") if drafts else _NONE,
        f"{settings.saguaro_c:.2g}" if ssd and tempers else _NONE,
        f"{figure(winner.rate.value)} ({interval(winner.rate)})",
        f"{times}{winner.gain.value:.2f} ({gain_interval(winner.gain)})" if drafts else _NONE,
        _NONE if ratio is None else f"{times}{ratio:.2f}",
        _NONE if winner.predicted is None else _predicted(winner),
    )


def _is_tempered(settings: EngineSettings) -> bool:
    return settings.mode in ("sd", "ssd") and settings.acceptance == "rejection"


def _predicted(winner: ConfirmedContender) -> str:
    """Return what was simulated, and how far what was measured lies from it."""
    assert winner.predicted is not None
    off = f" {winner.rate.value / winner.predicted - 1:+.0%}" if winner.predicted else ""
    return f"{figure(winner.predicted)}{off}"


def _narrow(result: TaskResult, width: int, with_: Glyphs) -> Iterator[str]:
    winner, ratio = result.winner, llama_ratio(result)
    parts = [f"{figure(winner.rate.value)} tok/s ({interval(winner.rate)})"]
    if result.settings.mode != "off":
        parts.append(f"{with_.times}{winner.gain.value:.2f} of plain ({gain_interval(winner.gain)})")
    if ratio is not None:
        parts.append(f"{with_.times}{ratio:.2f} of llama.cpp")
    simulated = [] if winner.predicted is None else [f"simulated {_predicted(winner)}"]
    words = f"{result.task}: {settings_words(result.settings)}"
    yield from _wrapped([words, *simulated], width, "")
    yield from _wrapped(parts, width, "  ")


def _wrapped(parts: Sequence[str], width: int, indent: str) -> Iterator[str]:
    """Put parts side by side as far as they fit; one that is too long itself is broken between words."""
    rows: list[str] = []
    for part in parts:
        if rows and len(indent) + len(rows[-1]) + 2 + len(part) <= width:
            rows[-1] += f", {part}"
        else:
            rows.append(part)
    for row in rows:
        yield from wrap(row, max(20, width), initial_indent=indent, subsequent_indent=f"{indent}  ")
