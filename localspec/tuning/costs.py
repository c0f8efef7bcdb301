"""The costs of a pair on this machine: timed calls and fitted rounds, saved until something changes.

Rounds take more than their calls; short real answers in every mode show how much.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log
from statistics import fmean
from typing import TYPE_CHECKING, TypeVar

from localspec.benchmark.harness import answered
from localspec.decoding.measure import compare_passes, time_calls
from localspec.decoding.measurements import CallCosts, ComparedPass, CostRequest, Costs, Overhead
from localspec.errors import EngineError
from localspec.inference.interface import OpenModels, TunableModels, on_card
from localspec.tuning.plan import ReopenedModels
from localspec.tuning.simulator.call_times import Timing
from localspec.types.drafts import DraftOrigin
from localspec.types.events import RoundStats
from localspec.types.request import EngineSettings, Mode, Request

if TYPE_CHECKING:
    from localspec.inference.runtime import Runtime

DEPTHS = (64, 1536)
CALLS_S = 16.0
ROUNDS_S = 12.0
READING_SHARE = 0.25  # share of the time, to process a long text first
MAX_DRIFT = 1.1  # beyond it something else was at work on the machine
COMPARED_SHARE = 0.1  # share of the time, to compare passes of a mixture of experts
CALLS_SHARE = 0.6  # share of the time; the rest is for whole rounds
TOKENS = 48  # of an answer
TRIMMED = 0.1  # of the values at either end, which disturbances make
UNDISTURBED = 0.25  # the share of waits in which the drafter was free at once
MIN_WAITS = 4
_T = TypeVar("_T")

# Different lengths show the cost of a token, few branches leave misses. Without a confidence
# that stops them, drafts are as long as they may be, and say what a step costs.
_WAYS = (
    EngineSettings(draft_length=2, fan_out_budget=2, min_confidence=0.0),
    EngineSettings(draft_length=8, fan_out_budget=12),
    EngineSettings(draft_length=5, fan_out_budget=2, min_confidence=0.0),
    EngineSettings(draft_length=4, fan_out_budget=8),
)


def steps_of(models: TunableModels, *, has_experts: bool = False) -> int:
    """Return the largest number of steps: compared passes, calls alone and together, and rounds."""
    return has_experts + len(DEPTHS) * (1 if models.draft is None else 2) + 1


def costs_of(
    models: ReopenedModels, requests: Sequence[Request], budget_s: float, text: tuple[int, ...] = ()
) -> Iterator[tuple[str, int] | Costs]:
    """Yield the finished step and the number of steps; the last value is the costs of a pair.

    Modes that crash are left out. With the `text` of answers, the target is a mixture of experts: its passes
    are timed on neighbours in it, as decoding reads them, and compared with passes over unrelated tokens.
    """
    calls = list[CallCosts]()
    compared = tuple[ComparedPass, ...]()
    steps = steps_of(models.now, has_experts=bool(text))
    if text:
        compared = models.now.perform(compared_passes, text, COMPARED_SHARE * budget_s)
        budget_s *= 1.0 - COMPARED_SHARE
        yield "neighbouring and unrelated tokens", steps
    for each in measure(models, budget_s=CALLS_SHARE * budget_s, text=text):
        calls.append(each)
        words = "both at work" if each.together else "one at a time"
        yield f"{words}, {each.depth} tokens in the cache", steps
    rounds = real_rounds(models, requests, (1.0 - CALLS_SHARE) * budget_s)
    costs = Costs(tuple(calls), fit(calls, rounds), tuple(models.left_out.items()), compared)
    missing = [f"{mode} left out: {reason}" for mode, reason in costs.left_out]
    yield "; ".join(missing) or "whole rounds in every mode", bool(text) + len(calls) + 1 + len(missing)
    yield costs


def measure(
    models: ReopenedModels,
    *,
    depths: Sequence[int] = DEPTHS,
    budget_s: float = CALLS_S,
    text: tuple[int, ...] = (),
) -> Iterator[CallCosts]:
    """Yield the costs of calls, alone and with both models at work, with little and with much in the caches.

    Where the speed of the machine drifts, a measurement is repeated once, and the steadier one counts.
    A slow model is spared the reading of long texts. Models that crash while both are at work continue alone.
    """
    ways = (False,) if models.now.draft is None else (False, True)
    share_s = budget_s / len(ways) / len(depths)
    most = models.now.target.context * 3 // 4
    before = 0
    for asked in depths:
        depth = min(asked, most)
        if depth < 2 * before:
            return
        for together in ways:
            try:
                found = _steady(models.now, CostRequest(depth, together, budget_s=share_s, text=text))
            except EngineError as error:
                if not together:
                    raise
                models.leave_out("ssd", error)
                ways = (False,)
                break
            yield found
        before = depth
        token_s = min(seconds / size for size, seconds in found.verify)  # of a prompt, at most
        most = min(most, int(READING_SHARE * budget_s / token_s))


def _steady(models: TunableModels, request: CostRequest) -> CallCosts:
    found = models.perform(call_costs, request)
    if _unsteadiness(found) <= log(MAX_DRIFT):
        return found
    return min(found, models.perform(call_costs, request), key=_unsteadiness)


def call_costs(runtime: Runtime, request: CostRequest) -> CallCosts:
    """Time native calls, in empty caches; branches and sizes that are impossible here are left out."""
    if not runtime.can_branch:
        request = replace(request, step_widths=(1,))
    with runtime.models_alone(together=request.together) as models:
        return time_calls(*models, request, on_card=runtime.uses_cards)


def compared_passes(runtime: Runtime, text: tuple[int, ...], budget_s: float) -> tuple[ComparedPass, ...]:
    """Compare passes over a text with others, in empty caches."""
    with runtime.models_alone(together=False) as (target, _):
        return compare_passes(target, text, budget_s)


def _unsteadiness(calls: CallCosts) -> float:
    return abs(log(calls.drift))


@dataclass(frozen=True, slots=True)
class RealRound:
    """A round of an answer, with `depth` tokens in the caches.

    `python_s` includes the round's share of detokenisation. `first_call` is the number of tokens in the draft
    model's first call: the bonus token, and after a fully accepted draft its last token; 0 if there were
    more.
    """

    settings: EngineSettings
    depth: int
    stats: RoundStats
    python_s: float
    first_call: int = 1


def real_rounds(
    models: ReopenedModels, requests: Sequence[Request], budget_s: float = ROUNDS_S
) -> tuple[RealRound, ...]:
    """Decode the beginnings of answers in alternating modes, and return the rounds after each first one.

    Every mode gets at least one answer. On a GPU, another answer compiles kernels first, and so does the
    first round of each kind, which is skipped. Modes that crash, now or before, are skipped. Raises
    `Cancelled` after `cancel`.
    """
    modes: tuple[Mode, ...] = ("off", "ngram", *(() if models.now.draft is None else ("sd", "ssd")))
    rounds = list[RealRound]()
    known = set[tuple[object, ...]]()
    warm_ups = int(on_card(models.now))
    began = 0.0
    for number, request in enumerate((*requests[:warm_ups], *requests)):
        if number <= warm_ups:
            began = time.perf_counter()
        elif time.perf_counter() - began > budget_s:
            break
        for mode in modes:
            if mode in models.left_out:
                continue
            settings = replace(_WAYS[number % len(_WAYS)], mode=mode)
            tokens = min(request.max_tokens or TOKENS, TOKENS)
            asked = replace(request, settings=settings, max_tokens=tokens, steps_down=False)
            try:
                for each in _rounds_of(models.now, asked):
                    call = mode, each.stats.drafted, each.first_call
                    rounds += [each] if call in known or not warm_ups else []
                    known.add(call)
            except EngineError as error:
                if mode == "off":
                    raise
                models.leave_out(mode, error)
    return tuple(rounds)


def _rounds_of(models: OpenModels, request: Request) -> Iterator[RealRound]:
    """Decode an answer; nothing comes of a mode that these models cannot work in."""
    summary, rounds = answered(models, request)
    if request.settings.mode == "ssd" and summary.hit_rate is None:
        return
    text_s = max(0.0, summary.python_s - sum(each.stats.python_s for each in rounds[1:]))
    depth = summary.prompt_tokens
    for before, each in pairwise(rounds):
        depth += before.tokens
        last = before.stats
        stats = each.stats
        first_call = 1 + (last.accepted == last.drafted) if last.drafted else 0
        python_s = stats.python_s + text_s / len(rounds[1:])
        yield RealRound(request.settings, depth, stats, python_s, first_call)


def fit(calls: Sequence[CallCosts], rounds: Iterable[RealRound]) -> tuple[Overhead, ...]:
    """Return the overhead of each mode that there are rounds of."""
    by_mode: defaultdict[Mode, list[RealRound]] = defaultdict(list)
    for each in rounds:
        by_mode[each.settings.mode].append(each)
    found = {mode: _overhead(calls, mode, of_mode) for mode, of_mode in by_mode.items()}
    if "sd" in found and "ssd" in found:
        handoff_s = _handoff(by_mode["ssd"], found["sd"].token_s)
        found["ssd"] = replace(found["ssd"], handoff_s=handoff_s)
    return tuple(found.values())


def _overhead(calls: Sequence[CallCosts], mode: Mode, rounds: Sequence[RealRound]) -> Overhead:
    timing = Timing(Costs(tuple(calls)), mode)
    round_s, token_s = _line([(each.stats.drafted, each.python_s) for each in rounds])
    verify = [(each.stats.verify_s, timing.at(each.depth).verify(each.stats.drafted + 1)) for each in rounds]
    step = [
        (each.stats.draft_s, _steps_s(timing.at(each.depth).waited_step, each))
        for each in rounds
        if mode in {"sd", "ssd"} and each.stats.origin is DraftOrigin.FRESH and _is_forced(each)
    ]
    return Overhead(mode, round_s, token_s, _factor(verify), _factor(step))


def _is_forced(each: RealRound) -> bool:
    """Return whether every drafted token was sent, so the steps are known."""
    return each.settings.min_confidence is not None and each.stats.drafted > 0 and each.first_call > 0


def _steps_s(step: Callable[[int], float], each: RealRound) -> float:
    """Return the expected time of the draft model's calls for a round's draft."""
    return step(each.first_call) + step(1) * (each.stats.drafted - 1)


def _handoff(rounds: Iterable[RealRound], token_s: float) -> float:
    """Return the time of one of the two messages around a requested draft.

    Most waits also contain the rest of a call that was running; the shortest ones hardly do.
    """
    waits = sorted(
        each.stats.wait_s - token_s * each.stats.drafted
        for each in rounds
        if each.stats.origin is DraftOrigin.FRESH and _is_forced(each)
    )
    return max(waits[int(UNDISTURBED * len(waits))], 0.0) / 2 if len(waits) >= MIN_WAITS else 0.0


def _factor(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the ratio of real to expected call times, without outliers."""
    usable = sorted((pair for pair in pairs if pair[1] > 0), key=lambda pair: pair[0] / pair[1])
    kept = _trimmed(usable)
    return sum(real for real, _ in kept) / sum(expected for _, expected in kept) if kept else 1.0


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return start and slope, neither negative, of the best line through all but the strangest points."""
    height, slope = _least_squares(points)
    return _least_squares(_trimmed(sorted(points, key=lambda point: point[1] - height - slope * point[0])))


def _least_squares(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    centre = fmean(place for place, _ in points)
    middle = fmean(value for _, value in points)
    width = sum((place - centre) ** 2 for place, _ in points)
    rise = sum((place - centre) * (value - middle) for place, value in points)
    if rise <= 0:
        return max(middle, 0.0), 0.0
    slope = min(rise / width, middle / centre)
    return middle - slope * centre, slope


def _trimmed(ordered: Sequence[_T]) -> Sequence[_T]:
    """Return sorted values without the outermost at either end."""
    cut = int(TRIMMED * len(ordered))
    return ordered[cut : len(ordered) - cut]
