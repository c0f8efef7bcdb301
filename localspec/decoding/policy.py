"""The costs of native calls, the value of drafts, and the stopping rules that follow; pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise

from localspec.types.events import RoundStats
from localspec.types.request import EngineSettings

LEARNING_RATE = 0.1
LEARNING_RATE_DOWN = 0.4  # disturbances only ever make a call slower: a faster one is soon believed
OUTLIER = 3.0  # a call that takes this many times its typical cost was disturbed
EXPLORE_AFTER = 40  # rounds without a draft before a short one tests whether the costs are still valid
EXPLORE_LENGTH = 2
BINS = 13
KNOTS = 12
PRIOR_WEIGHT = 4.0
PRIOR_MEAN = 0.7
RECENT = 0.95  # weight of what was known of the mean after one more token: a text changes its kind


class CostCurve:
    """Seconds of one native call by the number of tokens in it: measured points, refined while running.

    One thread observes while others read: sizes and seconds are replaced together.
    """

    def __init__(self, points: Mapping[int, float], *, is_shape: bool = False) -> None:
        """Take measured points, or a shape to which the first call that is observed gives its scale."""
        sizes = sorted(points)
        self._is_shape = is_shape
        self._table = sizes, [points[size] for size in sizes]
        self._answers: dict[int, float] = {}

    def __call__(self, size: int) -> float:
        """Return the seconds of a call with `size` tokens, interpolated between the known sizes."""
        answer = self._answers.get(size)
        if answer is None:
            answer = self._answers[size] = self._interpolated(size)
        return answer

    def up_to(self, size: int) -> list[float]:
        """Return the seconds of calls with 1, 2, ... `size` tokens."""
        known = self._answers.get
        return [known(each) or self(each) for each in range(1, size + 1)]

    def _interpolated(self, size: int) -> float:
        sizes, seconds = self._table
        at = bisect_left(sizes, size)
        if at < len(sizes) and sizes[at] == size:
            return seconds[at]
        if len(sizes) == 1:
            return seconds[0]
        at = min(max(at, 1), len(sizes) - 1)
        slope = (seconds[at] - seconds[at - 1]) / (sizes[at] - sizes[at - 1])
        return max(seconds[at - 1] + slope * (size - sizes[at - 1]), min(seconds))

    def observe(self, size: int, seconds: float) -> None:
        """Learn from one call."""
        if self._is_shape:
            self._is_shape, scale = False, seconds / self(size)
            self._table = self._table[0], [scale * each for each in self._table[1]]
            self._answers = {}
        sizes, known = self._table
        at = bisect_left(sizes, size)
        if at == len(sizes) or sizes[at] != size:  # a first call may have compiled something, too
            seconds = min(seconds, OUTLIER * self(size))
            self._table = [*sizes[:at], size, *sizes[at:]], [*known[:at], seconds, *known[at:]]
        else:
            rate = LEARNING_RATE if seconds > known[at] else LEARNING_RATE_DOWN
            known[at] += rate * (min(seconds, OUTLIER * known[at]) - known[at])
        self._forget(at)

    def _forget(self, at: int) -> None:
        """Forget the answers that depend on the point at an index; outside of all points, they may on any."""
        sizes, _ = self._table
        low = sizes[max(at - 1, 0)]
        high = sizes[min(at + 1, len(sizes) - 1)]
        for size in list(self._answers):  # a copy: others may add some meanwhile
            if size == sizes[at] or low < size < high or not sizes[0] <= size <= sizes[-1]:
                del self._answers[size]

    def points(self) -> dict[int, float]:
        """Return the known sizes with their seconds."""
        return dict(zip(*self._table, strict=True))


SHAPES = {False: {1: 1.0, 9: 2.0}, True: {1: 1.0, 9: 1.2}}
"""Costs of verifying against those of one token, on the CPU and on a GPU, before any are measured."""
UNKNOWN_ROUNDS = 3  # plain ones that give such costs their scale


def assumed_costs(draft_share: float, *, on_card: bool) -> LatencyModel:
    """Return costs of a pair of which none are measured, by the share of the target's weights of the draft's.

    The first rounds of an answer give them their scale, and later ones correct them.
    """
    verify = CostCurve(SHAPES[on_card], is_shape=True)
    step = CostCurve({1: draft_share, 16: 1.5 * draft_share}, is_shape=True)
    return LatencyModel(verify, step, UNKNOWN_ROUNDS)


def is_plausible(costs: Mapping[int, float]) -> bool:
    """Return whether no call costs many times a larger one, or many times its tokens one by one."""
    return all(
        seconds < OUTLIER * more_s and more_s < OUTLIER * seconds * more / size
        for (size, seconds), (more, more_s) in combinations(sorted(costs.items()), 2)
    )


class Calibrator:
    """The chance that what a model expects comes true, learned from the chance that it gave itself.

    It is the model's own chance, corrected by how often things came true in what the model expected; the
    correction is known at a few chances and continues between them without a step.
    """

    def __init__(self) -> None:
        self._true = [PRIOR_WEIGHT] * (KNOTS + 1)
        self._expected = [PRIOR_WEIGHT] * (KNOTS + 1)
        self._corrections = [1.0] * (KNOTS + 1)

    def __call__(self, own: float) -> float:
        """Return the chance of something to which the model gives one of 0 to 1."""
        knot, beyond = _knot(own)
        low = self._corrections[knot]
        high = self._corrections[knot + 1]
        return min(1.0, own * (low + beyond * (high - low)))

    def observe(self, own: float, *, is_true: bool) -> None:
        """Learn whether it came true."""
        knot, beyond = _knot(own)
        for at, share in ((knot, 1.0 - beyond), (knot + 1, beyond)):
            self._expected[at] += share * own
            self._true[at] += share * is_true
            self._corrections[at] = self._true[at] / self._expected[at]


def _knot(chance: float) -> tuple[int, float]:
    """Return the knot below a chance, and how far the chance is on the way to the next one."""
    knot = min(int(chance * KNOTS), KNOTS - 1)
    return knot, chance * KNOTS - knot


class AcceptanceBins:
    """The chance that a draft token is accepted, learned in bins of the confidence in it.

    Raw confidence misleads, above all under rejection sampling, where q(x) is not the chance that x is
    accepted.
    At first the chance is the confidence, or that of the general case, which the bins refine.
    """

    def __init__(self, *, refines: bool = False) -> None:
        """Begin with the confidence, or with a usual chance that `chance` is given."""
        centres = [0.0 if refines else (index + 0.5) / BINS for index in range(BINS)]
        self._accepted = [PRIOR_WEIGHT * centre for centre in centres]
        self._judged = [PRIOR_WEIGHT] * BINS
        self._chances = [*centres, centres[-1]]  # a confidence of 1 belongs to the last bin

    def chance(self, confidence: float, usual: float | None = None) -> float:
        """Return the chance of acceptance at a confidence of 0 to 1; `usual` is the chance to refine."""
        if usual is None:
            return self._chances[int(confidence * BINS)]
        index = _bin(confidence)
        return (self._accepted[index] + PRIOR_WEIGHT * usual) / self._judged[index]

    def observe(self, confidences: Sequence[float], accepted: int) -> None:
        """Learn from one verified draft; positions after the first rejection were not judged."""
        for position, confidence in enumerate(confidences[: accepted + 1]):
            index = _bin(confidence)
            self._judged[index] += 1.0
            self._accepted[index] += position < accepted
            self._chances[index] = self._accepted[index] / self._judged[index]
        self._chances[BINS] = self._chances[BINS - 1]


def _bin(confidence: float) -> int:
    return min(int(confidence * BINS), BINS - 1)


class AcceptanceCalibration(AcceptanceBins):
    """Acceptance statistics of the draft model's tokens: by confidence, recent mean, and outcomes."""

    def __init__(self) -> None:
        super().__init__()
        self._recent_accepted = PRIOR_WEIGHT * PRIOR_MEAN
        self._recent_judged = PRIOR_WEIGHT
        # of outcomes, for prepared drafts
        self.judged = Calibrator()  # of a judged token, by the draft model's chance for just this token
        self.after_rejection = Calibrator()  # of a token to be the bonus token, by its share of all
        self.after_all = Calibrator()  # likewise where the whole draft was accepted

    @property
    def mean(self) -> float:
        """Return the share of the last judged tokens that were accepted."""
        return self._recent_accepted / self._recent_judged

    def observe(self, confidences: Sequence[float], accepted: int) -> None:
        """Learn from one verified draft; positions after the first rejection were not judged."""
        super().observe(confidences, accepted)
        for position in range(min(len(confidences), accepted + 1)):
            self._recent_judged = RECENT * self._recent_judged + 1.0
            self._recent_accepted = RECENT * self._recent_accepted + (position < accepted)


class LatencyModel:
    """What calls and tokens cost in one placement on this machine; it outlives answers."""

    def __init__(self, verify: CostCurve, step: CostCurve, unknown: int = 0) -> None:
        """Take the costs; `plain_rounds` plain rounds are needed before they are used."""
        self.verify = verify
        self.step = step
        self.seconds_per_token = verify(1)
        self.unknown = unknown

    @property
    def answers(self) -> int:
        """Return the number of answers that a round serves."""
        return 1


class SpeculationPolicy:
    """Stopping rules: a further draft token must earn more time than it costs.

    With r tokens per second, a step of dT seconds is worth it if it adds more than r * dT expected tokens.
    """

    def __init__(
        self,
        latency: LatencyModel,
        calibration: AcceptanceCalibration,
        settings: EngineSettings,
        deterministic: bool,
    ) -> None:
        self._latency = latency
        self.verify = latency.verify
        self.step = latency.step
        self.calibration = calibration
        self.min_confidence = settings.min_confidence
        self.deterministic = deterministic
        self._plain_rounds = 0
        self._added: list[float] = []  # seconds that each further token of a draft adds to verifying it

    @property
    def exploring(self) -> bool:
        """Return whether drafts have been absent for so long that their costs should be looked at again."""
        return self._plain_rounds >= EXPLORE_AFTER

    @property
    def seconds_per_token(self) -> float:
        """Return the running mean time of an emitted token."""
        return self._latency.seconds_per_token

    def observe(self, round_: RoundStats, tokens: int) -> None:
        """Learn from a round what a verification and an emitted token take."""
        self.verify.observe(round_.drafted + 1, round_.verify_s)
        self._added = []
        self._plain_rounds = 0 if round_.drafted else self._plain_rounds + 1
        per_token = round_.seconds / tokens / self._latency.answers
        if self._latency.unknown:
            self._latency.unknown -= 1
            self._latency.seconds_per_token = per_token
        known = self._latency.seconds_per_token
        per_token = min(per_token, OUTLIER * known)
        rate = 1.0 - (1.0 - LEARNING_RATE / 2) ** tokens
        self._latency.seconds_per_token = known + rate * (per_token - known)

    def worth_drafting(self, confidences: Sequence[float], limit: int, delay_s: float = 0.0) -> bool:
        """Return whether one more token is worth drafting while the target waits.

        It is if some longer draft, with the average chance for further tokens, is worth more than any that
        could be sent now: verification may cost a lot for the second token and little for the next ones.
        `delay_s` passes before the draft model can begin.
        """
        drafted = len(confidences)
        if drafted >= limit:
            return False
        if self.min_confidence is not None:
            return not confidences or confidences[-1] >= self.min_confidence
        if self._latency.unknown:
            return False
        if self.exploring:
            return drafted < EXPLORE_LENGTH
        step_s = self.step(1)
        added = self._added_up_to(limit)
        values, reach = self.values(confidences)
        usual = self.calibration.mean
        token_s = self.seconds_per_token
        best = max(values)
        value = values[-1] - delay_s
        for length in range(drafted, limit):
            reach *= usual
            value += reach * token_s - added[length] - step_s
            if value > best:
                return True
        return False

    def length_to_send(self, confidences: Sequence[float], limit: int) -> int:
        """Return the number of draft tokens that the target should verify.

        The identity of a verified token never decides. A deterministic draft gets its most valuable length; a
        sampled one is cut by the chances known before each token was sampled.
        """
        confidences = confidences[:limit]
        if self.min_confidence is not None:
            return next((i for i, c in enumerate(confidences) if c < self.min_confidence), len(confidences))
        if self._latency.unknown:
            return 0
        if self.exploring:
            return min(len(confidences), EXPLORE_LENGTH)
        if self.deterministic:
            values, _ = self.values(confidences)
            return values.index(max(values))
        reach = 1.0
        for length, confidence in enumerate(confidences, start=1):
            reach *= self.calibration.chance(confidence)
            if not self._may_pay(reach, length, limit):
                return length - 1
        return len(confidences)

    def values(self, confidences: Sequence[float]) -> tuple[list[float], float]:
        """Return the value of a draft of each length from 0, in seconds, and the chance of the longest."""
        value = 0.0
        values = [0.0]
        reach = 1.0
        chance = self.calibration.chance
        token_s = self.seconds_per_token
        for confidence, added_s in zip(confidences, self._added_up_to(len(confidences)), strict=False):
            reach *= chance(confidence)
            value += reach * token_s - added_s
            values.append(value)
        return values, reach

    def _added_up_to(self, length: int) -> list[float]:
        """Return the added verification cost of each draft token, at least `count`; cached for a round."""
        added = self._added  # which another thread may forget meanwhile
        if len(added) < length:
            added = self._added = [
                after - before for before, after in pairwise(self.verify.up_to(length + 1))
            ]
        return added

    def gain(self, reach: float, length: int) -> float:
        """Return the seconds that the last token of a draft saves, if it is accepted with chance `reach`."""
        return reach * self.seconds_per_token - self._added_up_to(length)[length - 1]

    def _may_pay(self, reach: float, length: int, limit: int) -> bool:
        """Return whether a token is worth it, alone or with further ones of the average chance."""
        value = 0.0
        usual = self.calibration.mean
        for further in range(length, limit + 1):
            value += self.gain(reach, further)
            if value > 0:
                return True
            reach *= usual
        return False
