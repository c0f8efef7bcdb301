"""From timed answers to the figures of a table; pure.

Answers to one prompt are compared with each other, prompts are what chance picks from (the bootstrap draws
them again), and few prompts widen the intervals (Student's t). Prompts during which the machine changed its
pace are left out of comparisons; where that is most of them, nothing is compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from localspec.benchmark.harness import MIN_PROMPTS, Anchor, Run, paces
from localspec.benchmark.statistics import Interval, Paces, rate, speedup
from localspec.decoding.tally import total

ALL = "all"
"""The name of all tasks together."""
DISTURBED = 0.1
"""A change of plain decoding's pace during a prompt that spoils what is compared there."""


@dataclass(frozen=True, slots=True)
class Row:
    """The results of a contender over the prompts of a task, or over "all"; None means unknown.

    `against` is its speed relative to the first contender's, paired by prompt; `whole_against` counts all
    time from the question on, because some process the prompt with both models before the first token.
    `acceptance` and `accepted_at` are shares of the drafted tokens, the latter by position, among verified
    tokens.
    """

    contender: str
    task: str
    answers: int
    tokens_per_s: Interval
    against: Interval | None
    whole_against: Interval | None
    prompt_tokens_per_s: float | None
    first_token_s: float  # the median
    acceptance: float | None
    accepted_at: tuple[float, ...]
    hit_rate: float | None
    # Means per round:
    tokens_per_round: float | None
    drafted: float | None
    verify_s: float | None
    draft_s: float | None
    wait_s: float | None
    python_s: float | None
    of_bound: float | None  # the share of a round that only the target, and drafting on misses, took
    memory_peak: int | None


@dataclass(frozen=True, slots=True)
class Drift:
    """How much the machine's pace changed during a prompt, at worst, and the prompts left out for it."""

    worst: float
    disturbed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpeedTable:
    """All figures; if they cannot be compared, a plain sentence says why."""

    rows: tuple[Row, ...]
    drift: Drift
    comparable: bool
    reason: str


def table(runs: Sequence[Run], anchors: Sequence[Anchor], peaks: Mapping[str, int | None]) -> SpeedTable:
    """Return the figures of contenders task by task, and of "all" if there are several tasks.

    Contenders come in the order of `peaks`, their memory peaks by name; the first is the one that the others
    are compared with.
    """
    names = list(dict.fromkeys([*peaks, *(run.contender for run in runs)]))
    drift, steady = _drift(anchors)
    fair = frozenset(steady & {run.prompt for run in runs})
    reason = _why_not(drift, len(steady), len(fair)) if len(names) > 1 else ""
    rows: list[Row] = []
    tasks = list(dict.fromkeys(run.task for run in runs))
    for task in [*tasks, ALL] if len(tasks) > 1 else tasks:
        by_name: defaultdict[str, list[Run]] = defaultdict(list)
        for run in runs:
            if task in {run.task, ALL}:
                by_name[run.contender].append(run)
        first = [] if reason else [run for run in by_name[names[0]] if run.prompt in fair]
        for name in names:
            if mine := by_name[name]:
                others = first if name != names[0] else []
                rows.append(_row(name, task, mine, others, peaks.get(name)))
    return SpeedTable(tuple(rows), drift, not reason, reason)


def _drift(anchors: Sequence[Anchor]) -> tuple[Drift, set[int]]:
    """Return the drift and the prompts that it spared, of those with an anchor on either side."""
    measured = {anchor.prompt: anchor.seconds_per_token for anchor in anchors}
    changes: dict[int, float] = {}
    for prompt, before in measured.items():
        if after := measured.get(prompt + 1):
            changes[prompt] = max(before, after) / min(before, after) - 1.0
    disturbed = sorted(prompt for prompt, change in changes.items() if change > DISTURBED)
    return Drift(max(changes.values(), default=0.0), tuple(disturbed)), changes.keys() - disturbed


def _why_not(drift: Drift, steady: int, left: int) -> str:
    """Return the reason why nothing can be compared; empty if it can."""
    disturbed = len(drift.disturbed)
    if disturbed > steady:
        return (
            f"the machine's pace changed by more than {DISTURBED:.0%} during {disturbed} of "
            f"{disturbed + steady} prompts, at worst by {drift.worst:.0%}; close other programs, let it cool "
            "down and measure again"
        )
    if left < MIN_PROMPTS:
        return (
            f"a comparison needs {MIN_PROMPTS} prompts that were measured to the end at an even pace, "
            f"and got {left}"
        )
    return ""


def _row(name: str, task: str, runs: Sequence[Run], first: Sequence[Run], peak: int | None) -> Row:
    whole = total([run.summary for run in runs])
    work = whole.verify_s + whole.draft_s
    spent = work + whole.wait_s + whole.python_s

    def per_round(amount: float) -> float | None:
        return amount / whole.rounds if whole.rounds else None

    return Row(
        contender=name,
        task=task,
        answers=len(runs),
        tokens_per_s=rate(paces(runs)),
        against=speedup(paces(runs), paces(first)),
        whole_against=speedup(_whole(runs), _whole(first)),
        prompt_tokens_per_s=whole.prompt_tokens_per_s,
        first_token_s=median(run.summary.first_token_s for run in runs),
        acceptance=whole.acceptance,
        accepted_at=tuple(share for share in whole.acceptance_by_position if share is not None),
        hit_rate=whole.hit_rate,
        tokens_per_round=per_round(sum(run.summary.decoded_tokens for run in runs)),
        drafted=per_round(whole.drafted),
        verify_s=per_round(whole.verify_s),
        draft_s=per_round(whole.draft_s),
        wait_s=per_round(whole.wait_s),
        python_s=per_round(whole.python_s),
        of_bound=work / spent if spent else None,
        memory_peak=peak,
    )


def _whole(runs: Sequence[Run]) -> Paces:
    return {(run.prompt, run.repetition): run.summary.seconds / run.summary.tokens for run in runs}
