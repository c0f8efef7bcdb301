"""Predict what any settings would do on traced answers, in virtual time; pure and repeatable.

The engine's own code decides everything, on a clock that only calls of the models and Python move. Two
models that work at once are one thread here: whenever the draft model's time passes a moment at which the
target's side acts, that side acts first, and sees of the running call as little as it would.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from queue import SimpleQueue
from typing import cast

from localspec.decoding.drafters.drafter import Drafter, DraftState, common_prefix
from localspec.decoding.drafters.prompt_lookup import longest_draft
from localspec.decoding.drafters.proposer import Proposal, Proposer
from localspec.decoding.drafters.ssd import CopiedTokens, DraftReply, DraftWorker, SSDDrafter, VerifyResult
from localspec.decoding.engine import Drafters
from localspec.decoding.measurements import Costs, Trace
from localspec.decoding.model import LanguageModel, Rows
from localspec.decoding.policy import SpeculationPolicy
from localspec.decoding.tally import Tally, total
from localspec.errors import Cancelled
from localspec.tuning.simulator.call_times import CallTimes, Timing
from localspec.tuning.simulator.replay import Replay, Script, Shape, replays
from localspec.types.drafts import Draft, DraftOrigin, VerifyOutcome
from localspec.types.events import RoundStats, Summary
from localspec.types.request import EngineSettings

SCRIPTS_KEPT = 128
_ANY_TOKEN = 2**31

Acting = Generator[float, DraftReply | None, None]
"""The target's side: yields when it acts next, infinity if that depends on a reply, which it is then sent."""


class VirtualClock:
    """The clock, and the target's side, which acts at its own times while the draft model works."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due = math.inf
        self._target_side: Acting | None = None
        self._reply: DraftReply | None = None

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def follow(self, target_side: Acting) -> None:
        """Let the target's side act from now on."""
        self._target_side, self._due = target_side, self.now
        self.wait()

    def spend(self, seconds: float) -> None:
        """Let time pass; raises `Cancelled` when the target's side has finished meanwhile."""
        end = self.now + seconds
        while self._due <= end:
            self.wait()
        self.now = end

    def wait(self) -> None:
        """Let time pass until the target's side acts."""
        assert self._target_side is not None
        assert self._due < math.inf, "both sides wait for each other"
        self.now = max(self.now, self._due)
        reply, self._reply = self._reply, None
        try:
            self._due = self._target_side.send(reply)
        except StopIteration:
            self._due, self._target_side = math.inf, None
            raise Cancelled from None

    def reply(self, reply: DraftReply, delay_s: float) -> None:
        """Answer the target's side, which notices after a delay."""
        self._reply, self._due = reply, self.now + delay_s


class ReplayedModel(LanguageModel):
    """A draft model that only knows places in a traced answer, and whose calls take their time.

    Its rows are the proposals of the places that they belong to; behind the answer's end, that of the last.
    """

    vocabulary_size = context_size = _ANY_TOKEN
    max_sequences, busy_s = 1, 0.0

    def __init__(self, clock: VirtualClock, sequences: int) -> None:
        self.clock = clock
        self._lengths = [0] * sequences
        self._right = [0] * sequences  # per sequence: so many leading tokens are those of the answer
        self._text: list[int] = []
        self._prompt = 0
        self.max_sequences = sequences

    def begin(self, replay: Replay, script: Script, times: CallTimes) -> None:
        """Read another answer; `DraftState.begin` must follow."""
        self._prompt = len(replay.prompt)
        self._text, self.script, self.times = replay.prompt + replay.tokens, script, times

    def length(self, sequence: int = 0) -> int:
        """Return how many tokens a sequence holds."""
        return self._lengths[sequence]

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        """Append tokens to sequence 0 and return what is proposed after the last `logits` of them."""
        self._spend(self.times.waited_step(len(tokens)), self.times.drafting_s)
        places = [self.append(token) for token in tokens]
        return cast("Rows", [self.script.at(place) for place in places[len(tokens) - logits :]])

    def step(self, tokens: Sequence[int], sequences: Sequence[int]) -> Rows:
        """Append each token to its sequence and return what is proposed after them."""
        self._spend(self.times.step(len(tokens)), self.times.around_step(len(tokens)))
        return cast("Rows", list(map(self.script.at, map(self.append, tokens, sequences))))

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
        """Return what is proposed at a position of the text if nobody judges it."""
        known = self.script.unjudged
        return known[min(position - self._prompt, len(known) - 1)]

    def rewrite(self, tokens: Sequence[int], start: int) -> None:
        """Let these be the tokens that sequence 0 holds from `start` on, as far as it holds any."""
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
        """Let `target` share what `source` holds up to position `end`."""
        self._lengths[target] = end
        self._right[target] = min(self._right[source], end)

    def cancel(self) -> None:
        """Do nothing: when the target's side has finished, the clock itself ends the call."""

    def resume(self) -> None:
        """Do nothing."""


class ReplayedState(DraftState):
    """The draft model's text, where a proposal that nobody judges is drawn independently of what follows."""

    def __init__(self, model: ReplayedModel) -> None:
        super().__init__(model, model.clock)
        self.replayed = model

    def unsent(self, sent: int) -> Proposal:
        """Return the proposal behind those that are sent, drawn anew."""
        if not self.replayed.script.deterministic:
            start = len(self.text) + sent
            self.proposals[sent] = self.replayed.unjudged(start)
            self.replayed.rewrite([proposal.token for proposal in self.proposals[sent:]], start)
        return self.proposals[sent]


class ReplayedProposer(Proposer):
    """Propose what the rows of a `ReplayedModel` say."""

    def __init__(self, *, deterministic: bool) -> None:
        self.deterministic = deterministic
        self.needs_history = False

    def propose(self, rows: Rows, histories: Sequence[Sequence[int]] | None = None) -> list[Proposal]:
        """Return the proposals."""
        return cast("list[Proposal]", rows)


class VirtualWorker(DraftWorker):
    """The draft model's side is the thread that runs; the target's side acts in between."""

    def __init__(
        self, state: DraftState, policy: SpeculationPolicy, proposer: Proposer, settings: EngineSettings
    ) -> None:
        super().__init__(state, policy, proposer, settings)
        assert isinstance(state, ReplayedState)
        self._replayed_clock, self._times = state.replayed.clock, state.replayed.times
        self.inbox = VirtualInbox(self._replayed_clock, self._times.handoff_s)

    def start(self, text: Sequence[int]) -> None:
        """Do nothing: whoever lets the target's side begin does the work."""

    def stop(self) -> None:
        """Do nothing: the work ends when the target's side does."""

    def reply(self, reply: DraftReply) -> None:
        """Wake the target's side."""
        self._replayed_clock.reply(reply, self._times.handoff_s)

    def open_round(self, sent: int, since: float) -> None:
        """Let the time pass that following a verdict takes, and do it."""
        self._replayed_clock.spend(self._times.drafting_s)
        super().open_round(sent, since)


class VirtualInbox(SimpleQueue[VerifyResult | CopiedTokens | None]):
    """What the target's side puts in, in the same thread."""

    def __init__(self, clock: VirtualClock, handoff_s: float) -> None:
        super().__init__()
        self._clock, self._handoff_s = clock, handoff_s

    def get(self, block: bool = True, timeout: float | None = None) -> VerifyResult | CopiedTokens | None:
        """Let time pass until there is a message, and the worker has woken up."""
        if self.empty():
            while self.empty():
                self._clock.wait()
            self._clock.spend(self._handoff_s)
        return super().get(block, timeout)


class Simulator:
    """Answers of one kind, on one machine, under any settings."""

    def __init__(self, trace: Trace, costs: Costs, seed: int = 0) -> None:
        """Take what the models think and what calls cost; `seed` fixes which drawn drafts are accepted."""
        self._sampling = trace.sampling
        self._replays = replays(trace, seed)
        self._costs = costs
        self._script = lru_cache(SCRIPTS_KEPT)(lambda number, shape: self._replays[number].script(shape))

    def __call__(self, settings: EngineSettings, segments: Iterable[int] | None = None) -> Summary:
        """Return what decoding answers one after another would do, added up; by default all of them."""
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
        self._state = ReplayedState(self._model)
        self._drafters = Drafters(self._state, VirtualWorker)

    def answer(self, replay: Replay, script: Script | None) -> None:
        """Decode one more answer."""
        times = self._timing.at(len(replay.prompt) + len(replay.tokens) // 2)
        if script is not None:
            self._model.begin(replay, script, times)
        proposer = ReplayedProposer(deterministic=script is None or script.deterministic)
        policy = self._drafters.policy(self._latency, self.settings, deterministic=proposer.deterministic)
        drafter = self._drafters.drafter(self.settings, policy, proposer)
        target_side = self._rounds(replay, times, policy, drafter)
        if isinstance(drafter, SSDDrafter):
            self._clock.follow(target_side)
            with suppress(Cancelled):
                drafter.worker.work(replay.prompt)
        else:
            for due in target_side:
                self._clock.now = due

    def _rounds(
        self, replay: Replay, times: CallTimes, policy: SpeculationPolicy, drafter: Drafter
    ) -> Acting:
        """Be the target's side of one answer; yields as `Acting` says."""
        tokens, clock = replay.tokens, self._clock
        tally, began = Tally(len(replay.prompt), self.settings.mode), clock.now
        drafter.begin(replay.prompt)
        read_s = times.verify(len(replay.prompt))
        yield began + read_s + times.round_s
        stats = RoundStats(0, 0, DraftOrigin.NONE, read_s, 0.0, 0.0, times.round_s)
        tally.add(stats, 1, clock.now - began)
        outcome, done = VerifyOutcome(0, tokens[0]), 1
        while done < len(tokens):
            busy_s, wait_s = drafter.busy_s, drafter.wait_s
            drafter.commit(outcome)
            limit = longest_draft(self.settings)
            draft = yield from self._drafted(
                drafter, limit if replay.segment.ended else min(limit, len(tokens) - done - 1)
            )
            drafted = len(draft.tokens)
            verify_s = times.verify(drafted + 1) * times.unsteady(done)
            python_s = times.round_s + times.token_s * self._one_by_one(draft)
            yield clock.now + verify_s + python_s
            accepted = common_prefix(draft.tokens, tokens[done : done + drafted])
            emitted = min(accepted + 1, len(tokens) - done)
            draft_s, waited_s = drafter.busy_s - busy_s, drafter.wait_s - wait_s
            times_s = (verify_s, draft_s, waited_s, python_s)
            stats = RoundStats(drafted, accepted, draft.origin, *times_s, copied=draft.copied)
            policy.observe(stats, emitted)
            tally.add(stats, emitted, clock.now - began)
            done += emitted
            outcome = VerifyOutcome(accepted, tokens[done - 1])
        self.summaries.append(tally.summary())

    def _one_by_one(self, draft: Draft) -> int:
        """Return how many tokens of a draft took Python each: copies beside a model come as a whole."""
        if self.settings.mode != "ngram" and draft.origin is DraftOrigin.NGRAM:
            return 0
        return min(len(draft.tokens), self.settings.draft_length)

    def _drafted(self, drafter: Drafter, limit: int) -> Generator[float, DraftReply | None, Draft]:
        """Return the next draft, waiting for it if need be."""
        if not isinstance(drafter, SSDDrafter):
            draft = drafter.draft(limit)
            if self.settings.mode == "sd" and len(draft.tokens) < len(self._state.proposals):
                self._state.unsent(len(draft.tokens))
            return draft
        found = drafter.look_up(limit)
        if found is None:
            reply = yield math.inf
            assert reply is not None
            found = drafter.take(reply)
        return found
