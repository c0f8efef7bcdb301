"""The decoding loop on a traced answer: draft, verify against the trace, commit."""

from __future__ import annotations

import math
from collections.abc import Generator

from localspec.decoding.drafters.combined import longest_draft
from localspec.decoding.drafters.drafter import Drafter
from localspec.decoding.drafters.ssd import AheadDrafter, Reply
from localspec.decoding.policy import Pace
from localspec.decoding.tally import Tally
from localspec.tuning.simulator.call_times import CallTimes
from localspec.tuning.simulator.models import Acting, Timeline
from localspec.tuning.simulator.replay import Replay
from localspec.types import Draft, DraftOrigin, EngineSettings, RoundStats, Summary, VerifyOutcome


class Caller:
    """The target's side of one answer."""

    def __init__(
        self, replay: Replay, settings: EngineSettings, pace: Pace, times: CallTimes, timeline: Timeline
    ) -> None:
        self._replay = replay
        self._settings = settings
        self._longest = longest_draft(settings)
        self._pace = pace
        self._times = times
        self._timeline = timeline
        self._tally = Tally(len(replay.prompt), settings.mode)

    def summary(self) -> Summary:
        """Return what the answer did and cost."""
        return self._tally.summary()

    def alone(self, drafter: Drafter) -> None:
        """Decode with a drafter that works while the target waits."""
        for due in self.rounds(drafter):
            self._timeline.now = due

    def rounds(self, drafter: Drafter) -> Acting:
        """Decode; yields as `Acting` says."""
        tokens, times, clock = self._replay.tokens, self._times, self._timeline
        began = clock.now
        drafter.begin(self._replay.prompt)
        read_s = times.verify(len(self._replay.prompt))
        yield began + read_s + times.round_s
        stats = RoundStats(0, 0, DraftOrigin.NONE, read_s, 0.0, 0.0, times.round_s)
        self._tally.add(stats, 1, clock.now - began)
        outcome, done = VerifyOutcome(0, tokens[0]), 1
        while done < len(tokens):
            busy_s, wait_s = drafter.busy_s, drafter.wait_s
            drafter.commit(outcome)
            draft = yield from self._drafted(drafter, done)
            drafted = len(draft.tokens)
            verify_s = times.verify(drafted + 1) * times.unsteady(done)
            python_s = times.round_s + times.token_s * self._one_by_one(draft)
            yield clock.now + verify_s + python_s
            accepted = _agreeing(draft.tokens, tokens, done)
            emitted = min(accepted + 1, len(tokens) - done)
            draft_s, waited_s = drafter.busy_s - busy_s, drafter.wait_s - wait_s
            times_s = (verify_s, draft_s, waited_s, python_s)
            stats = RoundStats(drafted, accepted, draft.origin, *times_s, copied=draft.copied)
            self._pace.observe(stats, emitted)
            self._tally.add(stats, emitted, clock.now - began)
            done += emitted
            outcome = VerifyOutcome(accepted, tokens[done - 1])

    def _one_by_one(self, draft: Draft) -> int:
        """Return how many tokens of a draft took Python each: repetitions beside a model come as a whole."""
        if self._settings.mode != "ngram" and draft.origin is DraftOrigin.NGRAM:
            return 0
        return min(len(draft.tokens), self._settings.draft_length)

    def _drafted(self, drafter: Drafter, done: int) -> Generator[float, Reply | None, Draft]:
        """Return the next draft, waiting for it if need be."""
        limit = self._longest
        if not self._replay.segment.ended:
            limit = min(limit, len(self._replay.tokens) - done - 1)
        if not isinstance(drafter, AheadDrafter):
            return drafter.draft(limit)
        draft = drafter.look_up(limit)
        if draft is None:
            reply = yield math.inf
            assert reply is not None
            draft = drafter.take(reply)
        return draft


def _agreeing(draft: tuple[int, ...], tokens: list[int], start: int) -> int:
    """Return how many tokens of a draft are those of the text from `start` on."""
    for accepted, token in enumerate(draft):
        if start + accepted >= len(tokens) or token != tokens[start + accepted]:
            return accepted
    return len(draft)
