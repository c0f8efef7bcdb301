"""What the tuner says, in words, figures and bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from textwrap import wrap

from localspec.benchmark.statistics import Interval
from localspec.decoding.measurements import ComparedPass
from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning.events import BestSoFar, ConfirmedContender, LoadOptionsChosen, StageStatus, TaskResult
from localspec.types.request import EngineSettings
from localspec.units import MODE_NAMES, columns, counted

STAGE_WORDS = {
    "machine": "trying load options",
    "costs": "measuring the time of calls",
    "traces": "recording answers",
    "study": "simulating settings",
    "confirm": "measuring the best and plain decoding, alternating",
}
UNITS = {
    "machine": "options",
    "costs": "measurements",
    "traces": "tokens",
    "study": "trials",
    "confirm": "answers",
}
_CONTENDERS = {
    "best": "the best settings",
    "second": "the second best",
    "third": "the third best",
    "llama.cpp": "llama.cpp's defaults",
}
FULL = "█"
EMPTY = "░"
LEVELS = "▁▂▃▄▅▆▇█"
DONE = "✓"
RUNNING = "▸"


def bar(fraction: float, width: int) -> str:
    """Return a bar of `width` characters."""
    full = round(min(1.0, max(0.0, fraction)) * width)
    return FULL * full + EMPTY * (width - full)


def sparkline(values: Sequence[float], width: int) -> str:
    """Return a curve of the values in a row, the smallest at the bottom; the latest of each column counts."""
    if not values or width <= 0:
        return ""
    columns = min(width, len(values))
    shown = [values[(at + 1) * len(values) // columns - 1] for at in range(columns)]
    low = min(shown)
    high = max(shown)
    top = len(LEVELS) - 1
    if high <= low:
        return LEVELS[top // 2] * columns
    return "".join(LEVELS[round((value - low) / (high - low) * top)] for value in shown)


def figure(value: float) -> str:
    """Return tokens per second with three digits that mean something."""
    return f"{value:.{0 if value >= 99.95 else 1}f}"


def interval(estimate: Interval) -> str:
    """Return the 95% interval of a rate, in words."""
    return f"{figure(estimate.low)}-{figure(estimate.high)}"


def gain_interval(estimate: Interval) -> str:
    """Return the 95% interval of a ratio, in words."""
    return f"{estimate.low:.2f}-{estimate.high:.2f}"


def mode_words(settings: EngineSettings) -> str:
    """Return the source of drafts: a model, n-grams, or both."""
    both = settings.fallback == "ngram" and settings.mode in {"sd", "ssd"}
    return MODE_NAMES[settings.mode] + "+ngram" * both


def settings_words(settings: EngineSettings) -> str:
    """Describe these settings in a few words."""
    mode = mode_words(settings)
    if settings.mode == "off":
        return f"{mode} decoding"
    parts = [mode, f"draft {settings.draft_length}"]
    if settings.mode == "ssd":
        is_usual = settings.fan_out_shape == EngineSettings().fan_out_shape
        shape = "" if is_usual else f" {settings.fan_out_shape}"
        parts.append(f"fan-out {settings.fan_out_budget}{shape}")
    if settings.mode != "ngram" and settings.acceptance == "match":
        parts.append("match")
    elif settings.mode != "ngram":
        parts.append(f"temp {settings.draft_temperature:.2g}")
        parts += [f"C {settings.saguaro_c:.2g}"] * (settings.mode == "ssd")
    if settings.min_confidence is not None:
        parts.append(f"stop {settings.min_confidence:.2g}")
    return ", ".join(parts)


def best_words(best: BestSoFar) -> str:
    """Return the speed of the best so far: measured with its interval, or simulated."""
    if best.rate is not None:
        return f"{figure(best.rate.value)} tokens/s ({interval(best.rate)})"
    if best.predicted is not None:
        return f"{figure(best.predicted)} tokens/s simulated"
    return "not measured yet"


def counts(state: StageStatus) -> str:
    """Return the progress of a stage."""
    return f"{state.done} of {state.steps} {UNITS[state.stage]}"


def load_options_words(options: LoadOptions) -> str:
    """Return the load options that differ from the default, in words."""
    parts = []
    if options.threads:
        parts.append(f"{options.threads} thread{'s' * (options.threads > 1)}")
    if options.draft_threads is not None:
        parts.append(f"{options.draft_threads} for the draft")
    if options.micro_batch != LoadOptions().micro_batch:
        parts.append(f"micro-batch {options.micro_batch}")
    if options.micro_batch_factor != 1.0:
        parts.append(f"{options.micro_batch_factor:g} times the planned micro-batch")
    if more := options.more_experts_at_home:
        layers = counted(abs(more), "layer")
        parts.append(f"the experts of {layers} {'more' if more > 0 else 'fewer'} in RAM than planned")
    if options.target_kv_type != LoadOptions().target_kv_type:
        parts.append(f"target cache {options.target_kv_type}")
    if options.draft_flash_attention is not None:
        parts.append(f"draft flash attention {'on' if options.draft_flash_attention else 'off'}")
    if options.draft_kv_type != LoadOptions().draft_kv_type:
        parts.append(f"draft cache {options.draft_kv_type}")
    if options.draft_on_cpu:
        parts.append("draft on the CPU")
    return f"opened with {', '.join(parts)}" if parts else "opened with the default options"


def shift_words(chosen: LoadOptionsChosen) -> str:
    """Describe the shift by another type of the target's cache; empty for the usual type."""
    kind = chosen.workplace.target_kv_type
    shift = chosen.shift
    if kind == LoadOptions().target_kv_type:
        return ""
    if shift is None:
        return f"a {kind} cache moves the target's distribution a little"
    return (
        f"a {kind} cache moves the target's distribution: KL divergence {shift.mean:.2g} nats on average, "
        f"{shift.high:.2g} at the 99th percentile; another token becomes the most likely at "
        f"{shift.changed:.1%} of {shift.tokens:,}"
    )


def compared_words(passes: Sequence[ComparedPass]) -> str:
    """Describe how neighbouring tokens share experts; empty for a model without experts."""
    several = [each for each in passes if each.tokens > 1]
    if not several:
        return ""
    sizes = ", ".join(str(each.tokens) for each in several)
    ratios = ", ".join(f"{each.ratio:.2f}" for each in several)
    return (
        f"passes over {sizes} neighbouring tokens of answers take {ratios} of the time of unrelated tokens: "
        "the less, the more experts they share"
    )


def attempts_words(chosen: LoadOptionsChosen) -> str:
    """Return the results of the attempts."""
    if not chosen.attempts:
        return "none tried"
    failed = [attempt for attempt in chosen.attempts if attempt.failure]
    parts = [f"{len(chosen.attempts)} tried"]
    if failed:
        reasons = ", ".join(dict.fromkeys(attempt.failure for attempt in failed))
        parts.append(f"{len(failed)} failed ({reasons})")
    return ", ".join(parts)


def clock(seconds: float) -> str:
    """Return a duration: 0:42, 12:05, 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


_RESULT_HEAD = (
    "task", "mode", "K", "fan-out", "temp", "C", "tokens/s (95%)", "of plain (95%)", "llama.cpp", "simulated",
)  # fmt: skip
_RESULT_RIGHT = frozenset({2, 3, 8})
_NO_VALUE = "-"
_SIMULATED = "simulated: predicted before the run, and the difference of the measurement"


def result_lines(results: Sequence[TaskResult], width: int) -> list[str]:
    """Return each result on a line under common headings, or in a few lines if space is narrow.

    The reasons for plain decoding follow, and failed measurements.
    """
    if not results:
        return []
    lines = columns((_RESULT_HEAD, *(_row(result) for result in results)), _RESULT_RIGHT)
    if max(map(len, lines)) > width:
        lines = [line for result in results for line in _narrow(result, width)]
    if any(result.winner.predicted is not None for result in results):
        lines += _wrapped([_SIMULATED], width, "")
    for result in results:
        if result.settings.mode == "off":
            lines += _wrapped([f"{result.task}: {result.reason}"], width, "")
        for words in dropped_words(result):
            lines += _wrapped([f"{result.task}: {words}"], width, "")
    return lines


def dropped_words(result: TaskResult) -> Iterator[str]:
    """Yield what could not be measured, and why."""
    for dropped in result.dropped:
        name = (MODE_NAMES | _CONTENDERS).get(dropped.name, dropped.name)
        yield f"{name} could not be measured: {dropped.reason}"


def verdict_words(settings: EngineSettings, gain: Interval, reason: str) -> str:
    """Return a sentence about the fastest settings, with their interval."""
    if settings.mode == "off":
        return f"speculation stays off: {reason}"
    sure = f"; with 95% certainty between {gain.low:.2f} and {gain.high:.2f} times"
    return f"{mode_words(settings)} is {gain.value:.1f} times as fast as plain{sure * isfinite(gain.low)}"


def llama_ratio(result: TaskResult) -> float | None:
    """Return the speed of the settings relative to llama.cpp's defaults, None if those were not run."""
    other = next((each for each in result.contenders if each.name == "llama.cpp"), None)
    return None if other is None or not other.rate.value else result.winner.rate.value / other.rate.value


def _row(result: TaskResult) -> tuple[str, ...]:
    settings = result.settings
    winner = result.winner
    drafts = settings.mode != "off"
    ssd = settings.mode == "ssd"
    tempers = settings.mode in ("sd", "ssd") and settings.acceptance == "rejection"
    ratio = llama_ratio(result)
    return (
        result.task,
        mode_words(settings),
        str(settings.draft_length) if drafts else _NO_VALUE,
        str(settings.fan_out_budget) if ssd else _NO_VALUE,
        (f"{settings.draft_temperature:.2g}" if tempers else "match") if drafts else _NO_VALUE,
        f"{settings.saguaro_c:.2g}" if ssd and tempers else _NO_VALUE,
        f"{figure(winner.rate.value)} ({interval(winner.rate)})",
        f"×{winner.gain.value:.2f} ({gain_interval(winner.gain)})" if drafts else _NO_VALUE,
        _NO_VALUE if ratio is None else f"×{ratio:.2f}",
        _NO_VALUE if winner.predicted is None else _predicted(winner),
    )


def _predicted(winner: ConfirmedContender) -> str:
    """Return the simulated speeds, and their distance from the measured ones."""
    assert winner.predicted is not None
    off = f" {winner.rate.value / winner.predicted - 1:+.0%}" if winner.predicted else ""
    return f"{figure(winner.predicted)}{off}"


def _narrow(result: TaskResult, width: int) -> Iterator[str]:
    winner = result.winner
    ratio = llama_ratio(result)
    parts = [f"{figure(winner.rate.value)} tokens/s ({interval(winner.rate)})"]
    if result.settings.mode != "off":
        parts.append(f"×{winner.gain.value:.2f} of plain ({gain_interval(winner.gain)})")
    if ratio is not None:
        parts.append(f"×{ratio:.2f} of llama.cpp")
    simulated = [] if winner.predicted is None else [f"simulated {_predicted(winner)}"]
    words = f"{result.task}: {settings_words(result.settings)}"
    yield from _wrapped([words, *simulated], width, "")
    yield from _wrapped(parts, width, "  ")


def _wrapped(parts: Sequence[str], width: int, indent: str) -> Iterator[str]:
    """Join parts on lines as they fit; a part that is too long is broken between words."""
    rows: list[str] = []
    for part in parts:
        if rows and len(indent) + len(rows[-1]) + 2 + len(part) <= width:
            rows[-1] += f", {part}"
        else:
            rows.append(part)
    for row in rows:
        yield from wrap(row, max(20, width), initial_indent=indent, subsequent_indent=f"{indent}  ")
