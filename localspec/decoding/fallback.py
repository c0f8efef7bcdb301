"""When to leave a mode that loses to plain decoding, and when to try it again; pure."""

from __future__ import annotations

from collections import Counter, deque

import numpy as np

from localspec.types import DraftOrigin, Mode, ModeChanged, RoundStats
from localspec.units import MODE_NAMES

WINDOW_TOKENS = 64
WINDOW_S = 0.4
MARGIN = 0.03  # of speed: less than that is noise
FIRST_PATIENCE = 256  # tokens in a lower mode before a higher one is tried again; doubles with every failure
BUCKET = 256  # tokens of context that count as one depth
LEARNING_RATE = 0.1
OUTLIER = 3.0  # a token that takes this many times its usual seconds was disturbed

_FALLBACKS: dict[Mode, tuple[Mode, ...]] = {
    "ssd": ("ssd", "sd", "off"),
    "sd": ("sd", "off"),
    "ngram": ("ngram", "off"),
    "off": ("off",),
}


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
        known, place = self._known, depth // BUCKET
        if place in known or not known:
            return known.get(place)
        places = sorted(known)
        return float(np.interp(place, places, [known[each] for each in places]))


class _Window:
    """The last rounds: as few as reach both sizes."""

    def __init__(self) -> None:
        self._rounds: deque[tuple[int, float]] = deque()
        self.tokens, self._seconds = 0, 0.0

    def add(self, tokens: int, seconds: float) -> float | None:
        """Take a round; return the tokens per second, None while there are too few rounds."""
        self._rounds.append((tokens, seconds))
        self.tokens, self._seconds = self.tokens + tokens, self._seconds + seconds
        while True:
            tokens, seconds = self._rounds[0]
            if self.tokens - tokens < WINDOW_TOKENS or self._seconds - seconds < WINDOW_S:
                break
            self._rounds.popleft()
            self.tokens, self._seconds = self.tokens - tokens, self._seconds - seconds
        is_full = self.tokens >= WINDOW_TOKENS and self._seconds >= WINDOW_S
        return self.tokens / self._seconds if is_full else None


class ModeFallback:
    """The mode to decode in, from the wanted one down to plain decoding; it outlives answers.

    It is told the counts and times of finished rounds and nothing else, so its choice cannot favour a token.
    """

    def __init__(self, wanted: Mode, plain: PlainCost) -> None:
        """Start in the wanted mode; `plain` is kept up to date by the caller."""
        self.wanted = self.mode = wanted
        self.reason = ""
        """Why the mode is not the wanted one."""
        self._plain = plain
        self._window = _Window()
        self._warm = False
        self._delivered: dict[Mode, float] = {}
        self._unproven = False  # whether the higher mode was left for what plain decoding promised
        self._trial: tuple[Mode, float] | None = None  # of a higher mode: what it interrupts, and has to beat
        self._waited = 0
        self._patience = FIRST_PATIENCE

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
        rate = self._window.add(tokens, stats.seconds)
        if rate is None:
            return None
        return self._judged_trial(rate) or self._down(rate, depth) or self._up(rate)

    def _judged_trial(self, rate: float) -> ModeChanged | None:
        """End a trial with its first full window."""
        if self._trial is None:
            return None
        (interrupted, to_beat), self._trial = self._trial, None
        if rate >= (1.0 - MARGIN) * to_beat:
            self._patience = FIRST_PATIENCE
            return None
        self._patience *= 2
        reason = f"{self._figure(rate)}, {MODE_NAMES[interrupted]} {to_beat:.0f}"
        return self._change(interrupted, rate, reason)

    def _down(self, rate: float, depth: int) -> ModeChanged | None:
        plain_s = self._plain.at(depth)
        if self.mode == "off" or plain_s is None or rate >= (1.0 - MARGIN) / plain_s:
            return None
        modes = _FALLBACKS[self.wanted]
        reason = f"{self._figure(rate)}, plain decoding {1.0 / plain_s:.0f}"
        change = self._change(modes[modes.index(self.mode) + 1], rate, reason)
        self._unproven = True
        return change

    def _up(self, rate: float) -> ModeChanged | None:
        """Return to a higher mode: plain decoding is slower than it seemed, or it is time for a trial."""
        if self.mode == self.wanted:
            return None
        modes = _FALLBACKS[self.wanted]
        best = max(modes[: modes.index(self.mode)], key=self._delivered.__getitem__)
        unproven, self._unproven = self._unproven and self.mode == "off", False
        delivered = self._delivered[best]
        if unproven and rate < (1.0 - MARGIN) * delivered:
            return self._change(
                best, rate, f"{self._figure(rate)}, {MODE_NAMES[best]} {delivered:.0f} before"
            )
        if self._waited < self._patience:
            return None
        reason = f"{MODE_NAMES[best]} is tried again after {self._waited} tokens"
        interrupted = self.mode
        change = self._change(best, rate, reason)
        self._trial = interrupted, rate
        return change

    def _figure(self, rate: float) -> str:
        return f"{MODE_NAMES[self.mode]} {rate:.0f} tok/s over the last {self._window.tokens} tokens"

    def _change(self, mode: Mode, rate: float, reason: str) -> ModeChanged:
        self._delivered[self.mode] = rate
        self.mode, self.reason = mode, reason
        self._window, self._warm, self._waited = _Window(), False, 0
        return ModeChanged(mode, reason)
