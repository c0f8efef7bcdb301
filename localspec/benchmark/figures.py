"""From timed answers to the figures of a table; pure.

Answers to one prompt are compared with each other, prompts are what chance picks from (the bootstrap draws
them anew), and few prompts widen the intervals (Student's t). Prompts during which the machine changed its
pace are left out of comparisons; where that is most of them, nothing is compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean, median

from localspec.benchmark.contender import Anchor, Run
from localspec.benchmark.statistics import ratio_of_sums
from localspec.types import Summary

ALL = "all"
"""What stands for all tasks together."""
DISTURBED = 0.1
"""A change of plain decoding's pace during a prompt that spoils what is compared there."""
FEWEST_PROMPTS = 3  # below it nothing can be told


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % interval, whose ends are None where a single prompt tells no spread."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """What a contender did over the prompts of a task, or over "all"; None says that nobody can know.

    `against` is its speed in the first contender's, paired by prompt; `whole_against` counts all time
    from the question on, as some let both models read the prompt before the first token. `acceptance` and
    `accepted_at` are shares of the drafted tokens, the latter by position and of those that were judged.
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
        for name in names:
            if mine := by_name[name]:
                comparable = name != names[0] and not reason
                ratios = [
                    _against(mine, by_name[names[0]], fair, pace) if comparable else None
                    for pace in (_decoding, _whole)
                ]
                rows.append(_row(name, task, mine, ratios, peaks.get(name)))
    return SpeedTable(tuple(rows), drift, not reason, reason)


def _drift(anchors: Sequence[Anchor]) -> tuple[Drift, set[int]]:
    """Return the drift and the prompts that it spared, of those with an anchor on either side."""
    paces = {anchor.prompt: anchor.seconds_per_token for anchor in anchors}
    changes: dict[int, float] = {}
    for prompt, before in paces.items():
        if after := paces.get(prompt + 1):
            changes[prompt] = max(before, after) / min(before, after) - 1.0
    disturbed = sorted(prompt for prompt, change in changes.items() if change > DISTURBED)
    return Drift(max(changes.values(), default=0.0), tuple(disturbed)), changes.keys() - disturbed


def _why_not(drift: Drift, steady: int, left: int) -> str:
    """Return why nothing can be compared; an empty text if it can."""
    disturbed = len(drift.disturbed)
    if disturbed > steady:
        return (
            f"the machine's pace changed by more than {DISTURBED:.0%} during {disturbed} of "
            f"{disturbed + steady} prompts, at worst by {drift.worst:.0%}; close other programs, let it cool "
            "down and measure again"
        )
    if left < FEWEST_PROMPTS:
        return (
            f"a comparison needs {FEWEST_PROMPTS} prompts that were measured to the end at an even pace, "
            f"and got {left}"
        )
    return ""


def _row(
    name: str, task: str, runs: Sequence[Run], ratios: Sequence[Interval | None], peak: int | None
) -> Row:
    sums = [run.summary for run in runs]
    drafted = sum(each.drafted for each in sums)
    hits, misses = sum(each.hits for each in sums), sum(each.misses for each in sums)
    work = sum(each.verify_s + each.draft_s for each in sums)
    bound = work + sum(each.wait_s + each.python_s for each in sums)
    prompt_s = sum(each.prompt_s for each in sums)
    rounds = sum(each.rounds for each in sums)

    def per_round(total: float) -> float | None:
        return total / rounds if rounds else None

    return Row(
        contender=name,
        task=task,
        answers=len(runs),
        tokens_per_s=_speed(runs),
        against=ratios[0],
        whole_against=ratios[1],
        prompt_tokens_per_s=_share(sum(each.prompt_tokens - each.cached_tokens for each in sums), prompt_s),
        first_token_s=median(each.first_token_s for each in sums),
        acceptance=_share(sum(each.accepted for each in sums), drafted),
        accepted_at=_accepted_at(sums),
        hit_rate=_share(hits, hits + misses),
        tokens_per_round=per_round(sum(each.tokens - 1 for each in sums)),
        drafted=per_round(drafted),
        verify_s=per_round(sum(each.verify_s for each in sums)),
        draft_s=per_round(sum(each.draft_s for each in sums)),
        wait_s=per_round(sum(each.wait_s for each in sums)),
        python_s=per_round(sum(each.python_s for each in sums)),
        of_bound=_share(work, bound),
        memory_peak=peak,
    )


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _accepted_at(sums: Sequence[Summary]) -> tuple[float, ...]:
    accepted = [sum(at) for at in zip_longest(*(each.accepted_at for each in sums), fillvalue=0)]
    judged = [sum(at) for at in zip_longest(*(each.drafted_at for each in sums), fillvalue=0)]
    return tuple(a / j for a, j in zip(accepted, judged, strict=True) if j)


def _speed(runs: Sequence[Run]) -> Interval:
    """Return the tokens per second of decoding; every prompt weighs alike, however long its answers."""
    by_prompt: defaultdict[int, list[float]] = defaultdict(list)
    for run in runs:
        by_prompt[run.prompt].append(_decoding(run))
    paces = [fmean(of_prompt) for of_prompt in by_prompt.values()]
    return _interval([1.0] * len(paces), paces)


def _decoding(run: Run) -> float:
    return 1.0 / run.tokens_per_s


def _whole(run: Run) -> float:
    return (run.summary.first_token_s + run.summary.decode_s) / run.summary.tokens


def _against(
    runs: Sequence[Run], first: Sequence[Run], fair: frozenset[int], pace: Callable[[Run], float]
) -> Interval | None:
    """Return the speed of some runs in that of the first contender, over the prompts where that is fair.

    `pace` tells the seconds per token that count.
    """
    theirs = {(run.prompt, run.repetition): pace(run) for run in first if run.prompt in fair}
    pairs: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        if (their := theirs.get((run.prompt, run.repetition))) is not None:
            pairs[run.prompt].append((their, pace(run)))
    if not pairs:
        return None
    means = [[fmean(paces) for paces in zip(*of_prompt, strict=True)] for of_prompt in pairs.values()]
    return _interval([their for their, _ in means], [mine for _, mine in means])


def _interval(above: Sequence[float], below: Sequence[float]) -> Interval:
    if len(above) == 1:
        return Interval(above[0] / below[0], None, None)
    return Interval(*ratio_of_sums(above, below))
