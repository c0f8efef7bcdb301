"""What native calls cost, what drafts are worth, and the stopping rules that follow; pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from localspec.types import EngineSettings, RoundStats

LEARNING_RATE = 0.1
LEARNING_RATE_DOWN = 0.4  # disturbances only ever make a call slower: a faster one is soon believed
OUTLIER = 3.0  # a call that takes this many times its usual cost was disturbed
EXPLORE_AFTER = 40  # rounds without a draft, before a short one tests whether the costs still hold
EXPLORE_LENGTH = 2
BINS = 13
PRIOR_WEIGHT = 4.0


class CostCurve:
    """Seconds of one native call by the number of tokens in it: measured points, refined while running."""

    def __init__(self, points: Mapping[int, float]) -> None:
        self._sizes = sorted(points)
        self._seconds = [points[size] for size in self._sizes]

    def __call__(self, size: int) -> float:
        """Return the seconds of a call with `size` tokens, interpolated between the known sizes."""
        sizes, seconds = self._sizes, self._seconds
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
        at = bisect_left(self._sizes, size)
        if at == len(self._sizes) or self._sizes[at] != size:
            self._sizes.insert(at, size)
            self._seconds.insert(at, seconds)
            return
        known = self._seconds[at]
        rate = LEARNING_RATE if seconds > known else LEARNING_RATE_DOWN
        self._seconds[at] = known + rate * (min(seconds, OUTLIER * known) - known)

    def points(self) -> dict[int, float]:
        """Return the known sizes with their seconds."""
        return dict(zip(self._sizes, self._seconds, strict=True))


class Calibration:
    """The chance that a draft token is accepted, learned from the draft model's confidence in it.

    Raw confidence misleads, above all under rejection sampling (notes of the measured prototype, section 5).
    """

    def __init__(self) -> None:
        centres = [(index + 0.5) / BINS for index in range(BINS)]
        self._accepted = [PRIOR_WEIGHT * centre for centre in centres]
        self._judged = [PRIOR_WEIGHT] * BINS

    def chance(self, confidence: float) -> float:
        """Return the chance of acceptance at a confidence of 0 to 1."""
        index = min(int(confidence * BINS), BINS - 1)
        return self._accepted[index] / self._judged[index]

    def observe(self, confidences: Sequence[float], accepted: int) -> None:
        """Learn from one verified draft; positions after the first rejection were not judged."""
        for position, confidence in enumerate(confidences[: accepted + 1]):
            index = min(int(confidence * BINS), BINS - 1)
            self._judged[index] += 1.0
            self._accepted[index] += position < accepted


class Calibrations:
    """What was learned about the acceptance of each kind of draft."""

    def __init__(self) -> None:
        self.chosen = Calibration()  # drafts that take the best token
        self.drawn = Calibration()  # drafts that draw from q
        self.repeated = Calibration()  # n-gram drafts, by length of the match


class Experience:
    """What calls and tokens cost in one placement on this machine; it outlives answers."""

    def __init__(self, verify: CostCurve, step: CostCurve) -> None:
        self.verify = verify
        self.step = step
        self.seconds_per_token = verify(1)


class Pace:
    """Stopping rules: a further draft token must earn more time than it costs.

    With tokens per second r, a step that adds dT seconds pays if it adds more than r * dT expected tokens.
    """

    def __init__(
        self, experience: Experience, calibration: Calibration, settings: EngineSettings, deterministic: bool
    ) -> None:
        self._experience = experience
        self.verify = experience.verify
        self.step = experience.step
        self.calibration = calibration
        self.min_confidence = settings.min_confidence
        self.deterministic = deterministic
        self._plain_rounds = 0

    @property
    def exploring(self) -> bool:
        """Tell whether drafts have been absent for so long that their costs should be looked at again."""
        return self._plain_rounds >= EXPLORE_AFTER

    @property
    def seconds_per_token(self) -> float:
        """Return the running mean time of an emitted token."""
        return self._experience.seconds_per_token

    def observe(self, round_: RoundStats, tokens: int) -> None:
        """Learn from a round what a verification and an emitted token take."""
        self.verify.observe(round_.drafted + 1, round_.verify_s)
        self._plain_rounds = 0 if round_.drafted else self._plain_rounds + 1
        known = self._experience.seconds_per_token
        seconds = round_.verify_s + round_.draft_s + round_.wait_s + round_.python_s
        per_token = min(seconds / tokens, OUTLIER * known)
        rate = 1.0 - (1.0 - LEARNING_RATE / 2) ** tokens
        self._experience.seconds_per_token = known + rate * (per_token - known)

    def worth_drafting(self, confidences: Sequence[float]) -> bool:
        """Tell whether one more token is worth drafting while the target waits."""
        if self.min_confidence is not None:
            return not confidences or confidences[-1] >= self.min_confidence
        drafted = len(confidences)
        if self.exploring:
            return drafted < EXPLORE_LENGTH
        reach = 1.0
        for confidence in confidences:
            reach *= self.calibration.chance(confidence)
        cost = self.step(1) + self.verify(drafted + 2) - self.verify(drafted + 1)
        return reach * self.seconds_per_token > cost

    def length_to_send(self, confidences: Sequence[float], limit: int) -> int:
        """Return how many of the drafted tokens the target should judge.

        The value of a token that is judged never decides: a sampled draft is cut where the chance known
        before drawing the token no longer pays; a deterministic one may take the best length of all.
        """
        confidences = confidences[:limit]
        if self.min_confidence is not None:
            return next((i for i, c in enumerate(confidences) if c < self.min_confidence), len(confidences))
        if self.exploring:
            return min(len(confidences), EXPLORE_LENGTH)
        reach, gain, best, best_length = 1.0, 0.0, 0.0, 0
        for length, confidence in enumerate(confidences, start=1):
            reach *= self.calibration.chance(confidence)
            step = reach * self.seconds_per_token - (self.verify(length + 1) - self.verify(length))
            if step <= 0 and not self.deterministic:
                return length - 1
            gain += step
            if gain > best:
                best, best_length = gain, length
        return best_length
