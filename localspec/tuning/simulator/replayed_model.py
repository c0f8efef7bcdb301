"""A draft model that is replayed from a traced answer, and what it proposes there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localspec.decoding.drafters.proposer import Histories, Proposal
from localspec.decoding.model import LanguageModel
from localspec.tuning.simulator.call_times import CallTimes
from localspec.tuning.simulator.replay import Replay, Script
from localspec.tuning.simulator.virtual_time import VirtualClock
from localspec.types.candidates import FullRows, Rows

_ANY_TOKEN = 2**31
_NO_ROWS = FullRows(np.empty((0, 0), np.float32))


class ReplayedModel(LanguageModel):
    """A draft model that only knows positions in a traced answer, and whose calls take virtual time.

    It has no logits: what it proposes at a place its script says, which a `ReplayedProposer` reads.
    """

    vocabulary_size = context_size = _ANY_TOKEN
    max_sequences = 1
    busy_s = 0.0

    def __init__(self, clock: VirtualClock, sequences: int) -> None:
        self.clock = clock
        self._lengths = [0] * sequences
        self._right = [0] * sequences  # per sequence: the number of leading tokens equal to the answer
        self._text: list[int] = []
        self._prompt = 0
        self.max_sequences = sequences

    def begin(self, replay: Replay, script: Script, times: CallTimes) -> None:
        """Read another answer; `DraftState.begin` must follow."""
        self._prompt = len(replay.prompt)
        self._text = replay.prompt + replay.tokens
        self.script = script
        self.times = times

    def length(self, sequence: int = 0) -> int:
        """Return the number of tokens in a sequence."""
        return self._lengths[sequence]

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        """Append tokens to sequence 0; there are no rows."""
        self.read(tokens)
        return _NO_ROWS

    def step(self, tokens: Sequence[int], sequences: Sequence[int]) -> Rows:
        """Append each token to its sequence; there are no rows."""
        self.read_beside(tokens, sequences)
        return _NO_ROWS

    def read(self, tokens: Sequence[int]) -> list[int]:
        """Append tokens to sequence 0 while the target waits, and return the place after each."""
        self._spend(self.times.waited_step(len(tokens)), self.times.drafting_s)
        return [self.append(token) for token in tokens]

    def read_beside(self, tokens: Sequence[int], sequences: Sequence[int]) -> list[int]:
        """Append each token to its sequence while the target works, and return the place after each."""
        self._spend(self.times.step(len(tokens)), self.times.around_step(len(tokens)))
        return list(map(self.append, tokens, sequences))

    def _spend(self, native_s: float, python_s: float) -> None:
        self.clock.spend(native_s + python_s)
        self.busy_s += native_s

    def append(self, token: int, sequence: int = 0) -> int:
        """Append a token, and return the place after it.

        Its complement says that the draft model has led itself astray.
        """
        position = self._lengths[sequence]
        self._lengths[sequence] = position + 1
        place = position + 1 - self._prompt
        if self._right[sequence] < position:
            return ~place
        if position < len(self._text) and token == self._text[position]:
            self._right[sequence] += 1
            return place
        own = self.script.judged
        is_own = place > len(own) or token == own[place - 1].token
        return ~place if is_own else place  # a token that surprises it is like the right one there

    def unjudged(self, position: int) -> Proposal:
        """Return the proposal at a position of the text if it is not verified."""
        known = self.script.unjudged
        return known[min(position - self._prompt, len(known) - 1)]

    def rewrite(self, tokens: Sequence[int], start: int) -> None:
        """Set the tokens of sequence 0 from `start` on, up to its length."""
        held = self._lengths[0] - start
        if held > 0:
            self.truncate(start)
            for token in tokens[:held]:
                self.append(token)

    def truncate(self, length: int, sequence: int = 0) -> None:
        """Forget everything of a sequence from position `length` on."""
        self._lengths[sequence] = length
        self._right[sequence] = min(self._right[sequence], length)

    def share(self, source: int, target: int, end: int) -> None:
        """Share the cells of `source` up to position `end` with `target`."""
        self._lengths[target] = end
        self._right[target] = min(self._right[source], end)

    def cancel(self) -> None:
        """Do nothing: when the target's side has finished, the clock itself ends the call."""

    def resume(self) -> None:
        """Do nothing."""


class ReplayedProposer:
    """Proposes what the script of its own model says at the places that the model has come to.

    Behind the answer's end that is what it says at the last place.
    """

    needs_history = leaps = False

    def __init__(self, model: ReplayedModel, *, deterministic: bool) -> None:
        self.deterministic = deterministic
        self._model = model

    def after(
        self, model: LanguageModel, tokens: Sequence[int], count: int = 1, histories: Histories | None = None
    ) -> list[Proposal]:
        """Append tokens to sequence 0 and return a proposal after each of the last `count` of them."""
        places = self._model.read(tokens)
        return list(map(self._model.script.at, places[len(tokens) - count :]))

    def step(
        self,
        model: LanguageModel,
        tokens: Sequence[int],
        sequences: Sequence[int],
        histories: Histories | None = None,
    ) -> list[Proposal]:
        """Append `tokens[i]` to `sequences[i]` and return a proposal after each."""
        return list(map(self._model.script.at, self._model.read_beside(tokens, sequences)))

    def forced(self, text: Sequence[int]) -> list[Proposal]:
        """Return none: traced answers follow no grammar."""
        return []

    def unjudged(self, proposals: Sequence[Proposal], start: int) -> Proposal:
        """Return the first proposal, drawn again: what the target emits there does not depend on it."""
        if self.deterministic:
            return proposals[0]
        drawn = self._model.unjudged(start)
        self._model.rewrite([drawn.token, *(proposal.token for proposal in proposals[1:])], start)
        return drawn
