"""Predict the effect of any settings on traced answers, in virtual time; pure and reproducible.

The engine's own drafters decide everything, on a clock that only calls of the models and Python move. A
replayed model implements the port `Proposer`, and the draft worker's ports end in virtual time. The target
has no separate decoding loop here: it has to pause within a verification while the draft model works.
So it is a generator, and shares with the loop how a round ends.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, partial

from localspec.decoding.drafters.draft_worker import DraftReply, DraftWorker
from localspec.decoding.drafters.drafter import Drafter, DraftState
from localspec.decoding.drafters.prompt_lookup import PromptLookup, longest_draft
from localspec.decoding.drafters.speculation_cache import SpeculationCache
from localspec.decoding.drafters.ssd import AheadDrafter
from localspec.decoding.engine import Drafters
from localspec.decoding.measurements import Costs, Trace
from localspec.decoding.policy import SpeculationPolicy
from localspec.decoding.prefixes import common_prefix
from localspec.decoding.rounds import RoundTimes, close_round, emitted_tokens
from localspec.decoding.tally import Tally, total
from localspec.errors import Cancelled
from localspec.tuning.simulator.call_times import CallTimes, Timing
from localspec.tuning.simulator.replay import Replay, Script, Shape, replays
from localspec.tuning.simulator.replayed_model import ReplayedModel, ReplayedProposer
from localspec.tuning.simulator.virtual_time import Acting, VirtualClock, VirtualInbox
from localspec.types.drafts import Draft, DraftOrigin, VerifyOutcome
from localspec.types.events import Summary
from localspec.types.request import EngineSettings

SCRIPTS_KEPT = 128


class Simulator:
    """Answers of one kind, on one machine, under any settings."""

    def __init__(self, trace: Trace, costs: Costs, seed: int = 0) -> None:
        """Take what the models think and what calls cost; `seed` fixes which drawn drafts are accepted."""
        self._sampling = trace.sampling
        self._replays = replays(trace, seed)
        self._costs = costs
        self._script = lru_cache(SCRIPTS_KEPT)(lambda number, shape: self._replays[number].script(shape))

    def __call__(self, settings: EngineSettings, segments: Iterable[int] | None = None) -> Summary:
        """Return the sums of decoding answers one after another; by default all of them."""
        engine = _SimulatedEngine(settings, Timing(self._costs, settings.mode))
        shape = Shape.of(self._sampling, settings)
        for number in range(len(self._replays)) if segments is None else segments:
            script = self._script(number, shape) if settings.mode in {"sd", "ssd"} else None
            engine.answer(self._replays[number], script)
        return total(engine.summaries)

    def rate(self, settings: EngineSettings) -> float:
        """Return the tokens per second, without the first token of each answer and the time until then."""
        return self.rate_of(self(settings))

    def rate_of(self, summary: Summary) -> float:
        """Return the same of what all answers did."""
        return (summary.tokens - len(self._replays)) / summary.decode_s


class _SimulatedEngine:
    """What outlives answers, as in the real engine, and what they did so far."""

    def __init__(self, settings: EngineSettings, timing: Timing) -> None:
        self.settings = settings
        self.summaries: list[Summary] = []
        self._timing = timing
        self._latency = timing.latency_model()
        self._clock = VirtualClock()
        self._model = ReplayedModel(self._clock, settings.fan_out_budget + 1)
        self._state = DraftState(self._model, self._clock)
        self._drafters = Drafters(self._state, partial(_ahead, self._clock, self._model))

    def answer(self, replay: Replay, script: Script | None) -> None:
        """Decode one more answer."""
        times = self._timing.at(len(replay.prompt) + len(replay.tokens) // 2)
        if script is not None:
            self._model.begin(replay, script, times)
        deterministic = script is None or script.deterministic
        proposer = ReplayedProposer(self._model, deterministic=deterministic)
        policy = self._drafters.policy(self._latency, self.settings, deterministic=deterministic)
        drafter = self._drafters.drafter(self.settings, policy, proposer)
        target_side = self._rounds(replay, times, policy, drafter, proposer)
        if isinstance(drafter, AheadDrafter):
            self._clock.follow(target_side)
            with suppress(Cancelled):
                drafter.worker.work(replay.prompt)
        else:
            for due in target_side:
                self._clock.now = due

    def _rounds(
        self,
        replay: Replay,
        times: CallTimes,
        policy: SpeculationPolicy,
        drafter: Drafter,
        proposer: ReplayedProposer,
    ) -> Acting:
        """Be the target's side of one answer; yields as `Acting` says."""
        tokens = replay.tokens
        clock = self._clock
        longest = longest_draft(self.settings)
        tally = Tally(len(replay.prompt), self.settings.mode)
        began = clock.now
        drafter.begin(replay.prompt)
        draft = Draft()
        done = 0
        took = RoundTimes(times.verify(len(replay.prompt)), 0.0, 0.0, times.round_s)
        while True:
            yield clock.now + took.verify_s + took.python_s
            outcome = _verdict(draft, tokens, done)
            emitted = emitted_tokens(draft, outcome, len(tokens) - done)
            closed = close_round(draft, outcome, emitted, took, policy if done else None)
            tally.add(closed.stats, len(closed.tokens), clock.now - began)
            done += len(closed.tokens)
            if done == len(tokens):
                break
            busy_s = drafter.busy_s
            wait_s = drafter.wait_s
            drafter.commit(outcome)
            limit = longest if replay.segment.ended else min(longest, len(tokens) - done - 1)
            draft = yield from self._drafted(drafter, limit, proposer)
            took = RoundTimes(
                times.verify(len(draft.tokens) + 1) * times.unsteady(done),
                drafter.busy_s - busy_s,
                drafter.wait_s - wait_s,
                times.round_s + times.token_s * self._one_by_one(draft),
            )
        self.summaries.append(tally.summary())

    def _one_by_one(self, draft: Draft) -> int:
        """Return the number of draft tokens with Python time each; copies next to a model come as a whole."""
        if self.settings.mode != "ngram" and draft.origin is DraftOrigin.NGRAM:
            return 0
        return min(len(draft.tokens), self.settings.draft_length)

    def _drafted(
        self, drafter: Drafter, limit: int, proposer: ReplayedProposer
    ) -> Generator[float, DraftReply | None, Draft]:
        """Return the next draft, waiting for it if need be."""
        if not isinstance(drafter, AheadDrafter):
            draft = drafter.draft(limit)
            state = self._state
            sent = len(draft.tokens)
            if self.settings.mode == "sd" and sent < len(state.proposals):
                state.proposals[sent] = proposer.unjudged(state.proposals[sent:], len(state.text) + sent)
            return draft
        found = drafter.look_up(limit)
        if found is None:
            reply = yield math.inf
            assert reply is not None
            found = drafter.take(reply)
        return found


def _ahead(
    clock: VirtualClock,
    model: ReplayedModel,
    cache: SpeculationCache,
    draft_length: int,
    lookup: PromptLookup | None,
) -> AheadDrafter:
    """Return a drafter whose worker has no thread: `_SimulatedEngine.answer` lets it work."""
    times = model.times
    worker = DraftWorker(
        cache,
        VirtualInbox(clock, times.handoff_s),
        reply=lambda reply: clock.reply(reply, times.handoff_s),
        before_round=lambda: clock.spend(times.drafting_s),
    )
    return AheadDrafter(worker, draft_length, lookup)


def _verdict(draft: Draft, tokens: Sequence[int], done: int) -> VerifyOutcome:
    """Return the target's verdict on a draft behind the first `done` tokens of its answer.

    Where the draft reaches the end of the answer, the bonus token is its last one again, and is cut off.
    """
    accepted = common_prefix(draft.tokens, tokens[done : done + len(draft.tokens)])
    return VerifyOutcome(accepted, tokens[min(done + accepted, len(tokens) - 1)])
