"""Which way of decoding should be fastest, from what calls cost, measured or assumed; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from localspec.decoding.policy import LatencyModel
from localspec.types.request import Mode
from localspec.units import LONG_MODES

ACCEPTANCE = 0.7  # of a draft token, before anything is known about this pair
MIN_ACCEPTANCE = 0.5  # likewise, at the low end of what pairs of models show
HIT_RATE = 0.7  # of prepared outcomes, likewise
BRANCHES = 4  # of a draft call that prepares outcomes
MIN_GAIN = 1.05  # below it speculation is not worth its memory and its noise
LENGTHS = range(1, 9)
PYTHON_S = 2e-4  # around each native call that the target waits for; it matters with tiny models only
HANDOFF_S = 3e-4  # per round, to switch between two threads; an assumption as well
DRAFT_SHARE = 4  # if both models compute on the CPU at once, the draft gets one core in this many

_rate = attrgetter("tokens_per_s")
CallSeconds = Callable[[int], float]
"""The seconds of a call by the number of its tokens or branches."""
Overlap = Callable[[int, float, float], float]
"""How long a round works, by the length of its draft and the seconds of verifying and of preparing alone."""


@dataclass(frozen=True, slots=True)
class PredictedSpeed:
    """The expected speed of one way of decoding, in tokens per second, at its best draft length."""

    mode: Mode
    tokens_per_s: float
    draft_length: int = 0


def rank(
    alone: LatencyModel, together: Callable[[], LatencyModel] | None, acceptance: float | None = None
) -> list[PredictedSpeed]:
    """Rank the ways of decoding as `predict` does, and measure both models at once only if it matters.

    Neither is faster at once than alone; if drafting ahead would lose even so, that is not measured.
    """
    if together is not None and pays_ahead(alone, acceptance):
        return predict(alone, together(), acceptance)
    return predict(alone, None, acceptance)


def pays_ahead(alone: LatencyModel, acceptance: float | None) -> bool:
    """Return whether drafting ahead would be fastest if both models at once were as fast as each alone."""
    return predict(alone, alone, acceptance)[0].mode == "ssd"


def predict(
    alone: LatencyModel, together: LatencyModel | None, acceptance: float | None = None
) -> list[PredictedSpeed]:
    """Rank plain, speculative and ahead-of-time decoding, the fastest first.

    `alone` are the costs when one model works at a time, `together` when both do at once.
    `acceptance` is what is known of this draft model. Where nothing is, plain decoding stays first unless
    speculation gains with `MIN_ACCEPTANCE`, too.
    """
    found = _predicted(alone, together, acceptance)
    if acceptance is None and _predicted(alone, together, MIN_ACCEPTANCE)[0].mode == "off":
        found.sort(key=lambda speed: speed.mode != "off")
    return found


def _predicted(
    alone: LatencyModel, together: LatencyModel | None, acceptance: float | None
) -> list[PredictedSpeed]:
    speeds = [plain_speed(alone.verify), sd_speed(alone.verify, alone.step, acceptance)]
    if together is not None:
        speeds.append(ssd_speed(together.verify, together.step, acceptance))
    return ranked(speeds)


def explain(ranked: Sequence[PredictedSpeed]) -> str:
    """Return the reason for the first prediction, in a sentence."""
    figures = ", ".join(f"{LONG_MODES[found.mode]} {found.tokens_per_s:.0f}" for found in ranked)
    reason = f"expected tokens/s from measured costs: {figures}"
    if max(map(_rate, ranked)) > MIN_GAIN * ranked[0].tokens_per_s:
        reason += "; the gain is not sure, as nothing is known of this draft model"
    return reason


def plain_speed(verify: CallSeconds) -> PredictedSpeed:
    """Return the speed of plain decoding."""
    return PredictedSpeed("off", 1.0 / (verify(1) + PYTHON_S))


def sd_speed(verify: CallSeconds, step: CallSeconds, acceptance: float | None = None) -> PredictedSpeed:
    """Return the speed of speculative decoding, where the models work alternately."""
    step_s = step(1)

    def speed(length: int) -> PredictedSpeed:
        seconds = verify(length + 1) + length * step_s + (length + 1) * PYTHON_S
        return PredictedSpeed("sd", _tokens(length, acceptance) / seconds, length)

    return max(map(speed, LENGTHS), key=_rate)


def ssd_speed(
    verify: CallSeconds,
    step: CallSeconds,
    acceptance: float | None = None,
    overlap: Overlap = lambda _length, verify_s, _prepare_s: verify_s,
) -> PredictedSpeed:
    """Return the speed of drafting ahead (Saguaro's Theorem 7, with times for its costs).

    Prepared outcomes are thought to hit as often as a draft's tokens are known to be accepted.
    """
    hits = HIT_RATE if acceptance is None else acceptance
    step_s = step(1)
    branches_s = step(BRANCHES)

    def speed(length: int) -> PredictedSpeed:
        prepare_s = length * (branches_s + PYTHON_S)
        work_s = overlap(length, verify(length + 1) + PYTHON_S + HANDOFF_S, prepare_s)
        hit_s = max(work_s, prepare_s)
        miss_s = work_s + length * (step_s + PYTHON_S)
        seconds = hits * hit_s + (1.0 - hits) * miss_s
        return PredictedSpeed("ssd", _tokens(length, acceptance) / seconds, length)

    return max(map(speed, LENGTHS), key=_rate)


def ranked(speeds: Sequence[PredictedSpeed]) -> list[PredictedSpeed]:
    """Return speeds, the best first; plain decoding stays first where speculation gains next to nothing."""
    order = sorted(speeds, key=_rate, reverse=True)
    plain = next(speed for speed in speeds if speed.mode == "off")
    if order[0].tokens_per_s < MIN_GAIN * plain.tokens_per_s:
        order.remove(plain)
        order.insert(0, plain)
    return order


def shared_cores(cores: int, draft_threads: int | None, *, evenly: bool = False) -> tuple[int, int]:
    """Return the CPU cores of target and draft while both compute there.

    `evenly` if most of the target is on other devices.
    """
    for_draft = draft_threads or max(1, cores // (2 if evenly else DRAFT_SHARE))
    return max(1, cores - for_draft), for_draft


def _tokens(length: int, acceptance: float | None) -> float:
    """Return the tokens of a round: the accepted ones and the target's own."""
    rate = ACCEPTANCE if acceptance is None else acceptance
    return sum(rate**accepted for accepted in range(length + 1))
