"""Tokens sampled at temperature 1 follow the target's own distribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import erfc, inf, sqrt
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.benchmark.statistics import ks_uniform_p_value, randomised_pit
from localspec.decoding.sampling import distribution
from localspec.errors import Cancelled
from localspec.types import (
    Acceptance,
    Distribution,
    EngineSettings,
    Message,
    Mode,
    ModelInfo,
    Provenance,
    Request,
    Sampling,
)

Logits = NDArray[np.float32]
Answer = Sequence[tuple[int, Provenance, bool]]
Progress = Callable[[str, float], None]
"""Hears what is being done and the share that is done before; ends the test by raising `Cancelled`."""

DRAFTED = (Provenance.ACCEPTED, Provenance.PREPARED)
NEAR_TIE = 0.05  # logits; a float target's logits move by up to this much with the width of a batch

PROMPTS: tuple[tuple[str, str], ...] = (
    ("code", "Write a Python function that reverses a string."),
    ("dialogue", "I had a long day at work. What should I cook tonight?"),
    ("story", "Tell me a short story about a fox and a lighthouse."),
    ("sums", "Anna has 12 apples and gives 5 to Ben. How many are left? Show the steps."),
    ("code", "Write a Python class for a stack with push, pop and peek."),
    ("dialogue", "Can you recommend a good book for a train ride?"),
    ("story", "Once upon a time there was a clock that ran backwards. What happened next?"),
    ("sums", "A train drives 60 km in one hour. How far does it drive in 3 hours and a half?"),
    ("code", "Write a loop that prints the even numbers from 0 to 20."),
    ("dialogue", "Which is better for a small flat, a cat or a dog?"),
    ("story", "Write the beginning of a tale about a girl who could talk to rivers."),
    ("sums", "What is 17 times 6? Explain how you get there."),
)


class TokenRuntime(Protocol):
    """What the self-test asks of open models."""

    @property
    def draft(self) -> ModelInfo | None:
        """Return the draft model, if there is one."""

    def encode(self, prompt: tuple[Message, ...] | str) -> list[int]:
        """Return the tokens that the target reads for a prompt."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return tokens as text."""

    def generate_tokens(self, request: Request) -> Iterator[tuple[int, Provenance, bool]]:
        """Yield every token of an answer, the one that ends it included, and whether its round was a hit."""

    def score(self, tokens: Sequence[int]) -> Iterator[Logits]:
        """Yield the target's logits after each token, float32 (vocabulary,), valid until the next."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to decode that is put to the test."""

    name: str
    settings: EngineSettings

    def settings_for(self, answer: int) -> EngineSettings:
        """Return the settings for one answer: about every other one drafts even where drafting does not pay.

        Otherwise there would be next to nothing to test on a machine whose draft model is too slow.
        """
        is_forced = (answer + answer // 4) % 2 == 1  # each prompt in turn, since their kinds repeat by four
        if not is_forced or self.settings.min_confidence is not None:
            return self.settings
        return replace(self.settings, min_confidence=0.0)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to test."""

    prompts: int = 8
    greedy_tokens: int = 48  # in each answer
    sampled_tokens: int = 600  # of each variant
    near_tie: float = NEAR_TIE


QUICK = Effort(prompts=4, sampled_tokens=200)


@dataclass(slots=True)
class Course:
    """How far the self-test is, in tokens."""

    on_progress: Progress
    total: int
    done: int = 0

    def begin(self, words: str) -> None:
        """Tell what comes next; raises `Cancelled` if nothing is to come."""
        self.on_progress(words, self.done / self.total)


def question(prompt: str) -> tuple[Message, ...]:
    """Return the conversation that asks one question."""
    return (Message("user", prompt),)


def rows(runtime: TokenRuntime, prompt: str, answer: Sequence[int]) -> Iterator[tuple[int, Logits]]:
    """Yield each place in an answer with the logits that its token was chosen by."""
    before = runtime.encode(question(prompt))
    for index, row in enumerate(runtime.score([*before, *answer][:-1])):
        place = index - len(before) + 1
        if place >= 0:
            yield place, row


def num_drafted(answer: Answer) -> int:
    """Return how many tokens of an answer were accepted from drafts."""
    return sum(provenance in DRAFTED for _, provenance, _ in answer)


GREEDY = Sampling(temperature=0)
_OFF = EngineSettings(mode="off")


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a greedy answer first leaves that of plain decoding."""

    kind: str
    prompt: str
    position: int  # in the answer, from 0
    expected: str  # text of plain decoding's token; empty where an answer has ended
    found: str
    gap: float  # logits between the two tokens when the target reads the answer again
    worst_gap: float  # from there on, how far any token of the answer lies below the target's best
    near_tie: bool


@dataclass(frozen=True, slots=True)
class GreedyResult:
    """How the greedy answers of one variant compare with plain decoding."""

    variant: str
    answers: int
    tokens: int
    drafted: int  # of the tokens, accepted from drafts
    differences: tuple[Difference, ...]

    @property
    def passed(self) -> bool:
        """Tell whether nothing but near-ties differs."""
        return all(difference.near_tie for difference in self.differences)


class GreedyTest:
    """The greedy answers of each variant and of plain decoding, one question after another."""

    def __init__(self, runtime: TokenRuntime, tested: Sequence[Variant], effort: Effort) -> None:
        self._runtime = runtime
        self._effort = effort
        self._results = [GreedyResult(variant.name, 0, 0, 0, ()) for variant in tested]
        self._tested = tested

    @property
    def tokens(self) -> int:
        """Return how many tokens there will be, at most."""
        return self._effort.prompts * self._effort.greedy_tokens * (len(self._tested) + 1)

    @property
    def results(self) -> tuple[GreedyResult, ...]:
        """Return what was found so far."""
        return tuple(result for result in self._results if result.answers)

    def run(self, course: Course) -> None:
        """Answer all questions."""
        for number, prompt in enumerate(PROMPTS[: self._effort.prompts]):
            expected = [token for token, *_ in self._answer(course, number, Variant("plain decoding", _OFF))]
            for place, variant in enumerate(self._tested):
                answer = self._answer(course, number, variant)
                self._results[place] = self._judged(self._results[place], prompt, expected, answer)

    def _answer(self, course: Course, number: int, variant: Variant) -> Answer:
        course.begin(f"greedy answers: {number + 1} of {self._effort.prompts}, {variant.name}")
        settings, limit = variant.settings_for(number), self._effort.greedy_tokens
        request = Request(question(PROMPTS[number][1]), GREEDY, settings, limit, seed=0)
        answer = list(self._runtime.generate_tokens(request))
        course.done += limit
        return answer

    def _judged(
        self, before: GreedyResult, prompt: tuple[str, str], expected: list[int], answer: Answer
    ) -> GreedyResult:
        found, differences = [token for token, *_ in answer], before.differences
        if found != expected:
            differences += (_difference(self._runtime, prompt, expected, found, self._effort.near_tie),)
        return replace(
            before,
            answers=before.answers + 1,
            tokens=before.tokens + len(answer),
            drafted=before.drafted + num_drafted(answer),
            differences=differences,
        )


def _difference(
    runtime: TokenRuntime, prompt: tuple[str, str], expected: list[int], found: list[int], near_tie: float
) -> Difference:
    """Judge the first difference of two unequal answers, and what follows it, by the target's own logits."""
    pairs = zip(expected, found, strict=False)
    shorter = min(len(expected), len(found))
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    gap = worst = inf
    if position < shorter:
        worst = 0.0
        for place, row in rows(runtime, prompt[1], found):
            if place == position:
                gap = float(row[expected[place]] - row[found[place]])
            if place >= position:
                worst = max(worst, float(row.max() - row[found[place]]))
    return Difference(
        *prompt,
        position=position,
        expected=runtime.decode(expected[position : position + 1]),
        found=runtime.decode(found[position : position + 1]),
        gap=gap,
        worst_gap=worst,
        near_tie=abs(gap) <= near_tie and worst <= near_tie,
    )


Rounds = Literal["all", "hit", "other"]

SUSPICION = 0.02  # a p-value below it asks for four times as many tokens
FALSE_ALARM = 0.001  # a p-value of those below it is a failure
FEWEST_TOKENS = 50  # below it a test says nothing

FULL = Sampling(temperature=1, top_k=0, top_p=1, min_p=0)


@dataclass(frozen=True, slots=True)
class DistributionResult:
    """Whether sampled tokens follow the target's distribution; `p_value` None: too few to tell."""

    variant: str
    rounds: Rounds
    tokens: int
    drafted: int  # of the tokens, accepted from drafts
    p_value: float | None

    @property
    def passed(self) -> bool:
        """Tell whether nothing speaks against exactness."""
        return self.p_value is None or self.p_value >= FALSE_ALARM


@dataclass(slots=True)
class _Group:
    """The transforms of the tokens of some rounds, and how many of the tokens were drafted."""

    pairs: list[tuple[float, float]] = field(default_factory=list)
    drafted: int = 0
    excess: float = 0.0  # of surprise: what the tokens' was above what the target's distributions let expect
    variance: float = 0.0  # of that

    @property
    def tokens(self) -> int:
        """Return how many tokens there are."""
        return len(self.pairs)

    def with_those_of(self, other: _Group) -> _Group:
        """Return the tokens of both."""
        excess, variance = self.excess + other.excess, self.variance + other.variance
        return _Group(self.pairs + other.pairs, self.drafted + other.drafted, excess, variance)

    def result(self, variant: str, rounds: Rounds) -> DistributionResult:
        """Test the transforms."""
        return DistributionResult(variant, rounds, self.tokens, self.drafted, self._p_value())

    def _p_value(self) -> float | None:
        if self.tokens < FEWEST_TOKENS:
            return None
        shapes = [ks_uniform_p_value(values) for values in zip(*self.pairs, strict=True)]
        surprised = erfc(abs(self.excess) / sqrt(2 * self.variance)) if self.variance > 0 else 1.0
        return min(1.0, 3 * min(*shapes, surprised))


class _Sample:
    """Tokens of one variant at temperature 1; those of rounds whose draft was prepared are kept apart."""

    def __init__(self, variant: Variant, effort: Effort, stream: int) -> None:
        self.variant = variant
        self.wanted = effort.sampled_tokens
        self._limit = effort.greedy_tokens
        self._stream = stream
        self._random = np.random.default_rng(stream)
        self._answers = 0
        self._hits, self._others = _Group(), _Group()

    @property
    def tokens(self) -> int:
        """Return how many tokens there are, of those that are wanted."""
        return min(self.wanted, self._hits.tokens + self._others.tokens)

    @property
    def is_done(self) -> bool:
        """Tell whether that is enough."""
        return self.wanted in (self.tokens, self._answers)

    @property
    def is_doubtful(self) -> bool:
        """Tell whether more tokens should decide."""
        return any(each.p_value is not None and each.p_value < SUSPICION for each in self.results())

    def extend(self, runtime: TokenRuntime, course: Course) -> None:
        """Add an answer."""
        before = self.tokens
        course.begin(f"tokens at temperature 1: {before} of {self.wanted}, {self.variant.name}")
        prompt, seed = PROMPTS[self._answers % len(PROMPTS)][1], self._stream * 1_000_003 + self._answers
        settings = self.variant.settings_for(self._answers)
        request = Request(question(prompt), FULL, settings, self._limit, seed=seed)
        answer = list(runtime.generate_tokens(request))
        for place, row in rows(runtime, prompt, [token for token, *_ in answer]):
            token, provenance, is_hit = answer[place]
            group = self._hits if is_hit else self._others
            group.pairs.append(transforms(row, token, float(self._random.random())))
            excess, variance = surprise(row, token)
            group.excess, group.variance = group.excess + excess, group.variance + variance
            group.drafted += provenance in DRAFTED
        self._answers += 1
        course.done += self.tokens - before

    def results(self) -> tuple[DistributionResult, ...]:
        """Test hit rounds and other rounds apart, where there are enough tokens of both."""
        name = self.variant.name
        if min(self._hits.tokens, self._others.tokens) < FEWEST_TOKENS:
            every = self._hits.with_those_of(self._others)
            return (every.result(name, "all"),) if every.tokens else ()
        return self._hits.result(name, "hit"), self._others.result(name, "other")


class SampledTest:
    """Tokens of each variant at temperature 1, an answer of each in turn."""

    def __init__(self, runtime: TokenRuntime, tested: Sequence[Variant], effort: Effort) -> None:
        self._runtime = runtime
        self._effort = effort
        self._samples = [_Sample(variant, effort, number) for number, variant in enumerate(tested)]

    @property
    def tokens(self) -> int:
        """Return how many tokens there will be, unless more are needed to decide."""
        return len(self._samples) * self._effort.sampled_tokens

    @property
    def results(self) -> tuple[DistributionResult, ...]:
        """Return what the tokens so far tell."""
        return tuple(result for sample in self._samples for result in sample.results())

    def run(self, course: Course) -> None:
        """Sample all tokens, and more of them where chance may have played a trick."""
        self._complete(self._samples, course)
        doubtful = [number for number, sample in enumerate(self._samples) if sample.is_doubtful]
        # fresh answers, so that the doubt that led here does not count twice
        more = replace(self._effort, sampled_tokens=4 * self._effort.sampled_tokens)
        streams = {number: number + len(self._samples) for number in doubtful}
        fresh = {number: _Sample(self._samples[number].variant, more, streams[number]) for number in doubtful}
        course.total += more.sampled_tokens * len(fresh)
        self._complete(list(fresh.values()), course)
        for number, sample in fresh.items():
            self._samples[number] = sample

    def _complete(self, samples: Sequence[_Sample], course: Course) -> None:
        while left := [sample for sample in samples if not sample.is_done]:
            for sample in left:
                sample.extend(self._runtime, course)


def transforms(row: Logits, token: int, uniform: float) -> tuple[float, float]:
    """Return the randomised PIT of a token, likelier tokens first, and in the order of the vocabulary.

    The first shows a wrong temperature or truncation best, the second a draft that is believed too much.
    """
    p = distribution(row, FULL, ())
    own = p.probs[token]
    likelier, equal = float(p.probs[p.probs > own].sum()), float(p.probs[p.probs == own].sum())
    ranks = Distribution(np.arange(3), np.array([likelier, equal, max(0.0, 1 - likelier - equal)]))
    return randomised_pit(ranks, 1, uniform), randomised_pit(p, token, uniform)


def surprise(row: Logits, token: int) -> tuple[float, float]:
    """Return how much more a token surprises than is to be expected, in nats, and the variance of that.

    Their sums show a draft that is believed too much sooner than the transforms: it writes what is rare.
    """
    probs = distribution(row, FULL, ()).probs
    surprises = -np.log(np.maximum(probs, np.finfo(np.float64).tiny))
    mean = float(probs @ surprises)
    return float(surprises[token]) - mean, float(probs @ (surprises - mean) ** 2)


__all__ = [
    "FALSE_ALARM",
    "NEAR_TIE",
    "QUICK",
    "Difference",
    "DistributionResult",
    "Effort",
    "GreedyResult",
    "Progress",
    "Report",
    "TokenRuntime",
    "Variant",
    "check",
    "variants",
]


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of the self-test; an incomplete one was stopped."""

    greedy: tuple[GreedyResult, ...]
    sampled: tuple[DistributionResult, ...]
    complete: bool = True

    @property
    def exact(self) -> bool:
        """Tell whether every part passed."""
        return all(part.passed for part in self.greedy) and all(part.passed for part in self.sampled)


def variants(settings: EngineSettings, mode: Mode | None, possible: Sequence[Mode]) -> tuple[Variant, ...]:
    """Return the speculating variants to test: those of one mode, or of all that the models allow."""
    return tuple(
        Variant(each, replace(settings, mode=each))
        for each in possible
        if each != "off" and mode in (None, each)
    )


def check(runtime: TokenRuntime, tested: Sequence[Variant], effort: Effort, on_progress: Progress) -> Report:
    """Run both tests and return what they found until the end, or until they were cancelled."""
    greedy = GreedyTest(runtime, tested, effort)
    sampled = SampledTest(runtime, _sampled_variants(tested), effort)
    course = Course(on_progress, total=greedy.tokens + sampled.tokens)
    try:
        greedy.run(course)
        sampled.run(course)
    except Cancelled:
        return Report(greedy.results, sampled.results, complete=False)
    return Report(greedy.results, sampled.results)


def _sampled_variants(tested: Sequence[Variant]) -> list[Variant]:
    """Add plain decoding, which tests the test, and both ways to judge a draft model's tokens."""
    found = [Variant("off", EngineSettings(mode="off"))]
    rules: tuple[Acceptance, ...] = ("rejection", "match")
    for variant in tested:
        if variant.settings.mode == "ngram":
            found.append(variant)
        else:
            found += [Variant(f"{variant.name} {r}", replace(variant.settings, acceptance=r)) for r in rules]
    return found
