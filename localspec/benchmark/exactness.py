"""Tokens sampled at temperature 1 follow the target's own distribution, and greedy answers are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import erfc, inf, sqrt
from typing import TYPE_CHECKING, Literal

import numpy as np

from localspec.benchmark.statistics import ks_uniform_p_value, randomised_pit
from localspec.decoding.sampling import distribution
from localspec.errors import Cancelled
from localspec.types.candidates import FullRow, Logits
from localspec.types.drafts import Provenance
from localspec.types.request import Acceptance, EngineSettings, Message, Mode, Request, Sampling

if TYPE_CHECKING:
    from localspec.inference.runtime import Runtime

Answer = Sequence[tuple[int, Provenance, bool]]
Progress = Callable[[str, float], None]
"""Gets the current step and the finished share; raises `Cancelled` to end the test."""
Rounds = Literal["all", "hit", "other"]
Judged = tuple[float, float, float, float, bool]

DRAFTED = (Provenance.ACCEPTED, Provenance.PREPARED)
NEAR_TIE = 0.05  # logits; a float target's logits move by up to this much with the width of a batch
RETEST_BELOW_P = 0.02  # a p-value below it asks for four times as many tokens
SIGNIFICANCE = 0.001  # a p-value of those below it is a failure
MIN_TOKENS = 50  # below it a test says nothing
GREEDY = Sampling(temperature=0)
FULL = Sampling(temperature=1, top_k=0, top_p=1, min_p=0)

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


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to decode that is put to the test."""

    name: str
    settings: EngineSettings

    def settings_for(self, answer: int) -> EngineSettings:
        """Return the settings for one answer; about every other one drafts even if drafting is slower.

        Otherwise there would be almost nothing to test if the draft model is too slow.
        """
        is_forced = (answer + answer // 4) % 2 == 1  # each prompt alternately: kinds repeat every four
        if not is_forced or self.settings.min_confidence is not None:
            return self.settings
        return replace(self.settings, min_confidence=0.0)


@dataclass(frozen=True, slots=True)
class VerifyEffort:
    """How much to test."""

    prompts: int = 8
    greedy_tokens: int = 48  # in each answer
    sampled_tokens: int = 600  # of each variant
    near_tie: float = NEAR_TIE


QUICK = VerifyEffort(prompts=4, sampled_tokens=200)
PLAIN = Variant("off", EngineSettings(mode="off"))


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a greedy answer first leaves that of plain decoding."""

    kind: str
    prompt: str
    position: int  # in the answer, from 0
    expected: str  # text of plain decoding's token; empty where an answer has ended
    found: str
    gap: float  # logits between the two tokens when the target reads the answer again
    worst_gap: float  # from there on, the largest logit gap of a token below the target's best
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
        """Return whether nothing but near-ties differs."""
        return all(difference.near_tie for difference in self.differences)


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
        """Return whether nothing speaks against exactness."""
        return self.p_value is None or self.p_value >= SIGNIFICANCE


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of the self-test; an incomplete one was stopped."""

    greedy: tuple[GreedyResult, ...]
    sampled: tuple[DistributionResult, ...]
    complete: bool = True

    @property
    def exact(self) -> bool:
        """Return whether every part passed."""
        return all(part.passed for part in self.greedy) and all(part.passed for part in self.sampled)


def variants(settings: EngineSettings, mode: Mode | None, possible: Sequence[Mode]) -> tuple[Variant, ...]:
    """Return the speculating variants to test: those of one mode, or of all that the models allow."""
    return tuple(
        Variant(each, replace(settings, mode=each))
        for each in possible
        if each != "off" and mode in (None, each)
    )


def check(runtime: Runtime, tested: Sequence[Variant], effort: VerifyEffort, on_progress: Progress) -> Report:
    """Run both tests and return their results, also if they were cancelled."""
    greedy: dict[str, GreedyResult] = {}
    samples = [
        _Sample(each, effort.sampled_tokens, stream) for stream, each in enumerate(_sampled_variants(tested))
    ]
    total = effort.prompts * effort.greedy_tokens * (len(tested) + 1) + len(samples) * effort.sampled_tokens
    course = _SelfTest(runtime, effort, on_progress, total)
    complete = True
    try:
        _compare_greedy(course, tested, greedy)
        _sample_all(course, samples)
    except Cancelled:
        complete = False
    sampled = tuple(result for sample in samples for result in sample.results())
    return Report(tuple(greedy.values()), sampled, complete)


@dataclass(slots=True)
class _SelfTest:
    """The models that answer, and how far the self-test is, in tokens."""

    runtime: Runtime
    effort: VerifyEffort
    on_progress: Progress
    total: int
    done: int = 0

    def answer(self, words: str, variant: Variant, number: int, sampling: Sampling, seed: int) -> Answer:
        """Report the next step, and answer the prompt of a number."""
        self.on_progress(f"{words}, {variant.name}", self.done / self.total)
        question = Message("user", PROMPTS[number % len(PROMPTS)][1])
        settings = variant.settings_for(number)
        tokens = self.effort.greedy_tokens
        request = Request((question,), sampling, settings, tokens, seed=seed)
        return list(self.runtime.generate_tokens(request))


def answer_rows(
    runtime: Runtime, prompt: Sequence[int], answer: Sequence[int]
) -> Iterator[tuple[int, Logits]]:
    """Yield each place in an answer to a prompt with the logits that its token was chosen by."""
    for index, row in enumerate(runtime.score([*prompt, *answer][:-1])):
        place = index - len(prompt) + 1
        if place >= 0:
            yield place, row


def _rows(runtime: Runtime, prompt: str, answer: Sequence[int]) -> Iterator[tuple[int, Logits]]:
    return answer_rows(runtime, runtime.encode((Message("user", prompt),)), answer)


def _compare_greedy(course: _SelfTest, tested: Sequence[Variant], results: dict[str, GreedyResult]) -> None:
    """Answer one question after another plainly and in each variant, and note what differs."""
    effort = course.effort
    plain = replace(PLAIN, name="plain decoding")
    for number, prompt in enumerate(PROMPTS[: effort.prompts]):
        expected: list[int] = []
        for variant in (plain, *tested):
            words = f"greedy answers: {number + 1} of {effort.prompts}"
            answer = course.answer(words, variant, number, GREEDY, seed=0)
            course.done += effort.greedy_tokens
            found = [token for token, *_ in answer]
            if variant is plain:
                expected = found
                continue
            before = results.get(variant.name, GreedyResult(variant.name, 0, 0, 0, ()))
            drafted = before.drafted + sum(provenance in DRAFTED for _, provenance, _ in answer)
            differences = before.differences
            if found != expected:
                differences += (_difference(course.runtime, prompt, expected, found, effort.near_tie),)
            results[variant.name] = GreedyResult(
                variant.name, before.answers + 1, before.tokens + len(answer), drafted, differences
            )


def _difference(
    runtime: Runtime, prompt: tuple[str, str], expected: list[int], found: list[int], near_tie: float
) -> Difference:
    """Judge the first difference of two unequal answers, and what follows it, by the target's own logits."""
    pairs = zip(expected, found, strict=False)
    shorter = min(len(expected), len(found))
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    gap = worst = inf
    if position < shorter:
        worst = 0.0
        for place, row in _rows(runtime, prompt[1], found):
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


def judge(row: Logits, token: int, uniform: float, *, drafted: bool) -> Judged:
    """Return a token's transforms, its surprise and the variance of that, and whether it was drafted."""
    return *transforms(row, token, uniform), *surprise(row, token), drafted


def verdict(variant: str, rounds: Rounds, judged: Sequence[Judged]) -> DistributionResult:
    """Combine the statistics of the tokens of some rounds."""
    *shapes, excess, variance, drafted = zip(*judged, strict=True)
    p_value = None
    if len(drafted) >= MIN_TOKENS:
        surprised = erfc(abs(sum(excess)) / sqrt(2 * sum(variance))) if any(variance) else 1.0
        p_value = min(1.0, 3 * min(*map(ks_uniform_p_value, shapes), surprised))
    return DistributionResult(variant, rounds, len(drafted), sum(drafted), p_value)


class _Sample:
    """Tokens of one variant at temperature 1; those of rounds with a prepared draft are separate."""

    def __init__(self, variant: Variant, wanted: int, stream: int) -> None:
        self.variant = variant
        self.wanted = wanted
        self.stream = stream
        self._random = np.random.default_rng(stream)
        self._answers = 0
        self._hits = list[Judged]()
        self._others = list[Judged]()

    @property
    def tokens(self) -> int:
        """Return the number of tokens so far, at most the wanted number."""
        return min(self.wanted, len(self._hits) + len(self._others))

    @property
    def is_done(self) -> bool:
        return self.wanted in (self.tokens, self._answers)

    @property
    def is_doubtful(self) -> bool:
        return any(each.p_value is not None and each.p_value < RETEST_BELOW_P for each in self.results())

    def extend(self, course: _SelfTest) -> None:
        """Add an answer."""
        before = self.tokens
        number = self._answers
        words = f"tokens at temperature 1: {before} of {self.wanted}"
        answer = course.answer(words, self.variant, number, FULL, self.stream * 1_000_003 + number)
        tokens = [token for token, *_ in answer]
        for place, row in _rows(course.runtime, PROMPTS[number % len(PROMPTS)][1], tokens):
            token, provenance, is_hit = answer[place]
            group = self._hits if is_hit else self._others
            group.append(judge(row, token, float(self._random.random()), drafted=provenance in DRAFTED))
        self._answers += 1
        course.done += self.tokens - before

    def results(self) -> tuple[DistributionResult, ...]:
        """Test hit rounds and other rounds apart, where there are enough tokens of both."""
        name = self.variant.name
        hits = self._hits
        others = self._others
        if min(len(hits), len(others)) < MIN_TOKENS:
            return (verdict(name, "all", hits + others),) if hits + others else ()
        return verdict(name, "hit", hits), verdict(name, "other", others)


def _sample_all(course: _SelfTest, samples: list[_Sample]) -> None:
    """Sample all tokens, and more of them where chance may have played a trick."""
    _complete(course, samples)
    # fresh answers, so the suspicious ones do not count twice
    wanted = 4 * course.effort.sampled_tokens
    fresh = {
        number: _Sample(sample.variant, wanted, number + len(samples))
        for number, sample in enumerate(samples)
        if sample.is_doubtful
    }
    course.total += wanted * len(fresh)
    _complete(course, fresh.values())
    for number, sample in fresh.items():
        samples[number] = sample


def _complete(course: _SelfTest, samples: Iterable[_Sample]) -> None:
    """Add an answer to each sample alternately, until all have enough tokens."""
    while left := [sample for sample in samples if not sample.is_done]:
        for sample in left:
            sample.extend(course)


def transforms(row: Logits, token: int, uniform: float) -> tuple[float, float]:
    """Return the randomised PIT of a token, likelier tokens first, and in the order of the vocabulary.

    The first shows a wrong temperature or truncation best, the second a draft that is believed too much.
    """
    p = distribution(FullRow(row), FULL, ())
    own = p.probs[token]
    likelier = float(p.probs[p.probs > own].sum())
    equal = float(p.probs[p.probs == own].sum())
    return min(1.0, likelier + uniform * equal), randomised_pit(p, token, uniform)


def surprise(row: Logits, token: int) -> tuple[float, float]:
    """Return the excess surprise of a token over its expectation, in nats, and its variance.

    Their sums detect an overtrusted draft sooner than the transforms, because it writes rare tokens.
    """
    probs = distribution(FullRow(row), FULL, ()).probs
    surprises = -np.log(np.maximum(probs, np.finfo(np.float64).tiny))
    mean = float(probs @ surprises)
    return float(surprises[token]) - mean, float(probs @ (surprises - mean) ** 2)


def _sampled_variants(tested: Sequence[Variant]) -> list[Variant]:
    """Add plain decoding, which tests the test, and both ways to judge a draft model's tokens."""
    found = [PLAIN]
    rules: tuple[Acceptance, ...] = ("rejection", "match")
    for variant in tested:
        if variant.settings.mode == "ngram":
            found.append(variant)
        else:
            found += [Variant(f"{variant.name} {r}", replace(variant.settings, acceptance=r)) for r in rules]
    return found
