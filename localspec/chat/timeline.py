"""The timeline of an answer, computed without a terminal.

Rounds are added one by one and only appended, so the cost of a view depends on its width, not on the
length of the answer. The round with the prefill says nothing about the speed: it is separate, and not
counted as a round, as in `Summary`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from localspec import units
from localspec.chat.figures import accepted_words
from localspec.types.drafts import DraftOrigin
from localspec.types.events import RoundDone, RoundStats

SMOOTHING = 8  # rounds that a point of a curve looks at, at least
SCALES_S = tuple(unit * 10.0**power for power in range(-5, 2) for unit in (1, 2, 5))
COLUMNS_PER_ROUND = 6  # enough to see what overlaps what


class Activity(Enum):
    """What a lane does during half a column."""

    IDLE = "idle"
    DRAFT = "draft"  # the draft model, while the target waits
    AHEAD = "ahead"  # the draft model, while the target verifies
    WAIT = "wait"  # the target waits for a draft
    VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class RoundMark:
    """The column of a round (counted from 0), and how that came by its draft."""

    column: int
    round: int
    origin: DraftOrigin


@dataclass(frozen=True, slots=True)
class TimelineLanes:
    """A stretch of time: two halves for each column of both lanes, and the marks between them.

    How long the draft model worked under a verification is known, but not when: it is drawn from its start.
    """

    draft: tuple[Activity, ...]
    verify: tuple[Activity, ...]
    marks: tuple[RoundMark, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """How often the draft token at a position was judged, and accepted."""

    judged: int
    accepted: int

    @property
    def share(self) -> float:
        """Return the share of accepted tokens."""
        return self.accepted / self.judged


def origin_of(stats: RoundStats) -> DraftOrigin:
    """Return the source of a round's draft; an empty draft only counts if it was prepared."""
    return stats.origin if stats.drafted or stats.origin is DraftOrigin.AHEAD else DraftOrigin.NONE


class History:
    """The rounds of an answer, written or still being written; sums are without that of the prompt."""

    def __init__(self, rounds: Sequence[RoundDone] = ()) -> None:
        self.prompt: RoundDone | None = None  # the round that read it
        self.rounds: list[RoundDone] = []  # all others
        self._tokens = [0]  # before round i
        self._seconds = [0.0]  # before round i
        self._judged: Counter[int] = Counter()  # draft tokens, by their position
        self._accepted: Counter[int] = Counter()
        self.drafted = self.accepted = self.hits = 0
        self.chances = 0  # those `_wanted` up to the last round while the draft model worked ahead
        self.waited_s = 0.0  # of the target, for a draft
        self.hidden_s = 0.0  # of the draft model, overlapped with the target's passes
        self._wanted = 0  # rounds whose draft the draft model could have prepared: not n-gram drafts
        self.add(rounds)

    def __len__(self) -> int:
        return len(self.rounds)

    @property
    def tokens(self) -> int:
        """Return the number of tokens of the rounds."""
        return self._tokens[-1]

    @property
    def seconds(self) -> float:
        """Return all of their time."""
        return self._seconds[-1]

    @property
    def acceptance(self) -> float | None:
        """Share of the draft tokens that were accepted; None if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    def add(self, rounds: Sequence[RoundDone]) -> None:
        """Append rounds."""
        for round_ in rounds:
            if self.prompt is None:
                self.prompt = round_
            else:
                self._add(round_, self.rounds[-1] if self.rounds else self.prompt)

    def _add(self, round_: RoundDone, before: RoundDone) -> None:
        stats = round_.stats
        hit = stats.origin is DraftOrigin.AHEAD
        self.rounds.append(round_)
        self._wanted += stats.origin is not DraftOrigin.NGRAM
        self.drafted += stats.drafted
        self.accepted += stats.accepted
        self.hits += hit
        if hit or stats.ahead_s > 0 or before.stats.ahead_s > 0:
            self.chances = self._wanted
        self.waited_s += stats.draft_s + stats.wait_s
        self.hidden_s += stats.ahead_s
        self._tokens.append(self._tokens[-1] + round_.tokens)
        self._seconds.append(self.seconds + stats.seconds)
        judged = range(min(stats.accepted + 1, stats.drafted))
        self._judged.update(judged)
        self._accepted.update(judged[: stats.accepted])

    def start_s(self, index: int) -> float:
        """Return when a round began, in seconds of work since the prompt was read."""
        return self._seconds[index]

    def round_at(self, at_s: float) -> int:
        """Return the round at a time, or the nearest."""
        return max(0, min(bisect_right(self._seconds, at_s) - 1, len(self.rounds) - 1))

    def fitting_scale(self) -> float:
        """Return the seconds per column at which a typical round is legible."""
        if not self.rounds:
            return SCALES_S[6]
        wanted = self.seconds / len(self.rounds) / COLUMNS_PER_ROUND
        return SCALES_S[min(bisect_left(SCALES_S, wanted), len(SCALES_S) - 1)]

    def zoomed(self, scale_s: float, steps: int) -> float:
        """Return a scale some steps coarser (or finer, if negative), with at most a round in a column."""
        mean_s = self.seconds / max(1, len(self.rounds))
        coarsest = max(0, bisect_right(SCALES_S, mean_s) - 1)
        return SCALES_S[max(0, min(bisect_left(SCALES_S, scale_s) + steps, coarsest))]

    def lanes(self, start_s: float, scale_s: float, width: int) -> TimelineLanes:
        """Return the work of both models from `begin` on, with `seconds` in each column."""
        draft = [Activity.IDLE] * (2 * width)
        verify = [Activity.IDLE] * (2 * width)
        marks: list[RoundMark] = []
        if self.rounds and width > 0:
            for index in range(self.round_at(start_s), self.round_at(start_s + width * scale_s) + 1):
                column = self._paint(index, start_s, scale_s / 2, draft, verify) // 2
                column = max(column, marks[-1].column + 1) if marks else column
                if 0 <= column < width:
                    marks.append(RoundMark(column, index, origin_of(self.rounds[index].stats)))
        return TimelineLanes(tuple(draft), tuple(verify), tuple(marks))

    def _paint(
        self, index: int, start_s: float, half_s: float, draft: list[Activity], verify: list[Activity]
    ) -> int:
        """Draw a round, and return the half column where its verification begins."""
        stats = self.rounds[index].stats

        def half(after_s: float) -> int:
            return math.floor((self._seconds[index] - start_s + after_s) / half_s + 0.5)

        drafted_s = stats.draft_s
        begin_s = drafted_s + stats.wait_s
        begin = half(begin_s)
        end = half(begin_s + stats.verify_s)
        if end - begin > 2:
            end -= 1  # a gap between rounds
        _fill(draft, half(0.0), half(drafted_s), Activity.DRAFT)
        _fill(verify, half(0.0), begin, Activity.WAIT)
        _fill(verify, begin, max(end, begin + 1), Activity.VERIFY)
        if stats.ahead_s > 0:
            _fill(draft, begin, max(begin + 1, min(half(begin_s + stats.ahead_s), end)), Activity.AHEAD)
        return begin

    def speed(self, first: int = 0, last: int | None = None) -> float:
        """Return the tokens per second over some rounds, all by default."""
        last = len(self) if last is None else last
        seconds = self._seconds[last] - self._seconds[first]
        return (self._tokens[last] - self._tokens[first]) / seconds if seconds > 0 else 0.0

    def length(self, first: int = 0, last: int | None = None) -> float:
        """Return the tokens per round over some rounds, all by default."""
        last = len(self) if last is None else last
        return (self._tokens[last] - self._tokens[first]) / max(1, last - first)

    def recent(self) -> int:
        """Return the first of the rounds that count as the present."""
        return max(0, len(self) - SMOOTHING)

    def course(self, width: int, figure: Callable[[int, int], float]) -> tuple[float, ...]:
        """Return the course of `speed` or `length` over the whole answer, smoothed."""
        rounds = len(self)
        if not rounds:
            return ()
        points = []
        for column in range(width):
            first = column * rounds // width
            last = (column + 1) * rounds // width
            spare = max(0, SMOOTHING - (last - first))
            first = max(0, min(first - spare // 2, rounds - SMOOTHING))
            points.append(figure(first, min(rounds, max(last, first + SMOOTHING))))
        return tuple(points)

    def by_position(self) -> tuple[Position, ...]:
        """Return the acceptance of draft tokens for each position in a draft."""
        return tuple(Position(judged, self._accepted[at]) for at, judged in self._judged.items())


def _fill(lane: list[Activity], start: int, end: int, work: Activity) -> None:
    start = max(0, start)
    end = max(start, min(len(lane), end))
    lane[start:end] = [work] * (end - start)


def describe_totals(history: History) -> str:
    """Return the sums of an answer in one line."""
    if not history.rounds:
        return "No rounds yet"
    parts = ["1 round" if len(history) == 1 else f"{len(history):,} rounds"]
    if history.acceptance is not None:
        parts.append(accepted_words(history.acceptance, history.drafted))
    if history.chances:
        parts.append(f"{percent(history.hits, history.chances)} prepared")
    if history.drafted or history.waited_s:
        parts.append(f"waited {duration(history.waited_s)}")
    if history.hidden_s:
        parts.append(f"{duration(history.hidden_s)} of drafting overlapped")
    return ", ".join(parts)


def describe_round(history: History, index: int) -> str:
    """Return a line with the tokens and times of a round."""
    stats = history.rounds[index].stats
    parts = [f"drafted {stats.drafted}, accepted {stats.accepted}"] if stats.drafted else ["no draft"]
    parts.append(f"verify {duration(stats.verify_s)}")
    if stats.draft_s:
        parts.append(f"waited {duration(stats.draft_s)} for the draft")
    if stats.ahead_s:
        parts.append(f"draft {duration(stats.ahead_s)} overlapped")
    if stats.wait_s >= 0.00005:
        parts.append(f"other waiting {duration(stats.wait_s)}")
    return f"round {index + 1}: {', '.join(parts)}"


def duration(seconds: float) -> str:
    """Return a short time in words."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"


def percent(part: int, whole: int) -> str:
    """Return a share in words."""
    return units.percent(part / whole)
