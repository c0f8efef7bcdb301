"""Measure the best candidates against plain decoding, and choose the settings to save.

Contenders answer untraced prompts alternately, each time another prompt than the one before: a draft model
that had just processed the same prompt for another contender would start faster than in everyday use.

Answers to one prompt are compared with each other, prompts are what chance picks from (the bootstrap draws
them again), and few prompts widen the intervals (Student's t). Where several contenders try to beat plain
decoding, each interval is widened so that in at most one of twenty confirmations any wins by chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

from localspec.benchmark.harness import (
    MIN_PROMPTS,
    Contender,
    Harness,
    OwnContender,
    Question,
    Run,
    RunRecord,
    in_turn,
    paces,
)
from localspec.benchmark.statistics import Interval, Paces, rate, speedup
from localspec.errors import EngineError, UserError
from localspec.tuning.events import ConfirmedContender, FailedContender, TaskResult
from localspec.tuning.plan import ReopenedModels
from localspec.tuning.run_folder import digest
from localspec.tuning.space import LLAMA_CPP
from localspec.tuning.study import Trial
from localspec.types.request import EngineSettings, Mode, Request, TaskType

NAMES = ("best", "second", "third")
PLAIN = "plain"
ANCHOR = "anchor"  # plain decoding of one answer, again and again: does the machine stay as fast?
ANCHOR_RUNS = 2  # of which the faster counts: what disturbs only ever makes slower
LAP = 4  # prompts, after which the anchor is measured and the outcome looked at
MIN_LAPS = 2  # for a beginning, a middle and an end
MAX_TURNS = 8  # of every prompt
MIN_TOKENS = 32  # of an answer: shorter ones are mostly their beginning
USUAL_TOKENS = 160
SHARE = 0.8  # share of the time for the required runs; the rest narrows the intervals
SHORTEST = 8  # tokens: an answer of fewer says little about speed
TARGET_HALF_WIDTH = 0.04  # target half-width of the interval; a narrower one is not worth more runs
TIE_MARGIN = 0.02  # a contender this close to the best, perhaps by chance, wins if it is simpler
DRIFT = 0.1  # of plain decoding: beyond it the intervals are widened, and it is said
SIGNIFICANCE = 0.05
_SIMPLICITY: tuple[Mode, ...] = ("off", "ngram", "sd", "ssd")


@dataclass(frozen=True, slots=True)
class Entrant:
    """A candidate to confirm, with its simulated tokens per second.

    Its `repr` is part of the key of saved runs.
    """

    name: str
    settings: EngineSettings
    predicted: float | None = None


@dataclass(frozen=True, slots=True)
class ConfirmationPlan:
    """The time limit of a confirmation, and the file of its runs, to resume after the program has ended.

    `key` identifies models, placement and task. Only the models' work counts as time.
    """

    task: TaskType
    budget_s: float
    key: str = ""
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class ConfirmProgress:
    """The progress in answers; `steps` grows while the intervals are too wide.

    `share` is the part of its time that is spent, 1 without any. `leader` is the fastest contender so far,
    from the end of the first lap on.
    """

    done: int
    steps: int
    share: float
    leader: ConfirmedContender | None = None


def entrants(candidates: Sequence[Trial], llama_cpp: float | None = None) -> tuple[Entrant, ...]:
    """Return the contenders: the best candidates, best first, and llama.cpp's defaults.

    `llama_cpp` are the predicted tokens per second of the latter.
    """
    named = zip(NAMES, candidates, strict=False)
    found = [Entrant(name, each.settings, each.estimate) for name, each in named]
    found = [each for each in found if each.settings.mode != "off" and each.settings != LLAMA_CPP]
    return (*found, Entrant("llama.cpp", LLAMA_CPP, llama_cpp))


def confirm(
    models: ReopenedModels,
    requests: Sequence[Request],
    contenders: Sequence[Entrant],
    terms: ConfirmationPlan,
) -> Iterator[ConfirmProgress | TaskResult]:
    """Time all contenders and plain decoding alternately; the last value is the outcome.

    A contender that raises `UserError` is dropped, and one that raises `EngineError` too, if models can be
    opened again. Everything else ends the confirmation, which another call with the same arguments takes up
    again after the last finished answer.
    """
    if len(requests) < MIN_PROMPTS:
        raise UserError(
            f"{len(requests)} held-out prompts are too few to compare speeds",
            f"give {MIN_PROMPTS} or more",
        )
    record = RunRecord(terms.file, digest(terms.key, tuple(requests), tuple(contenders), length=32))
    harness = Harness([Question("", request) for request in requests], record)
    course = _Confirmation(harness, [Entrant(PLAIN, EngineSettings(mode="off")), *contenders], models)
    yield from course.laps(terms.budget_s)
    yield course.outcome(terms.task)


class _Confirmation:
    """Who still takes part, and what they did so far."""

    def __init__(self, harness: Harness, field: list[Entrant], models: ReopenedModels) -> None:
        self._harness = harness
        self._record = harness.record
        self._models = models
        self._field = field
        self._dropped: list[FailedContender] = []

    def laps(self, budget_s: float) -> Iterator[ConfirmProgress]:
        """Run laps until the intervals are narrow or the time is over."""
        if self._record.tokens is None:
            self._record.set_tokens(self._affordable(budget_s))
        laps = _laps(len(self._harness.questions))
        leader = None
        self._measure_anchor(0)
        for number in range(MAX_TURNS * len(laps)):
            turn, lap = divmod(number, len(laps))
            order = list(in_turn(self._contenders(), laps[lap], number))
            expected = len(self._record.runs) + len(order) * max(1, MIN_LAPS - number)
            for contender, prompt in order:
                if number and self._spent_s >= budget_s:
                    break
                self._take(contender.name, prompt, turn)
                done = len(self._record.runs)
                share = min(1.0, self._spent_s / budget_s) if budget_s > 0 else 1.0
                yield ConfirmProgress(done, max(expected, done), share, leader)
            self._measure_anchor(number + 1)
            measured, _ = compare(self._field, self._record.runs.values(), self._drift)
            leader = max(measured, key=lambda contender: contender.gain.value, default=None)
            if self._spent_s >= budget_s or (number + 1 >= MIN_LAPS and self._is_clear(measured)):
                return

    def outcome(self, task: TaskType) -> TaskResult:
        """Judge what was measured."""
        runs = self._record.runs.values()
        drift = self._drift
        contenders, short = compare(self._field, runs, drift)
        if not contenders or contenders[0].name != PLAIN:
            raise UserError(
                "the answers to the held-out prompts are too short to be timed",
                f"give prompts that ask for {SHORTEST} tokens or more",
            )
        chosen, reason = _choose(contenders, runs)
        dropped = (*self._dropped, *short)
        if len(contenders) == 1 and dropped:
            reason += f": {dropped[0].reason}"
        if abs(drift - 1.0) > DRIFT:
            change = f"{abs(1.0 - drift):.0%} {'slower' if drift < 1.0 else 'faster'}"
            reason += f"; plain decoding became {change} meanwhile, which widens the intervals"
        return TaskResult(task, chosen.settings, reason, contenders, 0, self._spent_s, drift, dropped)

    @property
    def _spent_s(self) -> float:
        """Return the time of all answers, including those before a restart."""
        return sum(run.summary.seconds for run in self._record.runs.values())

    @property
    def _drift(self) -> float:
        """Return the speed of plain decoding now in that at the beginning."""
        anchors = list(paces(self._record.of(ANCHOR), SHORTEST).values())
        return min(anchors[:ANCHOR_RUNS]) / min(anchors[-ANCHOR_RUNS:]) if anchors else 1.0

    def _is_clear(self, measured: Sequence[ConfirmedContender]) -> bool:
        """Return whether more answers would hardly change the outcome."""
        calm = abs(self._drift - 1.0) <= DRIFT
        return calm and len(measured) == len(self._field) and _settled(measured)

    def _contenders(self) -> list[Contender]:
        return [OwnContender(each.name, self._models.now, each.settings) for each in self._field]

    def _measure_anchor(self, number: int) -> None:
        """Decode the first prompt plainly, always with the same seed."""
        plain = self._contenders()[0]
        for turn in range(number * ANCHOR_RUNS, (number + 1) * ANCHOR_RUNS):
            self._harness.run(plain, 0, turn, 1, ANCHOR)

    def _take(self, name: str, prompt: int, turn: int) -> None:
        """Time one answer; a contender that cannot answer is dropped."""
        contender = next((each for each in self._contenders() if each.name == name), None)
        if contender is None:
            return
        try:
            self._harness.run(contender, prompt, turn, 1 + prompt + turn * len(self._harness.questions))
        except UserError as error:
            self._drop(name, error)
        except EngineError as error:
            self._models.again()  # raises if they were closed to stop
            self._harness.cool()
            self._drop(name, error)

    def _drop(self, name: str, error: Exception) -> None:
        if name == PLAIN:
            raise error
        self._field = [each for each in self._field if each.name != name]
        self._dropped.append(FailedContender(name, str(error)))

    def _affordable(self, budget_s: float) -> int:
        """Return the length of answers at which the required laps fit into the time."""
        plain = self._contenders()[0]
        self._harness.warm_up(plain, -1)
        summary = self._harness.warm_up(plain, -1, seed=1)
        answers = MIN_LAPS * (LAP * len(self._field) + ANCHOR_RUNS) + ANCHOR_RUNS
        left_s = SHARE * budget_s / answers - summary.first_token_s
        wanted = min(each.request.max_tokens or USUAL_TOKENS for each in self._harness.questions)
        if summary.tokens_per_s is None:
            return wanted
        fitting = int(left_s * summary.decoded_tokens / summary.decode_s)
        return min(wanted, max(fitting, MIN_TOKENS))


def _laps(prompts: int) -> list[range]:
    """Share prompts out to laps of about equal size, at least three each."""
    count = max(1, round(prompts / LAP))
    return [range(lap * prompts // count, (lap + 1) * prompts // count) for lap in range(count)]


def compare(
    field: Sequence[Entrant], runs: Iterable[Run], drift: float = 1.0
) -> tuple[tuple[ConfirmedContender, ...], tuple[FailedContender, ...]]:
    """Measure contenders against the first, plain decoding; also return those that cannot be measured.

    Answers are paired within a prompt and the order rotates, so drift affects all equally: a gain is off by
    at most the drift between two prompts.
    """
    plain = field[0]
    by_name = {each.name: _paces(runs, each.name) for each in field}
    one_sided = min(0.025, SIGNIFICANCE / max(len(field) - 1, 1))
    contenders = []
    dropped = []
    for entrant in field:
        theirs = by_name[plain.name]
        mine = {place: pace for place, pace in by_name[entrant.name].items() if place in theirs}
        prompts = len({prompt for prompt, _ in mine})
        gain = speedup(mine, theirs, one_sided, MIN_PROMPTS)
        if gain is None:
            why = f"only {prompts} of its answers were long enough to be timed"
            dropped.append(FailedContender(entrant.name, why))
            continue
        if entrant is not plain and abs(drift - 1.0) > DRIFT:
            factor = exp(abs(log(drift)) / prompts)
            gain = Interval(gain.value, gain.low / factor, gain.high * factor)
        contenders.append(
            ConfirmedContender(entrant.name, entrant.settings, entrant.predicted, rate(mine), gain)
        )
    return tuple(contenders), tuple(dropped)


def _paces(runs: Iterable[Run], name: str) -> Paces:
    """Return the seconds per token of a contender's answers that are long enough."""
    return paces((run for run in runs if run.contender == name), SHORTEST)


def _settled(contenders: Sequence[ConfirmedContender]) -> bool:
    """Return whether more answers would hardly change anything: all that may be the best are known well."""
    reached = max(contender.gain.low for contender in contenders)
    return all(
        contender.gain.high - contender.gain.low <= 2 * TARGET_HALF_WIDTH * contender.gain.value
        for contender in contenders
        if contender.gain.high >= reached
    )


def _choose(contenders: Sequence[ConfirmedContender], runs: Iterable[Run]) -> tuple[ConfirmedContender, str]:
    """Return the contender to save and why: the best whose whole interval beats plain decoding, else plain.

    Among those within 2 % of the best, perhaps by chance, it is the simplest:
    n-grams before sd before ssd.
    """
    plain, *others = contenders
    winners = [other for other in others if other.gain.low > 1.0 and other.settings.mode != "off"]
    if not winners:
        return plain, _why_not(others)
    best = max(winners, key=lambda winner: winner.gain.value)
    alike = [winner for winner in winners if winner is best or _is_alike(winner, best, runs)]
    chosen = min(alike, key=lambda one: (_SIMPLICITY.index(one.settings.mode), -one.gain.value))
    reason = f"{_way(chosen.settings)} runs at {_times(chosen.gain)}"
    if chosen is not best:
        reason += f"; {_way(best.settings)}, at {best.gain.value:.2f} x, is not faster beyond doubt"
    return chosen, reason


def _is_alike(contender: ConfirmedContender, best: ConfirmedContender, runs: Iterable[Run]) -> bool:
    if contender.gain.value < (1.0 - TIE_MARGIN) * best.gain.value:
        return False
    mine = _paces(runs, contender.name)
    theirs = _paces(runs, best.name)
    ratio = speedup(mine, theirs, fewest_prompts=MIN_PROMPTS)
    return ratio is not None and ratio.high >= 1.0


def _why_not(others: Sequence[ConfirmedContender]) -> str:
    if not others:
        return "no way of drafting could be measured"
    best = max(others, key=lambda other: other.gain.value)
    if best.gain.high < 1.0:
        return f"drafting would run at {_times(best.gain)}"
    low = best.gain.low
    high = best.gain.high
    return f"no reliable gain ({best.gain.value:.2f} x, could be {low:.2f} to {high:.2f})"


def _way(settings: EngineSettings) -> str:
    return f"{settings.mode} with up to {settings.draft_length} drafted tokens"


def _times(gain: Interval) -> str:
    return f"{gain.value:.2f} x plain decoding, between {gain.low:.2f} and {gain.high:.2f}"
