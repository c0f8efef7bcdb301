"""What everyday answers tell of a pair of models; kept only where a person wants that, on this machine alone.

One small file for each pair. Old answers fade: what counts is how the pair is used now.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import takewhile, zip_longest
from pathlib import Path

from localspec.storage.json_file import JsonFile
from localspec.storage.paths import data_dir
from localspec.types import EngineSettings, Mode, Summary, TaskType

VERSION = 1
MOST_JUDGED = 5_000  # first tokens of drafts, tokens written, and so on; beyond it all counts are halved
MOST_POSITIONS = 32
MOST_BUDGETS = 8
LARGEST_FILE = 256 * 1024
SHALLOWEST = 256  # tokens; pace is kept by the power of two below the depth
LEAST_TOKENS = 16  # of an answer that tells something of the pace
LEAST_JUDGED = 20  # tokens at a position of drafts that tell something of acceptance
LONGEST = 12  # drafts to begin with
DRAFT_COSTS = (0.05, 0.1, 0.2)  # of a draft token, in target passes, that starting points are made for
VERIFY_COST = 0.03  # of one more token to verify, likewise
WANTED_MISSES = 0.15
MOST_FAN_OUT = 64


@dataclass(frozen=True, slots=True)
class Ahead:
    """How often a draft was ready, having prepared for so many outcomes."""

    budget: int
    hits: float
    misses: float

    @property
    def rounds(self) -> float:
        """Return how many rounds were counted."""
        return self.hits + self.misses


@dataclass(frozen=True, slots=True)
class PaceStats:
    """Tokens and the seconds they took in a mode, from `depth` to twice as many tokens in the context."""

    mode: Mode
    depth: int
    tokens: float
    seconds: float


@dataclass(frozen=True, slots=True)
class UsageStats:
    """What the answers to one kind of task came to."""

    task: TaskType
    answers: int = 0
    accepted_at: tuple[float, ...] = ()  # per position of drafts: how often accepted
    drafted_at: tuple[float, ...] = ()  # per position: how often judged
    ahead: tuple[Ahead, ...] = ()
    paces: tuple[PaceStats, ...] = ()

    @property
    def acceptance(self) -> tuple[float, ...]:
        """Return the share of accepted tokens by position, as far as it is known."""
        counts = zip(self.accepted_at, self.drafted_at, strict=True)
        known = takewhile(lambda count: count[1] >= LEAST_JUDGED, counts)
        return tuple(min(1.0, accepted / judged) for accepted, judged in known)


@dataclass(frozen=True, slots=True)
class _File:
    version: int
    tasks: tuple[UsageStats, ...] = ()


def file_of(pair: str) -> Path:
    """Return where the statistics of a pair are kept; `pair` is a name for its files."""
    return data_dir() / "learned" / f"{pair}.json"


def learned(path: Path, task: TaskType) -> UsageStats | None:
    """Return what is known of a task, None without anything; a damaged file is as good as none."""
    return next((known for known in _tasks(_file(path)) if known.task == task), None)


def learn(path: Path, task: TaskType, settings: EngineSettings, summary: Summary, *, steady: bool) -> None:
    """Count an answer in; `steady` if it was written in one mode from beginning to end.

    Raises StoreError, also while another program writes, or OSError.
    """
    file = _file(path)
    with file.locked(1.0):
        tasks = {known.task: known for known in _tasks(file)}
        tasks[task] = _with(tasks.get(task, UsageStats(task)), settings, summary, steady=steady)
        file.write(_File(VERSION, tuple(tasks.values())))


def _file(path: Path) -> JsonFile[_File]:
    return JsonFile(path, _File, largest=LARGEST_FILE, is_sound=_is_sound)


def _tasks(file: JsonFile[_File]) -> tuple[UsageStats, ...]:
    return (file.read() or _File(VERSION)).tasks


def _is_sound(file: _File) -> bool:
    return file.version == VERSION and all(
        len(known.accepted_at) == len(known.drafted_at) <= MOST_POSITIONS
        and min((*known.accepted_at, *known.drafted_at, known.answers)) >= 0
        for known in file.tasks
    )


def _with(known: UsageStats, settings: EngineSettings, summary: Summary, *, steady: bool) -> UsageStats:
    known = replace(known, answers=known.answers + 1)
    if settings.mode in {"sd", "ssd"}:  # drafts that repeat the text say nothing of the draft model
        accepted = _sums(known.accepted_at, summary.model_accepted_at)
        drafted = _sums(known.drafted_at, summary.model_drafted_at)
        half = _fading(drafted[:1])
        known = replace(
            known,
            accepted_at=tuple(half * count for count in accepted),
            drafted_at=tuple(half * count for count in drafted),
        )
    if summary.hits + summary.misses:
        known = replace(known, ahead=_counted(known.ahead, settings.fan_out_budget, summary))
    if steady and summary.tokens >= LEAST_TOKENS and summary.decode_s > 0:
        known = replace(known, paces=_paced(known.paces, settings.mode, summary))
    return known


def _sums(old: tuple[float, ...], new: tuple[int, ...]) -> tuple[float, ...]:
    sums = tuple(one + other for one, other in zip_longest(old, new, fillvalue=0.0))
    return sums[:MOST_POSITIONS]


def _fading(counts: Iterable[float]) -> float:
    return 0.5 if sum(counts) > MOST_JUDGED else 1.0


def _counted(rows: tuple[Ahead, ...], budget: int, summary: Summary) -> tuple[Ahead, ...]:
    by_budget = {row.budget: row for row in rows}
    old = by_budget.pop(budget, Ahead(budget, 0, 0))
    hits, misses = old.hits + summary.hits, old.misses + summary.misses
    half = _fading((hits, misses))
    others = sorted(by_budget.values(), key=lambda row: row.rounds, reverse=True)
    return (Ahead(budget, half * hits, half * misses), *others[: MOST_BUDGETS - 1])


def _paced(rows: tuple[PaceStats, ...], mode: Mode, summary: Summary) -> tuple[PaceStats, ...]:
    depth = max(SHALLOWEST, 1 << (summary.prompt_tokens + summary.tokens // 2).bit_length() - 1)
    others = {(row.mode, row.depth): row for row in rows}
    old = others.pop((mode, depth), PaceStats(mode, depth, 0, 0))
    tokens, seconds = old.tokens + summary.tokens - 1, old.seconds + summary.decode_s
    half = _fading((tokens,))
    return (*others.values(), PaceStats(mode, depth, half * tokens, half * seconds))


def starting_points(known: UsageStats) -> tuple[EngineSettings, ...]:
    """Return settings that everyday use makes likely to be good, the most promising first.

    Acceptance by position gives the length of drafts, for cheap and for dear draft models; the hit rate
    gives how many outcomes to prepare; the mode that was the fastest comes first.
    """
    lengths = dict.fromkeys(_best_length(known.acceptance, cost) for cost in DRAFT_COSTS)
    modes: list[Mode] = ["sd", "ssd"]
    modes.sort(key=lambda mode: -_speed(known.paces, mode))
    return tuple(
        EngineSettings(mode=mode, draft_length=length, fan_out_budget=_budget(known.ahead))
        for mode in modes
        for length in lengths
        if length
    )


def _best_length(acceptance: tuple[float, ...], draft_cost: float) -> int:
    """Return the length of drafts that gives the most tokens for its time; 0 if nothing is known."""
    if not acceptance:
        return 0
    best, found, tokens, chance = 0.0, 1, 1.0, 1.0
    for length in range(1, LONGEST + 1):
        chance *= acceptance[min(length, len(acceptance)) - 1]
        tokens += chance
        if (speed := tokens / (1 + length * (draft_cost + VERIFY_COST))) > best:
            best, found = speed, length
    return found


def _budget(rows: tuple[Ahead, ...]) -> int:
    """Return how many outcomes to prepare, if twice as many halve the misses."""
    most = max(rows, key=lambda row: row.rounds, default=None)
    if most is None or most.rounds < LEAST_JUDGED:
        return EngineSettings().fan_out_budget
    wanted = round(most.budget * most.misses / most.rounds / WANTED_MISSES)
    return min(MOST_FAN_OUT, max(1, most.budget // 2, wanted))


def _speed(paces: tuple[PaceStats, ...], mode: Mode) -> float:
    """Return the tokens per second of a mode, 0 if it was never used."""
    rows = [row for row in paces if row.mode == mode]
    seconds = sum(row.seconds for row in rows)
    return sum(row.tokens for row in rows) / seconds if seconds else 0.0
