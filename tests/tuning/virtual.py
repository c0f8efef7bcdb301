"""The real engine in virtual time: its threads run one at a time, and only calls of models take time."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Generic, TypeVar
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.drafters.draft_worker import DraftWorker, Message, Reply, ThreadedWorker
from localspec.decoding.drafters.drafter import DraftState
from localspec.decoding.drafters.prompt_lookup import PromptLookup, longest_draft
from localspec.decoding.drafters.speculation_cache import SpeculationCache
from localspec.decoding.drafters.ssd import SSDDrafter
from localspec.decoding.engine import Drafters, Engine
from localspec.decoding.measure import STEP_WIDTHS, VERIFY_SIZES
from localspec.decoding.measurements import CallCosts, Costs, Trace, TraceSegment
from localspec.decoding.model import LanguageModel
from localspec.decoding.policy import CostCurve, LatencyModel
from localspec.decoding.rounds import DecodeParams, Round
from localspec.decoding.tally import Tally
from localspec.errors import Cancelled
from localspec.types.candidates import FullRows, Rows, top_candidates
from localspec.types.events import RoundStats, Summary
from localspec.types.request import EngineSettings, Sampling

TIMEOUT_S = 30.0
VOCABULARY = 1024
APART = 64  # ids that differ modulo this are in different columns of the folded row
RANKS = 20  # that the draft model gives a chance
PROMPT = 6  # tokens
GREEDY = Sampling(temperature=0.0)
Cost = Callable[[int], float]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Linear:
    """The seconds of a call: `first` for one token, `further` for every further one."""

    first: float
    further: float

    def __call__(self, size: int) -> float:
        return self.first + self.further * (size - 1)


class Stage:
    """Lets the actor with the earliest appointment continue when all of them wait; the first one in a tie."""

    def __init__(self, actors: int) -> None:
        self.now = 0.0
        self._due: list[float | None] = [0.0] * actors  # None: at work
        self._changed = threading.Condition()
        self._over = False

    def __call__(self) -> float:
        return self.now

    def enter(self, actor: int) -> None:
        with self._changed:
            self._due[actor] = None

    def wait(self, actor: int, due: float) -> None:
        """Wait for a moment, which `wake` may bring forward; raises `Cancelled` when the answer is over."""
        with self._changed:
            self._due[actor] = due
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._over or self._is_next(actor), TIMEOUT_S)
            if self._over:
                raise Cancelled
            self.now = max(self.now, self._due[actor] or 0.0)
            self._due[actor] = None

    def wake(self, actor: int) -> None:
        with self._changed:
            due = self._due[actor]
            if due is not None:
                self._due[actor] = min(due, self.now)

    def _is_next(self, actor: int) -> bool:
        known = [due for due in self._due if due is not None]
        return len(known) == len(self._due) and min(known) < math.inf and known.index(min(known)) == actor

    def finish(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()


class Box(Generic[T]):
    """A mailbox whose reader is an actor."""

    def __init__(self, stage: Stage, reader: int) -> None:
        self._stage, self._reader = stage, reader
        self._items: deque[T] = deque()
        self._waiting = False

    def put(self, item: T, /) -> None:
        self._items.append(item)
        if self._waiting:
            self._stage.wake(self._reader)

    def get(self) -> T:
        if not self._items:
            self._waiting = True
            self._stage.wait(self._reader, math.inf)
            self._waiting = False
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class PlacedModel(LanguageModel):
    """A model whose logits depend on nothing but the place, and whose calls take virtual time."""

    vocabulary_size, context_size, max_sequences = 0, 4096, 32
    busy_s = 0.0

    def __init__(self, rows: NDArray[np.float32], stage: Stage, actor: int, cost: Cost) -> None:
        self._rows, self._stage, self._actor, self._cost = rows, stage, actor, cost
        self._lengths = [0] * 32
        self.vocabulary_size = rows.shape[1]

    def length(self, sequence: int = 0) -> int:
        return self._lengths[sequence]

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        self._spend(len(tokens))
        return FullRows(np.stack([self._follow(token, 0) for token in tokens])[len(tokens) - logits :])

    def step(self, tokens: Sequence[int], sequences: Sequence[int]) -> Rows:
        self._spend(len(tokens))
        return FullRows(np.stack(list(map(self._follow, tokens, sequences))))

    def _follow(self, token: int, sequence: int) -> NDArray[np.float32]:
        self._lengths[sequence] += 1
        return self._row(self._lengths[sequence] - 1)

    def _row(self, place: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self._rows[min(place, len(self._rows) - 1)]
        return row

    def _spend(self, size: int) -> None:
        seconds = self._cost(size)
        self._stage.wait(self._actor, self._stage.now + seconds)
        self.busy_s += seconds

    def truncate(self, length: int, sequence: int = 0) -> None:
        self._lengths[sequence] = length

    def share(self, source: int, target: int, end: int) -> None:
        self._lengths[target] = end

    def cancel(self) -> None:
        self._stage.finish()

    def resume(self) -> None:
        pass


@dataclass(slots=True)
class Toy:
    """A prompt and an answer, with rows of logits of both models at every place."""

    prompt: list[int]
    tokens: list[int]
    target: NDArray[np.float32]
    draft: NDArray[np.float32]
    verify: Cost = field(default_factory=lambda: Linear(1.0, 0.02))
    step: Cost = field(default_factory=lambda: Linear(0.1, 0.001))
    ended: bool = False  # by its last token

    def trace(self) -> Trace:
        begin = len(self.prompt) - 1
        ids, logits = top_candidates(self.draft[begin:], 16)
        tokens = np.array(self.tokens, np.int32)
        best = (ids == tokens[:, None]).astype(np.float32)
        segment = TraceSegment(
            prompt=tuple(self.prompt),
            tokens=tokens,
            target_ids=tokens[:, None],
            target_probs=np.ones((len(tokens), 1), np.float32),
            target_of_token=np.ones(len(tokens), np.float32),
            draft_ids=ids.astype(np.int32),
            draft_logits=logits - logits[:, :1],
            target_of_draft=best,
            decode_s=1.0,
            ended=self.ended,
        )
        return Trace(GREEDY, (segment,))

    def costs(self) -> Costs:
        verify = tuple((size, self.verify(size)) for size in range(1, 17))
        step = tuple((width, self.step(width)) for width in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32))
        return Costs(tuple(CallCosts(64, together, verify, step) for together in (False, True)))

    def latency_model(self) -> LatencyModel:
        return LatencyModel(
            CostCurve({size: self.verify(size) for size in VERIFY_SIZES}),
            CostCurve({width: self.step(width) for width in STEP_WIDTHS}),
        )


def toy(tokens: int = 200, agreement: float = 0.7, seed: int = 0, *, varied: bool = False) -> Toy:
    """Return an answer where the draft model's best token is the target's with a chance, the same everywhere.

    The draft model is equally sure everywhere, unless `varied`.
    """
    random = np.random.default_rng(seed)
    places = tokens + PROMPT - 1
    # Of its candidates no two share a column of the folded row, so that it is as sure as it seems.
    columns = np.stack([random.permutation(APART)[:RANKS] for _ in range(places)])
    ranked = columns + random.integers(VOCABULARY // APART, size=columns.shape) * APART
    sureness = random.uniform(0.4, 2.5, size=(places, 1)) if varied else 1.2
    draft = np.full((places, VOCABULARY), -99.0, np.float32)
    np.put_along_axis(draft, ranked, (-np.arange(RANKS) * sureness).astype(np.float32), axis=1)
    ranks = np.where(random.random(places) < agreement, 0, random.geometric(0.4, size=places))
    best = ranked[np.arange(places), np.minimum(ranks, RANKS - 1)]
    target = np.zeros((places, VOCABULARY), np.float32)
    target[np.arange(places), best] = 5.0
    prompt = random.integers(0, VOCABULARY, size=PROMPT).tolist()
    return Toy(prompt, best[PROMPT - 1 :].tolist(), target, draft)


@dataclass(frozen=True, slots=True)
class Happened:
    """The rounds of an answer, and what they came to."""

    rounds: list[RoundStats]
    summary: Summary


def placed(toy: Toy, stage: Stage, actor: int) -> PlacedModel:
    return PlacedModel(toy.draft, stage, actor, toy.step)


def decode(
    toy: Toy, settings: EngineSettings, draft_model: Callable[[Toy, Stage, int], PlacedModel] = placed
) -> Happened:
    """Decode an answer with the real engine."""
    ahead = settings.mode == "ssd"
    stage = Stage(2 if ahead else 1)
    target = PlacedModel(toy.target, stage, 0, toy.verify)
    draft = draft_model(toy, stage, 1 if ahead else 0)
    draft.max_sequences = settings.fan_out_budget + 1
    engine = Engine(target, draft)
    engine.drafters = Drafters(DraftState(draft, stage), partial(ahead_on, stage))
    limit, ends = (2 * len(toy.tokens), toy.tokens[-1:]) if toy.ended else (len(toy.tokens), [])
    params = DecodeParams(GREEDY, settings.acceptance, longest_draft(settings), limit, frozenset(ends))
    rounds: list[Round] = []
    tally = Tally(len(toy.prompt), settings.mode)
    with patch("localspec.decoding.loop.time", SimpleNamespace(perf_counter=stage)):
        for event in engine.rounds(toy.prompt, settings, params, toy.latency_model(), 0):
            if isinstance(event, Round):
                rounds.append(event)
                tally.add(event.stats, len(event.tokens), stage.now)
    assert [token for event in rounds for token in event.tokens] == toy.tokens
    return Happened([event.stats for event in rounds], tally.summary())


class ActingWorker(ThreadedWorker):
    """A worker whose thread is an actor."""

    def __init__(self, stage: Stage, worker: DraftWorker, replies: Box[Reply]) -> None:
        super().__init__(worker, replies)
        self._stage = stage

    def start(self, text: Sequence[int]) -> None:
        self._stage.enter(0)
        super().start(text)

    def _run(self, text: list[int]) -> None:
        self._stage.enter(1)
        super()._run(text)


def ahead_on(
    stage: Stage, cache: SpeculationCache, draft_length: int, lookup: PromptLookup | None
) -> SSDDrafter:
    """Return what drafts ahead, with messages that wake actors."""
    replies = Box[Reply](stage, 0)
    worker = DraftWorker(cache, Box[Message](stage, 1), replies.put)
    return SSDDrafter(ActingWorker(stage, worker, replies), draft_length, lookup)
