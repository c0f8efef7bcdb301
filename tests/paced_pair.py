"""A pair of real models on two GPUs that are not here, behind the interface of open models."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.model import LanguageModel
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.contexts import Contexts
from localspec.inference.runtime import Runtime
from localspec.llama.context import Context
from localspec.llama.library import Native
from localspec.llama.model import Model
from localspec.types.candidates import FullRows, Rows
from localspec.types.models import ModelOptions
from localspec.types.saved_states import SavedState
from tests.fake_model import Hold, Pacing


def open_paced(
    target: ModelOptions,
    draft: ModelOptions,
    verify: Pacing | None,
    step: Pacing | None,
    *,
    max_fan_out: int = 24,
    vocabulary: int | None = None,
) -> Runtime:
    """Open two models in this process, whose calls take as long as their pacing says, or longer.

    Each computes on one core: with two, neither disturbs the other. Figures from them are "paced". With a
    larger `vocabulary` their rows are as wide as if they had one, with tokens that are never likely.
    """

    def contexts(of: Model, beside: Model | None, plan: OpenPlan) -> Contexts:
        return _PacedContexts(of, beside, plan, (verify, step), vocabulary)

    one, other = replace(target, threads=1), replace(draft, threads=1)
    return Runtime.open(OpenPlan(one, other, max_fan_out=max_fan_out), contexts=contexts)


class _PacedContext(Context):
    """A context whose calls are held."""

    def __init__(
        self,
        model: Model,
        options: ModelOptions,
        pacing: Pacing,
        sequences: int,
        vocabulary: int | None,
    ) -> None:
        self._hold = Hold(pacing)
        super().__init__(model, options, sequences=sequences)
        self._own_vocabulary, self._wide = self.vocabulary_size, None
        if vocabulary is not None:
            self.vocabulary_size = vocabulary
            random = np.random.default_rng(0)
            self._wide = random.normal(-60.0, 1.0, (self.max_rows, vocabulary)).astype(np.float32)

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        """Append tokens to the trunk and return the logits after the last `logits` of them."""
        before = self.busy_s
        rows = self._widened(super().evaluate(self._known(tokens), logits))
        self._rest(len(tokens), before)
        return rows

    def step(self, tokens: Sequence[int], sequences: Sequence[int]) -> Rows:
        """Append `tokens[i]` to `sequences[i]` in one pass and return one row of logits for each."""
        before = self.busy_s
        rows = self._widened(super().step(self._known(tokens), sequences))
        self._rest(len(tokens), before)
        return rows

    def _known(self, tokens: Sequence[int]) -> Sequence[int]:
        """Replace tokens that only the larger vocabulary has: costs are measured on any."""
        return tokens if self._wide is None else [token % self._own_vocabulary for token in tokens]

    def _widened(self, rows: Rows) -> Rows:
        """Return whole rows with as many entries more as the vocabulary should have."""
        if self._wide is None or not isinstance(rows, FullRows):
            return rows
        started = time.perf_counter()
        self._wide[: len(rows), : self._own_vocabulary] = rows.logits
        self.busy_s += time.perf_counter() - started
        return FullRows(self._wide[: len(rows)])

    def _view(self, address: int | None, kind: type[Native]) -> NDArray[Any]:
        wide, self.vocabulary_size = self.vocabulary_size, self._own_vocabulary
        try:
            return super()._view(address, kind)
        finally:
            self.vocabulary_size = wide

    def _rest(self, tokens: int, before: float) -> None:
        """Hold a call, and count that as time that it took."""
        held = self._hold.seconds
        self._hold.rest(tokens, self.busy_s - before)
        self.busy_s += self._hold.seconds - held


class _PacedContexts(Contexts):
    """Contexts that are held, but for one without pacing."""

    def __init__(
        self,
        target: Model,
        draft: Model | None,
        plan: OpenPlan,
        pacings: tuple[Pacing | None, Pacing | None],
        vocabulary: int | None,
    ) -> None:
        self._verify, self._step = pacings
        self._vocabulary = vocabulary
        super().__init__(target, draft, plan)

    def _open(self, model: Model, options: ModelOptions, sequences: int = 1) -> Context:
        pacing = self._verify if sequences == 1 else self._step  # the draft model's branches are sequences
        if pacing is None:
            return Context(model, options, sequences=sequences)
        return _PacedContext(model, options, pacing, sequences, self._vocabulary)


class PacedModel:
    """Let a real model compute, then hold each call until its cost has passed.

    Two of them behave like two GPUs with memories of their own. Figures from them are "paced".
    """

    def __init__(self, model: LanguageModel, cost: Callable[[int], float], chunk: int = 512) -> None:
        self._model = model
        self.name = model.name
        self._hold = Hold(cost, chunk)
        self.max_draft, self.rereads, self.is_head = model.max_draft, model.rereads, model.is_head

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

    def choose(self, count: int | None) -> None:
        """Return only the likeliest tokens of each row, or all logits."""
        self._model.choose(count)

    def follow(self, *, on: bool, kept: int = 0) -> None:
        """Let a head take its target's hidden states, or no longer."""
        self._model.follow(on=on, kept=kept)

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

    def rewindable(self, length: int) -> int:
        """Return to how many of the first `length` tokens `truncate` can go back."""
        return self._model.rewindable(length)

    def mark(self) -> None:
        """Let `truncate` come back to here."""
        self._model.mark()

    def checkpoint(self, *, pinned: bool = False) -> None:
        """Let `truncate` come back to here for long."""
        self._model.checkpoint(pinned=pinned)

    def branchable(self, end: int) -> bool:
        """Return whether a branch can share sequence 0 up to position `end`."""
        return self._model.branchable(end)

    def truncate(self, length: int, sequence: int = 0) -> None:
        """Forget everything of a sequence from position `length` on."""
        self._model.truncate(length, sequence)

    def share(self, source: int, target: int, end: int) -> None:
        """Let `target` share what `source` holds up to position `end`."""
        self._model.share(source, target, end)

    def save(self, room: Callable[[int], bool]) -> SavedState | None:
        """Return a copy of sequence 0."""
        return self._model.save(room)

    def restore(self, saved: SavedState, text: Sequence[int]) -> None:
        """Restore sequence 0 from a copy."""
        self._model.restore(saved, text)

    def cancel(self) -> None:
        """Stop the running or the next call."""
        self._model.cancel()

    def resume(self) -> None:
        """Take back a cancel."""
        self._model.resume()
