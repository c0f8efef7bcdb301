"""A draft model that only knows places in a traced answer, on a clock of its own."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import cast

from localspec.decoding.drafters.proposer import Proposal, Proposer
from localspec.decoding.drafters.ssd import DraftReply
from localspec.decoding.model import Rows
from localspec.errors import Cancelled
from localspec.tuning.simulator.call_times import CallTimes
from localspec.tuning.simulator.replay import Replay, Script

Acting = Generator[float, DraftReply | None, None]
"""A caller: it yields when it will act next, infinity if that depends on a reply, which it is then sent."""

_ANY_TOKEN = 2**31


class VirtualClock:
    """The clock, and the caller that acts at its own times while the draft model works."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due = math.inf
        self._caller: Acting | None = None
        self._reply: DraftReply | None = None

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def follow(self, caller: Acting) -> None:
        """Let a caller act from now on."""
        self._caller, self._due = caller, self.now
        self._act()

    def spend(self, seconds: float) -> None:
        """Let time pass; raises `Cancelled` when the caller has finished meanwhile."""
        end = self.now + seconds
        while self._due <= end:
            self._act()
        self.now = end

    def wait(self) -> None:
        """Let time pass until the caller acts."""
        self._act()

    def reply(self, reply: DraftReply, delay_s: float) -> None:
        """Answer the caller, which notices after a delay."""
        self._reply, self._due = reply, self.now + delay_s

    def _act(self) -> None:
        assert self._caller is not None
        assert self._due < math.inf, "the caller and the drafter wait for each other"
        self.now = max(self.now, self._due)
        reply, self._reply = self._reply, None
        try:
            self._due = self._caller.send(reply)
        except StopIteration:
            self._due, self._caller = math.inf, None
            raise Cancelled from None


class ReplayedModel:
    """A model whose rows are the places in an answer that they belong to, and whose calls take their time."""

    vocabulary_size = _ANY_TOKEN
    context_size = _ANY_TOKEN

    def __init__(self, timeline: VirtualClock, sequences: int) -> None:
        self._timeline = timeline
        self._lengths = [0] * sequences
        self._right = [0] * sequences  # per sequence: so many leading tokens are those of the answer
        self._text: list[int] = []
        self._prompt = 0
        self.max_sequences = sequences
        self.busy_s = 0.0

    def begin(self, replay: Replay, script: Script, times: CallTimes) -> None:
        """Read another answer; `Trunk.begin` must follow."""
        self._prompt = len(replay.prompt)
        self._text, self._own = replay.prompt + replay.tokens, script.judged
        self._times = times

    def length(self, sequence: int = 0) -> int:
        """Return how many tokens a sequence holds."""
        return self._lengths[sequence]

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        """Append tokens to the trunk and return the places after the last `logits` of them."""
        self._spend(self._times.waited_step(len(tokens)), self._times.drafting_s)
        places = [self.follow(token) for token in tokens]
        return cast("Rows", places[len(tokens) - logits :])

    def step(self, tokens: Sequence[int], sequences: Sequence[int]) -> Rows:
        """Append each token to its sequence and return the places after them."""
        self.spend(len(tokens))
        return cast("Rows", list(map(self.follow, tokens, sequences)))

    def follow(self, token: int, sequence: int = 0) -> int:
        """Append a token, and return the place after it, or its complement: see `after`."""
        position = self._lengths[sequence]
        self._lengths[sequence] = position + 1
        if self._right[sequence] < position:
            return ~(position + 1 - self._prompt)
        row, is_right = self._row(token, position)
        self._right[sequence] += is_right
        return row

    def after(self, token: int, position: int) -> tuple[int, bool]:
        """Return the place after a token that would follow the trunk's first ones, and whether it is right.

        The place's complement says that the draft model has led itself astray.
        """
        if self._right[0] < position:
            return ~(position + 1 - self._prompt), False
        return self._row(token, position)

    def _row(self, token: int, position: int) -> tuple[int, bool]:
        place = position + 1 - self._prompt
        if position < len(self._text) and token == self._text[position]:
            return place, True
        is_own = place > len(self._own) or token == self._own[place - 1].token
        return ~place if is_own else place, False  # a token that surprises it is like the right one there

    def place(self, position: int) -> int:
        """Return the place in the answer of a position in the text."""
        return position - self._prompt

    def hold(self, tokens: Sequence[int], sequence: int, start: int) -> None:
        """Let a sequence hold the trunk's first tokens and these."""
        self.share(0, sequence, start)
        for token in tokens:
            self.follow(token, sequence)

    def rewrite(self, tokens: Sequence[int], start: int) -> None:
        """Let these be the tokens that the trunk holds from `start` on, as far as it holds any."""
        held = self._lengths[0] - start
        if held > 0:
            self.truncate(start)
            for token in tokens[:held]:
                self.follow(token)

    def open_round(self) -> None:
        """Let the time pass that following a verdict takes."""
        self._timeline.spend(self._times.opening_s())

    def spend(self, size: int) -> None:
        """Let the time of a call pass that nobody waits for."""
        self._spend(self._times.step(size), self._times.around_step(size))

    def _spend(self, native_s: float, python_s: float) -> None:
        self._timeline.spend(native_s + python_s)
        self.busy_s += native_s

    def truncate(self, length: int, sequence: int = 0) -> None:
        """Forget everything of a sequence from position `length` on."""
        self._lengths[sequence] = length
        self._right[sequence] = min(self._right[sequence], length)

    def share(self, source: int, target: int, end: int) -> None:
        """Let `target` share what `source` holds up to position `end`."""
        self._lengths[target] = end
        self._right[target] = min(self._right[source], end)

    def cancel(self) -> None:
        """Do nothing: a finished caller ends the call itself."""

    def resume(self) -> None:
        """Do nothing."""


class ReplayedProposer(Proposer):
    """Propose what the script says for each place; behind the answer's end, what it says for the last."""

    def __init__(self, replay: Replay, script: Script) -> None:
        self._tokens = replay.tokens
        self._paths: dict[tuple[int, bool], list[Proposal]] = {}
        self._judged, self._unjudged, self._astray = script.judged, script.guesses, script.astray
        self.deterministic = script.judged is script.guesses
        self._last = len(script.judged) - 1

    @property
    def needs_history(self) -> bool:
        """Tell that the script knows it all."""
        return False

    def propose(self, rows: Rows, histories: Sequence[Sequence[int]] | None = None) -> list[Proposal]:
        """Return the proposal for each place."""
        return [self.at(row) for row in rows]

    def at(self, row: int) -> Proposal:
        """Return the proposal at a place, or where its complement says that the model is astray."""
        return self._judged[min(row, self._last)] if row >= 0 else self._astray[min(~row, self._last)]

    def path(self, row: int, length: int, *, is_right: bool) -> Sequence[Proposal]:
        """Return the proposals from a row on, after a token that was right or not."""
        known = self._paths.get((row, is_right))
        if known is None:
            known = self._paths[row, is_right] = self._walked(row, length, is_right)
        return known

    def _walked(self, row: int, length: int, is_right: bool) -> list[Proposal]:
        path = [self.at(row)]
        while len(path) < length:
            place = row if row >= 0 else ~row
            is_right = is_right and place <= self._last and path[-1].token == self._tokens[place]
            row = place + 1 if is_right else ~(place + 1)
            path.append(self.at(row))
        return path

    def guess(self, place: int) -> Proposal:
        """Return a proposal that nobody will judge, only compare with the bonus token."""
        return self._unjudged[min(place, self._last)]
