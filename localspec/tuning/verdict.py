"""From timed answers to the way of decoding that is kept; pure.

Answers to one prompt are compared with each other, prompts are what chance picks from (the bootstrap draws
them anew), and few prompts widen the intervals (Student's t). Where several contenders try to beat plain
decoding, each interval is widened so that in at most one of twenty confirmations any wins by chance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from localspec.benchmark.statistics import ratio_of_sums
from localspec.tuning.events import ConfirmedContender, Dropped, Estimate
from localspec.types import EngineSettings, Mode

PLAIN = "plain"
FEWEST_PROMPTS = 3  # below it nothing can be told
SHORTEST = 8  # tokens: an answer of fewer says little about speed
NARROW = 0.04  # half of an interval, in its middle: narrower is not worth more time
ALIKE = 0.02  # where a contender is so little behind the best, and that by chance, the simpler one wins
DRIFT = 0.1  # of plain decoding: beyond it the intervals are widened, and it is said
FALSE_ALARM = 0.05
_SIMPLICITY: tuple[Mode, ...] = ("off", "ngram", "sd", "ssd")

Floats = NDArray[np.float64]
Paces = Mapping[str, Mapping[tuple[int, int], float]]
"""Of each contender: seconds per token by prompt and turn."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A way of decoding that wants to be confirmed, with its simulated tokens per second."""

    name: str
    settings: EngineSettings
    predicted: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A timed answer of one contender to one prompt; a later turn asks the same again with another seed.

    `spent_s` is what the answer took altogether.
    """

    name: str
    prompt: int
    turn: int
    tokens: int
    decode_s: float
    spent_s: float

    @property
    def pace_s(self) -> float:
        """Return the seconds per token after the first."""
        return self.decode_s / (self.tokens - 1)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to decode with, why, and what was measured; `drift` is plain decoding's speed at the end."""

    settings: EngineSettings
    reason: str
    contenders: tuple[ConfirmedContender, ...]  # "plain" first
    dropped: tuple[Dropped, ...] = ()
    drift: float = 1.0
    seconds: float = 0.0


def paces_of(runs: Sequence[Run]) -> Paces:
    """Return the seconds per token of all answers that are long enough to tell."""
    found: defaultdict[str, dict[tuple[int, int], float]] = defaultdict(dict)
    for run in runs:
        if run.tokens >= SHORTEST and run.decode_s > 0:
            found[run.name][run.prompt, run.turn] = run.pace_s
    return found


def compare(
    entrants: Sequence[Entrant], paces: Paces, drift: float = 1.0
) -> tuple[tuple[ConfirmedContender, ...], tuple[Dropped, ...]]:
    """Measure entrants against the first of them, plain decoding; also return those that cannot be measured.

    Pairs are made within a prompt and the order rotates, so that drift hits all alike: a gain is off by no
    more than the drift from one prompt to the next.
    """
    plain = entrants[0]
    several = max(len(entrants) - 1, 1)
    one_sided = min(0.025, FALSE_ALARM / several)
    contenders, dropped = [], []
    for entrant in entrants:
        mine, theirs = _paired(paces, entrant.name, plain.name)
        if len(mine) < FEWEST_PROMPTS:
            why = f"only {len(mine)} of its answers were long enough to be timed"
            dropped.append(Dropped(entrant.name, why))
            continue
        gain = _ratio(theirs, mine, one_sided)
        if entrant is not plain and abs(drift - 1.0) > DRIFT:
            gain = _widened(gain, exp(abs(log(drift)) / len(mine)))
        rate = _ratio(np.ones_like(mine), mine, 0.025)
        contenders.append(ConfirmedContender(entrant.name, entrant.settings, entrant.predicted, rate, gain))
    return tuple(contenders), tuple(dropped)


def settled(contenders: Sequence[ConfirmedContender]) -> bool:
    """Tell whether more answers would hardly change anything: all that may be the best are known well."""
    reached = max(contender.gain.low for contender in contenders)
    return all(
        contender.gain.high - contender.gain.low <= 2 * NARROW * contender.gain.value
        for contender in contenders
        if contender.gain.high >= reached
    )


def choose(contenders: Sequence[ConfirmedContender], paces: Paces) -> tuple[ConfirmedContender, str]:
    """Return the contender to keep and why: the best whose whole interval beats plain decoding, else plain.

    Of those that are no more than 2 % behind the best, and that perhaps by chance, it is the simplest:
    n-grams before sd before ssd.
    """
    plain, *others = contenders
    winners = [other for other in others if other.gain.low > 1.0 and other.settings.mode != "off"]
    if not winners:
        return plain, _why_not(others)
    best = max(winners, key=lambda winner: winner.gain.value)
    alike = [winner for winner in winners if winner is best or _is_alike(winner, best, paces)]
    chosen = min(alike, key=lambda one: (_SIMPLICITY.index(one.settings.mode), -one.gain.value))
    reason = f"{_way(chosen.settings)} runs at {_times(chosen.gain)}"
    if chosen is not best:
        reason += f"; {_way(best.settings)}, at {best.gain.value:.2f} x, is not faster beyond doubt"
    return chosen, reason


def _is_alike(contender: ConfirmedContender, best: ConfirmedContender, paces: Paces) -> bool:
    if contender.gain.value < (1.0 - ALIKE) * best.gain.value:
        return False
    mine, theirs = _paired(paces, contender.name, best.name)
    return len(mine) >= FEWEST_PROMPTS and _ratio(theirs, mine, 0.025).high >= 1.0


def _why_not(others: Sequence[ConfirmedContender]) -> str:
    if not others:
        return "no way of drafting could be measured"
    best = max(others, key=lambda other: other.gain.value)
    if best.gain.high < 1.0:
        return f"drafting would run at {_times(best.gain)}"
    return f"drafting runs at {_times(best.gain)}: no gain beyond doubt"


def _way(settings: EngineSettings) -> str:
    return f"{settings.mode} with up to {settings.draft_length} drafted tokens"


def _times(gain: Estimate) -> str:
    return f"{gain.value:.2f} x plain decoding, between {gain.low:.2f} and {gain.high:.2f}"


def _paired(paces: Paces, name: str, other: str) -> tuple[Floats, Floats]:
    """Return the mean paces of two contenders for each prompt that both have answered."""
    mine, theirs = paces.get(name, {}), paces.get(other, {})
    by_prompt: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for place in sorted(mine.keys() & theirs.keys()):
        by_prompt[place[0]].append((mine[place], theirs[place]))
    means = np.array([np.mean(pairs, axis=0) for pairs in by_prompt.values()]).reshape(-1, 2)
    return means[:, 0], means[:, 1]


def _ratio(above: Floats, below: Floats, one_sided: float) -> Estimate:
    """Return the ratio of two sums over prompts; the truth is beyond either end with a chance `one_sided`."""
    return Estimate(*ratio_of_sums(above, below, one_sided))


def _widened(estimate: Estimate, factor: float) -> Estimate:
    return Estimate(estimate.value, estimate.low / factor, estimate.high * factor)
