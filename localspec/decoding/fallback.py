"""When to leave a mode that loses to plain decoding, and when to try it again; pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, stdev

import numpy as np

from localspec import units
from localspec.types.drafts import DraftOrigin
from localspec.types.events import ModeChanged, RoundStats
from localspec.types.request import Mode
from localspec.units import MODE_NAMES

MANY_TOKENS = 64
MANY_S = 1.0  # of work: in less, a speed is not compared with another
MARGIN = 0.03  # of speed: less than that is noise
LOSS_TOKENS = 4  # leave a mode once its net loss exceeds the time of this many plain tokens ...
LOSS_S = 0.1  # ... but not for less than this, which other programs use now and then
FIRST_PATIENCE = 512  # tokens in a lower mode before a higher one is tried again; doubles with every failure
BUCKET = 256  # tokens of context that count as one depth
LEARNING_RATE = 0.1
BUSY_RATE = 0.06  # decay of the typical time of the target's calls: slower than busy moments pass
OUTLIER = 3.0  # a token that takes this many times its typical seconds was disturbed

MIN_ROUNDS = 3  # before a loss counts as more than chance

_MODES: tuple[Mode, ...] = ("ssd", "sd", "ngram", "off")
"""Each falls back to the next; repetitions cost next to nothing where the text has none."""


class PlainCost:
    """Seconds of a token in plain decoding by the depth of the context, as measured."""

    def __init__(self) -> None:
        self._known: dict[int, float] = {}
        self._count: Counter[int] = Counter()

    def observe(self, depth: int, seconds: float) -> None:
        """Learn from one token."""
        place = depth // BUCKET
        self._count[place] += 1
        nearest = self.at(depth)
        seconds = seconds if nearest is None else min(seconds, OUTLIER * nearest)
        known = self._known.setdefault(place, seconds)
        rate = max(LEARNING_RATE, 1.0 / self._count[place])  # first a mean, then a running one
        self._known[place] = known + rate * (seconds - known)

    def at(self, depth: int) -> float | None:
        """Return the seconds at a depth: in proportion between two measured ones, else as at the nearest."""
        known = self._known
        place = depth // BUCKET
        if place in known or not known:
            return known.get(place)
        places = sorted(known)
        return float(np.interp(place, places, [known[each] for each in places]))


@dataclass(slots=True)
class _Rounds:
    """Some rounds in a row."""

    tokens: int = 0
    seconds: float = 0.0
    lost: list[float] = field(default_factory=list)  # seconds of each round, against a rival

    def add(self, tokens: int, seconds: float, lost_s: float = 0.0) -> None:
        """Take a round."""
        self.tokens = self.tokens + tokens
        self.seconds = self.seconds + seconds
        self.lost.append(lost_s)

    @property
    def surely_lose(self) -> bool:
        """Return whether the loss per round is significant, by two standard errors."""
        rounds = len(self.lost)
        return rounds >= MIN_ROUNDS and fmean(self.lost) > 2.0 * stdev(self.lost) / sqrt(rounds)

    @property
    def rate(self) -> float:
        """Return the tokens per second."""
        return self.tokens / self.seconds

    @property
    def are_many(self) -> bool:
        """Return whether their rate says something."""
        return self.tokens >= MANY_TOKENS and self.seconds >= MANY_S


_Rival = tuple[Mode, float]  # the mode to beat, with its tokens per second


class ModeFallback:
    """The mode to decode in, from the wanted one down to plain decoding; it outlives answers.

    It only gets the counts and times of finished rounds, so its choice cannot favour a token.
    """

    def __init__(self, wanted: Mode, plain: PlainCost) -> None:
        """Start in the requested mode; the caller updates `plain`."""
        self.wanted = self.mode = wanted
        self.reason = ""
        """Why the mode is not the wanted one."""
        self._plain = plain
        self._lately = _Rounds()
        self._loss = _Rounds()  # rounds that lost more than they gained
        self._lost_s = 0.0  # how much they lost
        self._warm = False
        self._delivered: dict[Mode, float] = {}
        self._usual_s: dict[
            int, float
        ] = {}  # of the target's call, by its size: the anchor of a busy machine
        self._returns = 0  # failed returns from a lower mode, which make the next one harder
        self._unproven = False  # whether the higher mode was left for what plain decoding promised
        self._trial: _Rival | None = None  # of a higher mode: what it interrupts
        self._waited = 0
        self._patience = FIRST_PATIENCE
        self.may_return = True
        """Whether a higher mode may be taken: not in an answer that has changed its mode already."""

    def begin(self) -> None:
        """Note that decoding starts or starts again: the first rounds say nothing of the speed."""
        self._warm = False

    def observe(self, stats: RoundStats, tokens: int, depth: int) -> ModeChanged | None:
        """Take a finished round, `depth` tokens deep in the context; return the change that it calls for."""
        if self.mode != self.wanted:
            self._waited += tokens
        if not self._warm:
            # a draft model that still reads the text drafts nothing, and its first draft has waited for that
            self._warm = self.mode in {"off", "ngram"} or stats.origin is not DraftOrigin.NONE
            return None
        known = self._delivered.get(self._best_higher()) if self._unproven else None
        self._lately.add(tokens, stats.seconds, 0.0 if known is None else stats.seconds - tokens / known)
        rival = self._rival(depth)
        busy = self._busy(stats)
        if rival is not None and self._has_lost(rival, tokens, stats.seconds, busy):
            return self._down(rival)
        if not self._lately.are_many:
            return None
        lately = self._lately
        self._lately = _Rounds()
        return None if self.mode == self.wanted else self._up(lately)

    def _busy(self, stats: RoundStats) -> float:
        """Return the ratio of the target's last call to its recent time; plain decoding would be as slow."""
        if not stats.verify_s > 0:
            return 1.0
        size = stats.drafted + 1
        now_s = stats.verify_s
        usual = self._usual_s.setdefault(size, now_s)
        self._usual_s[size] = usual + BUSY_RATE * (min(now_s, OUTLIER * usual) - usual)
        return max(1.0, now_s / usual)

    def _rival(self, depth: int) -> _Rival | None:
        """Return the mode to beat: the one that its trial interrupted, else plain decoding."""
        plain_s = self._plain.at(depth)
        if self.mode == "off" or self._trial is not None or plain_s is None:
            return self._trial
        return "off", 1.0 / plain_s

    def _has_lost(self, rival: _Rival, tokens: int, seconds: float, busy: float) -> bool:
        """Return whether the mode has lost too much; a trial with a full window ends in any case."""
        _, rate = rival
        limit_s = max(LOSS_TOKENS / rate, LOSS_S) * 2**self._returns
        lost_s = seconds / busy - tokens / rate / (1.0 - MARGIN)
        lost_s = min(lost_s, limit_s / 2)  # one round alone may have been disturbed
        self._lost_s += lost_s
        if self._lost_s > 0:
            self._loss.add(tokens, seconds, lost_s)
        else:
            self._loss = _Rounds()
            self._lost_s = 0.0
        is_long = self._loss.seconds >= MANY_S * 2**self._returns
        if is_long and self._lost_s > limit_s and self._loss.surely_lose:
            return True
        if self._trial is None or not self._lately.are_many:
            return False
        if self._lately.rate < (1.0 - MARGIN) * rate:
            return True
        self._trial = None
        self._patience = FIRST_PATIENCE
        return False

    def _down(self, rival: _Rival) -> ModeChanged:
        lower, rate = rival
        loss = self._loss if self._loss.tokens else self._lately
        slow = f"{MODE_NAMES[self.mode]} was slower than {MODE_NAMES[lower]}"
        figures = f"{units.rate(loss.rate)} against {units.rate(rate)} tokens/s"
        if self._trial is not None:
            self._trial = None
            self._patience = 2 * self._patience
        else:
            self._unproven, lower = True, _MODES[_MODES.index(self.mode) + 1]
        return self._change(lower, loss.rate, f"{slow}, {figures}; now {MODE_NAMES[lower]}")

    def _best_higher(self) -> Mode:
        """Return the fastest of the modes that were left for this one."""
        higher = _MODES[_MODES.index(self.wanted) : _MODES.index(self.mode)]
        return max(higher, key=lambda mode: self._delivered.get(mode, 0.0), default=self.mode)

    def _up(self, lately: _Rounds) -> ModeChanged | None:
        """Return to a higher mode: plain decoding is slower than it seemed, or it is time for a trial."""
        if not self.may_return:
            return None
        rate = lately.rate
        best = self._best_higher()
        unproven = self._unproven
        self._unproven = False
        delivered = self._delivered[best]
        if unproven and rate < (1.0 - MARGIN) * delivered and lately.surely_lose:
            self._returns += 1
            slow = f"{MODE_NAMES[self.mode]} is slower than {MODE_NAMES[best]} was"
            figures = f"{units.rate(rate)} against {units.rate(delivered)} tokens/s"
            return self._change(best, rate, f"{slow}, {figures}; back to {MODE_NAMES[best]}")
        if self._waited < self._patience:
            return None
        reason = f"{MODE_NAMES[best]} is tried again after {self._waited} tokens of {MODE_NAMES[self.mode]}"
        self._trial = self.mode, rate
        return self._change(best, rate, reason)

    def _change(self, mode: Mode, rate: float, reason: str) -> ModeChanged:
        self._delivered[self.mode] = rate
        self.mode = mode
        self.reason = reason
        self._lately = _Rounds()
        self._loss = _Rounds()
        self._lost_s = 0.0
        self._warm = False
        self._waited = 0
        return ModeChanged(mode, reason)
