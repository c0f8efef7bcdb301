"""Predict what any settings would do on traced answers, in virtual time; pure and repeatable.

The engine's own code decides everything, on a clock that only calls of the models and Python move. Two
models that work at once are one thread here: whenever the draft model's time passes a moment at which the
caller acts, the caller acts first, and sees of the running call as little as it would.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import fields
from functools import lru_cache
from itertools import zip_longest
from typing import Any

from localspec.decoding.drafters.combined import PromptLookupStats, longest_draft, repetitions_of
from localspec.decoding.drafters.draft_state import DraftState
from localspec.decoding.drafters.drafter import Drafter, NoDrafter, PromptLookupDrafter
from localspec.decoding.drafters.prompt_lookup import SuffixIndex
from localspec.decoding.drafters.ssd import DraftReply, SSDDrafter
from localspec.decoding.measurements import Costs, Trace
from localspec.decoding.policy import AcceptanceCalibrations, SpeculationPolicy
from localspec.decoding.tally import Tally
from localspec.tuning.simulator.call_times import CallTimes, Timing
from localspec.tuning.simulator.drafters import ReplayedAhead, ReplayedCombined, ReplayedDrafter
from localspec.tuning.simulator.models import Acting, ReplayedModel, ReplayedProposer, VirtualClock
from localspec.tuning.simulator.replay import Replay, Script, Shape, replays
from localspec.types import Draft, DraftOrigin, EngineSettings, RoundStats, Summary, VerifyOutcome


class Caller:
    """The target's side of one answer."""

    def __init__(
        self,
        replay: Replay,
        settings: EngineSettings,
        pace: SpeculationPolicy,
        times: CallTimes,
        timeline: VirtualClock,
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

    def _drafted(self, drafter: Drafter, done: int) -> Generator[float, DraftReply | None, Draft]:
        """Return the next draft, waiting for it if need be."""
        limit = self._longest
        if not self._replay.segment.ended:
            limit = min(limit, len(self._replay.tokens) - done - 1)
        if not isinstance(drafter, SSDDrafter):
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


SCRIPTS_KEPT = 128


class Simulator:
    """Answers of one kind, on one machine, under any settings."""

    def __init__(self, trace: Trace, costs: Costs, seed: int = 0) -> None:
        """Take what the models think and what calls cost; `seed` fixes which drawn drafts are accepted."""
        self._sampling = trace.sampling
        self._replays = replays(trace, seed)
        self._costs = costs
        self._engine: _Engine | None = None
        self._script = lru_cache(SCRIPTS_KEPT)(self._new_script)

    def __call__(self, settings: EngineSettings, segments: Sequence[int] | None = None) -> Summary:
        """Return what decoding the answers one after another would do, added up; by default all of them.

        After the same settings with fewer answers it goes on from there.
        """
        numbers = list(range(len(self._replays)) if segments is None else segments)
        engine = self._engine
        if engine is None or engine.settings != settings or numbers[: len(engine.done)] != engine.done:
            engine = _Engine(settings, Timing(self._costs, settings.mode))
        self._engine = None
        shape = Shape.of(self._sampling, settings)
        for number in numbers[len(engine.done) :]:
            script = self._script(number, shape) if settings.mode in {"sd", "ssd"} else None
            engine.answer(number, self._replays[number], script)
        self._engine = engine
        return _total(engine.summaries)

    def rate(self, settings: EngineSettings, segments: Sequence[int] | None = None) -> float:
        """Return the tokens per second, without the first token of each answer and the time until then."""
        answers = len(self._replays if segments is None else segments)
        summary = self(settings, segments)
        return (summary.tokens - answers) / summary.decode_s

    def _new_script(self, number: int, shape: Shape) -> Script:
        return self._replays[number].script(shape)


class _Engine:
    """What outlives answers, as in the real engine, and what they did so far."""

    def __init__(self, settings: EngineSettings, timing: Timing) -> None:
        self.settings = settings
        self.done: list[int] = []
        self.summaries: list[Summary] = []
        self._timing = timing
        self._experience = timing.experience()
        self._calibrations = AcceptanceCalibrations()
        self._learned = PromptLookupStats()
        self._index = SuffixIndex()
        self._timeline = VirtualClock()
        self._model = ReplayedModel(self._timeline, settings.fan_out_budget + 1)
        self._trunk = DraftState(self._model, self._timeline)

    def answer(self, number: int, replay: Replay, script: Script | None) -> None:
        """Decode one more answer."""
        settings, known, experience = self.settings, self._calibrations, self._experience
        deterministic = script is None or script.judged is script.guesses
        pace = SpeculationPolicy(
            experience, known.chosen if deterministic else known.drawn, settings, deterministic
        )
        if settings.mode == "ngram":
            pace = SpeculationPolicy(experience, known.repeated, settings, deterministic=True)
        times = self._timing.at(len(replay.prompt) + len(replay.tokens) // 2)
        caller = Caller(replay, settings, pace, times, self._timeline)
        if script is None:
            caller.alone(PromptLookupDrafter(pace, self._index) if settings.mode == "ngram" else NoDrafter())
        else:
            self._model.begin(replay, script, times)
            proposer = ReplayedProposer(replay, script)
            repeats = repetitions_of(settings, self._index, pace, self._learned)
            if settings.mode == "ssd":
                ahead = ReplayedAhead(self._trunk, pace, proposer, settings, repeats)
                ahead.play(replay.prompt, caller.rounds(ahead), self._timeline, times.handoff_s)
            elif repeats is not None:
                length = settings.draft_length
                caller.alone(ReplayedCombined(self._trunk, pace, proposer, repeats, length))
            else:
                caller.alone(ReplayedDrafter(self._trunk, pace, proposer))
        self.done.append(number)
        self.summaries.append(caller.summary())


def _total(summaries: Sequence[Summary]) -> Summary:
    """Return the sums over answers, that of the seconds until the first token too."""
    total: dict[str, Any] = {}
    for field in fields(Summary):
        values = [getattr(summary, field.name) for summary in summaries]
        total[field.name] = _columns(values) if field.name.endswith("_at") else sum(values)
    return Summary(**total)


def _columns(counts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))
