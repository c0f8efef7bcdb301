"""Add up what the rounds of an answer did."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from itertools import zip_longest
from typing import Any

from localspec.types.drafts import DraftOrigin
from localspec.types.events import RoundStats, Summary
from localspec.types.request import Mode

_SUMS = ("drafted", "accepted", "verify_s", "draft_s", "wait_s")  # of the rounds


class HitCounter:
    """Count hits and misses: rounds with a prepared draft, and rounds that could have had one."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._segment_begins = True
        self.hits = self.misses = 0

    @property
    def rate(self) -> float | None:
        """Share of the wanted drafts that were prepared; None if none was wanted."""
        wanted = self.hits + self.misses
        return self.hits / wanted if wanted else None

    def add(self, origin: DraftOrigin) -> None:
        """Take a round; one that copies from the text wants nothing, nor does the first of a segment."""
        self.hits += origin is DraftOrigin.AHEAD
        could_prepare = self._mode == "ssd" and not self._segment_begins
        self.misses += could_prepare and origin not in (DraftOrigin.AHEAD, DraftOrigin.NGRAM)
        self._segment_begins = False

    def change(self, mode: Mode) -> None:
        """Continue in another mode."""
        self._mode = mode
        self._segment_begins = True


class Tally:
    """The running sums of one answer; times are of work, not of waiting for the reader."""

    def __init__(self, prompt_tokens: int, mode: Mode) -> None:
        self._prompt_tokens = prompt_tokens
        self._prompt_s = 0.0
        self._hits = HitCounter(mode)
        self._stats: list[RoundStats] = []
        self.tokens = 0
        self._first_token_s = 0.0
        self._last_s = 0.0

    @property
    def decode_s(self) -> float:
        """Return the seconds since the first token."""
        return self._last_s - self._first_token_s

    def add(self, stats: RoundStats, tokens: int, now_s: float) -> None:
        """Add a round that ended `now_s` seconds after the start of the answer; the first read the prompt."""
        if not self.tokens:
            self._first_token_s = now_s
            self._prompt_s = stats.verify_s
        else:
            self._stats.append(stats)
        self._hits.add(stats.origin)
        self.tokens += tokens
        self._last_s = now_s

    def change(self, mode: Mode) -> None:
        """Continue in another mode, whose first round has nothing to verify yet."""
        self._hits.change(mode)

    def summary(self, cached_tokens: int = 0) -> Summary:
        """Return the sums; `cached` tokens of the prompt were in the cache."""
        stats = self._stats
        accepted_at, drafted_at = _by_position((each.drafted, each.accepted) for each in stats)
        of_model = (each for each in stats if each.origin in (DraftOrigin.AHEAD, DraftOrigin.FRESH))
        model_at = _by_position((each.drafted - each.copied, each.accepted) for each in of_model)
        sums = {name: sum(getattr(each, name) for each in stats) for name in _SUMS}
        spent_s = sums["verify_s"] + sums["draft_s"] + sums["wait_s"]
        return Summary(
            prompt_tokens=self._prompt_tokens,
            cached_tokens=cached_tokens,
            tokens=self.tokens,
            rounds=len(stats),
            accepted_at=accepted_at,
            drafted_at=drafted_at,
            model_accepted_at=model_at[0],
            model_drafted_at=model_at[1],
            hits=self._hits.hits,
            misses=self._hits.misses,
            prompt_s=self._prompt_s,
            first_token_s=self._first_token_s,
            decode_s=self.decode_s,
            python_s=self.decode_s - spent_s,
            **sums,
        )


def total(summaries: Sequence[Summary]) -> Summary:
    """Return the sums over answers, that of the seconds until the first token too."""
    sums: dict[str, Any] = {}
    for field in fields(Summary):
        values = [getattr(summary, field.name) for summary in summaries]
        columns = zip_longest(*values, fillvalue=0) if field.name.endswith("_at") else None
        sums[field.name] = sum(values) if columns is None else tuple(map(sum, columns))
    return Summary(**sums)


def _by_position(drafts: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Count acceptances and verifications by position, from drafted and accepted lengths."""
    found = list(drafts)
    judged = [min(agreed + 1, length) for length, agreed in found]
    accepted = [min(agreed, length) for length, agreed in found]

    def counted(lengths: Sequence[int]) -> tuple[int, ...]:
        return tuple(sum(length > at for length in lengths) for at in range(max(judged, default=0)))

    return counted(accepted), counted(judged)


class Stopwatch:
    """Measures work, without the time that the reader of the events takes."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._stopped: float | None = None

    def seconds(self) -> float:
        """Return the seconds of work so far."""
        return time.perf_counter() - self._started

    def stop(self) -> None:
        """Leave out what happens from here on."""
        self._stopped = time.perf_counter()

    def go_on(self) -> None:
        """Count again, if it was stopped."""
        if self._stopped is not None:
            self._started += time.perf_counter() - self._stopped
            self._stopped = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what happens inside."""
        self.stop()
        try:
            yield
        finally:
            self.go_on()
