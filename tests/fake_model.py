"""A toy language model in a few microseconds, and devices that are not here: calls held for their time.

Two held models behave like two GPUs with memories of their own. Figures from them are "paced".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.model import LanguageModel
from localspec.errors import Cancelled, ContextFullError
from localspec.types.candidates import ChosenRows, FullRows, Logits, Rows


@dataclass(frozen=True, slots=True)
class Pacing:
    """The cost of a call: `first_s` for one token, `further` of that more for every further one."""

    first_s: float
    further: float

    def __call__(self, size: int) -> float:
        """Return the seconds of a call with `size` tokens."""
        return self.first_s * (1.0 + self.further * (size - 1))


class Hold:
    """Holds calls until their cost has passed, without the interpreter lock.

    A prompt is read at the price of one call for each `chunk` tokens.
    """

    def __init__(self, cost: Callable[[int], float], chunk: int = 512) -> None:
        self._cost = cost
        self._chunk = chunk
        self.seconds = 0.0  # that calls were held so far

    def rest(self, size: int, spent_s: float) -> None:
        """Hold a call with `size` tokens that has taken `spent_s` seconds for the rest of its cost."""
        whole, more = divmod(size, self._chunk)
        cost_s = whole * self._cost(self._chunk) + (self._cost(more) if more else 0.0)
        if cost_s > spent_s:
            before = time.perf_counter()
            time.sleep(cost_s - spent_s)
            self.seconds += time.perf_counter() - before


class FakeModel(LanguageModel):
    """A Markov model of order two over a small vocabulary that checks its use.

    Two models with one `seed` agree the better the smaller the `noise` of the second is.
    """

    name = "fake"

    def __init__(
        self,
        vocabulary: int = 16,
        *,
        seed: int = 0,
        noise: float = 0.0,
        sharpness: float = 2.0,
        context: int = 4096,
        sequences: int = 1,
        delay: Callable[[], None] | None = None,
        hold: Hold | None = None,
        chooses: bool = False,
    ) -> None:
        self._chooses, self._chosen = chooses, 0
        shared, own = np.random.default_rng(seed), np.random.default_rng(seed + 1)
        last = shared.normal(size=(vocabulary, vocabulary)) * sharpness
        before = shared.normal(size=(vocabulary, vocabulary)) * sharpness / 2
        last += own.normal(size=last.shape) * noise
        self._last: NDArray[np.float32] = last.astype(np.float32)
        beginning = np.zeros((1, vocabulary))  # the last row: what stands before a first token
        self._before: NDArray[np.float32] = np.vstack((before, beginning)).astype(np.float32)
        self._sequences: list[list[int]] = [[] for _ in range(sequences)]
        self._context = context
        self._delay = delay
        self.hold = hold
        self._cancelled = threading.Event()
        self._in_use = threading.Lock()
        self.calls: list[int] = []

    @property
    def vocabulary_size(self) -> int:
        """Return the number of token ids."""
        return len(self._last)

    @property
    def context_size(self) -> int:
        """Return how many tokens one sequence can hold."""
        return self._context

    @property
    def max_sequences(self) -> int:
        """Return how many sequences there are."""
        return len(self._sequences)

    @property
    def busy_s(self) -> float:
        """Return a time that grows by one millisecond with every call, and by what calls were held."""
        return len(self.calls) * 1e-3 + (0.0 if self.hold is None else self.hold.seconds)

    def length(self, sequence: int = 0) -> int:
        """Return how many tokens a sequence holds."""
        return len(self._sequences[sequence])

    def tokens(self, sequence: int = 0) -> list[int]:
        """Return what a sequence holds."""
        return list(self._sequences[sequence])

    def logits_after(self, text: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits after a text, as every path through the model must give them."""
        logits: NDArray[np.float32] = self._last[text[-1]] + self._before[text[-2] if len(text) > 1 else -1]
        return logits

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        """Append tokens to sequence 0 and return the candidates after the last `logits` of them."""
        assert tokens
        assert 0 <= logits <= len(tokens)
        return self.rows(self._append([(token, 0) for token in tokens])[len(tokens) - logits :])

    def step(self, tokens: Sequence[int], sequences: Sequence[int]) -> Rows:
        """Append each token to its sequence and return the candidates after each."""
        return self.rows(self._append(list(zip(tokens, sequences, strict=True))))

    def choose(self, count: int | None) -> None:
        """Return only so many candidates from now on, if this model chooses."""
        self._chosen = count or 0

    def rows(self, logits: Logits) -> Rows:
        """Return what a call gives of its logits: all, or the likeliest from the last id on."""
        if not (self._chooses and self._chosen and len(logits)):
            return FullRows(logits)
        ids = np.sort((-logits).argsort(axis=1, kind="stable")[:, : self._chosen].astype(np.int32))[:, ::-1]
        return ChosenRows(ids, np.take_along_axis(logits, ids, axis=1))

    def _append(self, entries: list[tuple[int, int]]) -> Logits:
        assert self._in_use.acquire(blocking=False), "two threads use one model"
        try:
            if self._cancelled.is_set():
                self._cancelled.clear()
                raise Cancelled
            if max(self.length(sequence) for _, sequence in entries) + 1 > self._context:
                raise ContextFullError("the context is full")
            self.calls.append(len(entries))
            started = 0.0 if self.hold is None else time.perf_counter()
            if self._delay is not None:
                self._delay()
            before = []
            for token, sequence in entries:
                held = self._sequences[sequence]
                before.append(held[-1] if held else -1)
                held.append(token)
            rows = self._last[[token for token, _ in entries]] + self._before[before]
            if self.hold is not None:
                self.hold.rest(len(entries), time.perf_counter() - started)
            return rows
        finally:
            self._in_use.release()

    def truncate(self, length: int, sequence: int = 0) -> None:
        """Forget everything of a sequence from position `length` on."""
        assert 0 <= length <= self.length(sequence)
        del self._sequences[sequence][length:]

    def share(self, source: int, target: int, end: int) -> None:
        """Let `target` share what `source` holds up to position `end`."""
        start = self.length(target)
        assert start <= end <= self.length(source)
        assert self._sequences[target] == self._sequences[source][:start], (
            "sequences that differ cannot share"
        )
        self._sequences[target] += self._sequences[source][start:end]

    def cancel(self) -> None:
        """Stop the next call with `Cancelled`."""
        self._cancelled.set()

    def resume(self) -> None:
        """Take back a cancel."""
        self._cancelled.clear()
