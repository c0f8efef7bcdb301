"""What a benchmark prints: Markdown for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import isnan
from typing import TYPE_CHECKING

from localspec.app.figures import Json
from localspec.benchmark.harness import Run
from localspec.cli.bench.contenders import BenchRequest
from localspec.tuning.words import figure
from localspec.types import Interval
from localspec.units import memory

if TYPE_CHECKING:
    from localspec.benchmark.figures import Row, SpeedTable


UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class Conditions:
    """What figures hold for; `machine` is in words, `complete` False of a run that was stopped."""

    target: str
    draft: str | None
    machine: str
    command: str
    complete: bool


def markdown(table: SpeedTable, request: BenchRequest, conditions: Conditions) -> Iterator[str]:
    """Yield the lines of a table for each task, then what the figures hold for."""
    for task in dict.fromkeys(row.task for row in table.rows):
        yield f"### {' '.join(task.split())}"
        yield ""
        yield f"| {' | '.join(name for name, _ in _COLUMNS)} |"
        yield f"|{'|'.join(['---'] + ['---:'] * (len(_COLUMNS) - 1))}|"
        for row in table.rows:
            if row.task == task:
                yield f"| {' | '.join(cell(row) for _, cell in _COLUMNS)} |"
        yield ""
    models = conditions.target if conditions.draft is None else f"{conditions.target} + {conditions.draft}"
    yield f"{models}; {_asked(request)}. {conditions.machine}."
    if table.comparable and table.drift.disturbed:
        yield (
            f"The machine changed its pace in {_prompts(len(table.drift.disturbed))}, at worst by "
            f"{table.drift.worst:.0%}; the comparisons leave those out."
        )
    if not conditions.complete:
        yield "Stopped before the end."
    yield f"`{conditions.command}`"


def _asked(request: BenchRequest) -> str:
    times = f", {request.repetitions} times each" if request.repetitions > 1 else ""
    how = f"at most {request.max_tokens} tokens, temperature {request.sampling.temperature:g}"
    return f"{_prompts(len(request.prompts))}{times}, {how}"


def _prompts(number: int) -> str:
    return f"{number} prompt{'s' * (number != 1)}"


def times(ratio: float) -> str:
    """Return how many times faster something is."""
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:.3g}"


def _with_interval(found: Interval | None, say: Callable[[float], str]) -> str:
    if found is None:
        return UNKNOWN
    if isnan(found.low):
        return say(found.value)
    return f"{say(found.value)} ({say(found.low)}-{say(found.high)})"


def _milliseconds(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else f"{1000 * seconds:.{0 if seconds >= 0.1 else 2}f}"


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.0%}"


_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("", lambda row: row.contender),
    ("tokens/s", lambda row: _with_interval(row.tokens_per_s, figure)),
    ("x plain", lambda row: _with_interval(row.against, times)),
    ("x plain, whole", lambda row: _with_interval(row.whole_against, times)),
    ("TTFT ms", lambda row: _milliseconds(row.first_token_s)),
    (
        "prompt tok/s",
        lambda row: UNKNOWN if row.prompt_tokens_per_s is None else figure(row.prompt_tokens_per_s),
    ),
    ("tokens/round", lambda row: UNKNOWN if row.tokens_per_round is None else f"{row.tokens_per_round:.2f}"),
    ("accepted", lambda row: _percent(row.acceptance)),
    ("hits", lambda row: _percent(row.hit_rate)),
    ("wait ms", lambda row: _milliseconds(row.wait_s)),
    ("Python ms", lambda row: _milliseconds(row.python_s)),
    ("of bound", lambda row: _percent(row.of_bound)),
    ("memory", lambda row: UNKNOWN if row.memory_peak is None else memory(row.memory_peak)),
)


def whole(table: SpeedTable, request: BenchRequest, conditions: Conditions) -> Json:
    """Return everything as it is written to JSON."""
    return {
        **asdict(conditions),
        "prompts": len(request.prompts),
        "runs": request.repetitions,
        "max_tokens": request.max_tokens,
        "sampling": asdict(request.sampling),
        "comparable": table.comparable,
        "reason": table.reason or None,
        "drift": asdict(table.drift),
        "rows": [asdict(row) for row in table.rows],
    }


def line(run: Run) -> Json:
    """Return a run as it is written to a line of JSON."""
    names = ("contender", "task", "prompt", "repetition", "tokens_per_s")
    return {name: getattr(run, name) for name in names} | asdict(run.summary)
