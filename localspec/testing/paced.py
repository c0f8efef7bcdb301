"""Devices that are not here: a real model whose calls take the time they would take there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.decoding.model import LanguageModel, Rows


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


class PacedModel:
    """Let a real model compute, then hold each call until its cost has passed.

    Two of them behave like two graphics cards with memories of their own. Figures from them are "paced".
    """

    def __init__(self, model: LanguageModel, cost: Callable[[int], float], chunk: int = 512) -> None:
        self._model = model
        self._hold = Hold(cost, chunk)

    @property
    def vocabulary_size(self) -> int:
        """Return the number of token ids."""
        return self._model.vocabulary_size

    @property
    def context_size(self) -> int:
        """Return how many tokens one sequence can hold."""
        return self._model.context_size

    @property
    def max_sequences(self) -> int:
        """Return how many sequences there are."""
        return self._model.max_sequences

    @property
    def busy_s(self) -> float:
        """Return the seconds that calls have taken, the holding included."""
        return self._model.busy_s + self._hold.seconds

    def length(self, sequence: int = 0) -> int:
        """Return how many tokens a sequence holds."""
        return self._model.length(sequence)

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        """Append tokens to sequence 0 and return the logits after the last `logits` of them."""
        started = time.perf_counter()
        rows = self._model.evaluate(tokens, logits)
        self._hold.rest(len(tokens), time.perf_counter() - started)
        return rows

    def step(self, tokens: Sequence[int], sequences: Sequence[int]) -> Rows:
        """Append each token to its sequence and return one row for each."""
        started = time.perf_counter()
        rows = self._model.step(tokens, sequences)
        self._hold.rest(len(tokens), time.perf_counter() - started)
        return rows

    def truncate(self, length: int, sequence: int = 0) -> None:
        """Forget everything of a sequence from position `length` on."""
        self._model.truncate(length, sequence)

    def share(self, source: int, target: int, end: int) -> None:
        """Let `target` share what `source` holds up to position `end`."""
        self._model.share(source, target, end)

    def cancel(self) -> None:
        """Stop the running or the next call."""
        self._model.cancel()

    def resume(self) -> None:
        """Take back a cancel."""
        self._model.resume()
