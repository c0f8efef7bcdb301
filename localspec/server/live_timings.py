"""The figures of an answer while it is written, which llama-server's clients may ask for with each chunk."""

from __future__ import annotations

import time
from dataclasses import dataclass

from localspec.app.answer_json import Json, timings
from localspec.types.events import PromptProgress, RoundDone, Summary


@dataclass(frozen=True, slots=True)
class Live:
    """What the chunks of a stream tell besides the answer."""

    progress: bool = False  # of reading the prompt
    timings: bool = False


NOTHING = Live()


class LiveTimings:
    """What an answer has cost so far; a chunk does not count the round that it comes from."""

    def __init__(self) -> None:
        """Begin before the prompt is read."""
        self._began_s: float | None = None
        self._read = PromptProgress(0, 0)
        self._prompt_s = 0.0
        self._decode_s = 0.0
        self._tokens = 0
        self._drafted = 0
        self._accepted = 0

    def take(self, event: object) -> None:
        """Count an event of the answer."""
        if isinstance(event, PromptProgress):
            self._read = event
            self._prompt_s = self._seconds()
        elif isinstance(event, RoundDone):
            if self._tokens:
                self._decode_s += event.stats.seconds
                self._drafted += event.stats.drafted
                self._accepted += event.stats.accepted
            self._tokens += event.tokens

    def _seconds(self) -> float:
        """Return the seconds since the first progress, which came before anything was read."""
        now = time.monotonic()
        if self._began_s is None:
            self._began_s = now
        return now - self._began_s

    def told(self) -> Json:
        """Return the figures under llama-server's names."""
        read = self._read
        so_far = Summary(
            prompt_tokens=read.cached + read.done,
            cached_tokens=read.cached,
            tokens=self._tokens,
            prompt_s=self._prompt_s,
            first_token_s=self._prompt_s,
            decode_s=self._decode_s,
            drafted=self._drafted,
            accepted=self._accepted,
        )
        return timings(so_far)
