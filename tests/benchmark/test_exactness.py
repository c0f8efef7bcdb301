from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.benchmark import exactness
from localspec.benchmark.exactness import (
    NEAR_TIE,
    QUICK,
    Progress,
    Report,
    Variant,
    VerifyEffort,
    variants,
)
from localspec.errors import Cancelled
from localspec.inference.runtime import Runtime
from localspec.types.drafts import Provenance
from localspec.types.models import ModelInfo
from localspec.types.request import EngineSettings, Message, Mode, Request

Row = NDArray[np.float32]
Bend = Callable[[str, bool, list[int], Row], Row]
"""Changes the logits that a mode chooses by: (mode, whether the round is a hit, text so far, logits)."""

VOCABULARY, END = 40, 0
EFFORT = VerifyEffort(prompts=6, greedy_tokens=40, sampled_tokens=1200)
HAS_DRAFT = variants(EngineSettings(), None, ("off", "ngram", "sd", "ssd"))


def straight(_mode: str, _is_hit: bool, _text: list[int], row: Row) -> Row:
    return row


def random_table(seed: int, spread: float) -> Row:
    return np.random.default_rng(seed).normal(0, spread, (VOCABULARY, VOCABULARY)).astype(np.float32)


@dataclass
class MarkovRuntime:
    """Decodes a Markov chain of order one; a bent one does not follow its own logits."""

    bend: Bend = straight
    stop_early: bool = False
    draft: ModelInfo | None = None
    seeds: list[int | None] = field(default_factory=list)  # of sampled answers
    table: Row = field(
        default_factory=lambda: (
            np.random.default_rng(3).normal(0, 2, (VOCABULARY, VOCABULARY)).astype(np.float32)
        )
    )

    def encode(self, prompt: tuple[Message, ...] | str) -> list[int]:
        text = prompt if isinstance(prompt, str) else prompt[-1].content
        return [1 + ord(letter) % (VOCABULARY - 1) for letter in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(ord("A") + token) for token in tokens)

    def score(self, tokens: Sequence[int]) -> Iterator[Row]:
        for token in tokens:
            yield self.table[token]

    def generate_tokens(self, request: Request) -> Iterator[tuple[int, Provenance, bool]]:
        text, random = self.encode(request.prompt), np.random.default_rng(request.seed)
        mode, limit = request.settings.mode, request.max_tokens or 10
        for place in range(limit - (self.stop_early and mode == "ssd")):
            is_hit = mode == "ssd" and place // 3 % 2 == 0
            row = self.bend(mode, is_hit, text, self.table[text[-1]])
            if request.sampling.temperature:
                self.seeds += [request.seed] * (place == 0)
                probs = np.exp(row - row.max(), dtype=np.float64)
                token = int(probs.cumsum().searchsorted(random.random() * probs.sum(), side="right"))
            else:
                token = int(row.argmax())
            text.append(token)
            yield token, Provenance.PREPARED if is_hit else Provenance.TARGET, is_hit
            if token == END:
                return


def check(
    runtime: MarkovRuntime, tested: Sequence[Variant], effort: VerifyEffort, on_progress: Progress
) -> Report:
    return exactness.check(cast("Runtime", runtime), tested, effort, on_progress)


def quiet(_words: str, _done: float) -> None:
    pass


def test_an_exact_runtime_passes_everything() -> None:
    report = check(MarkovRuntime(), HAS_DRAFT, EFFORT, quiet)
    assert report.exact
    assert [(r.variant, r.answers, r.differences) for r in report.greedy] == [
        ("ngram", 6, ()),
        ("sd", 6, ()),
        ("ssd", 6, ()),
    ]
    assert [(r.variant, r.rounds) for r in report.sampled] == [
        ("off", "all"),
        ("ngram", "all"),
        ("sd rejection", "all"),
        ("sd match", "all"),
        ("ssd rejection", "hit"),
        ("ssd rejection", "other"),
        ("ssd match", "hit"),
        ("ssd match", "other"),
    ]
    assert all(r.p_value is not None and r.tokens > 500 for r in report.sampled)
    assert all(r.drafted == (r.tokens if r.rounds == "hit" else 0) for r in report.sampled)
    assert [r.drafted > 0 for r in report.greedy] == [False, False, True]


def test_progress_goes_from_nothing_to_almost_all() -> None:
    heard: list[float] = []
    check(MarkovRuntime(), HAS_DRAFT, EFFORT, lambda _words, done: heard.append(done))
    assert heard == sorted(heard)
    assert heard[0] == 0
    assert 0.95 < heard[-1] < 1


@pytest.mark.slow
def test_doubt_makes_the_test_longer() -> None:
    heard: list[float] = []
    bent = MarkovRuntime(trusts_the_draft("ssd", hits=True))
    report = check(bent, HAS_DRAFT, EFFORT, lambda _words, done: heard.append(done))
    assert heard != sorted(heard)
    assert 0.95 < heard[-1] < 1
    assert sum(r.tokens for r in report.sampled if r.variant == "ssd match") >= 4 * EFFORT.sampled_tokens
    assert len(set(bent.seeds)) == len(bent.seeds)  # what raised the doubt does not count twice


@pytest.mark.parametrize(("share", "sampled"), [(0.0, 0), (0.04, 0), (0.5, 8)])
def test_a_test_that_is_stopped_reports_what_it_found(share: float, sampled: int) -> None:
    def stop(_words: str, done: float) -> None:
        if done >= share:
            raise Cancelled("enough")

    report = check(MarkovRuntime(), HAS_DRAFT, EFFORT, stop)
    assert not report.complete
    assert len(report.greedy) == (3 if share else 0)
    assert len(report.sampled) == sampled
    assert all(result.p_value is not None for result in report.sampled)


def test_every_kind_of_prompt_is_answered_with_and_without_forced_drafts() -> None:
    variant = Variant("sd", EngineSettings(mode="sd"))
    forced = [variant.settings_for(number).min_confidence is not None for number in range(24)]
    for kind in range(4):
        assert {forced[kind], forced[kind + 4]} == {False, True}
    for prompt in range(12):
        assert {forced[prompt], forced[prompt + 12]} == {False, True}
    own = Variant("sd", EngineSettings(mode="sd", min_confidence=0.3))
    assert own.settings_for(1) == own.settings


def trusts_the_draft(mode: Mode, *, hits: bool) -> Bend:
    """Return a bend that takes a noisy copy's word for it in one mode, in hit rounds or in the others."""
    noise = random_table(seed=4, spread=1.5)

    def bend(current: str, is_hit: bool, text: list[int], row: Row) -> Row:
        return row + noise[text[-1]] if current == mode and is_hit == hits else row

    return bend


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "hits", "failing"),
    [
        ("ngram", False, {("ngram", "all")}),
        ("sd", False, {("sd rejection", "all"), ("sd match", "all")}),
        ("ssd", True, {("ssd rejection", "hit"), ("ssd match", "hit")}),
        ("ssd", False, {("ssd rejection", "other"), ("ssd match", "other")}),
    ],
)
def test_a_bias_is_found_and_in_the_right_rounds(
    mode: Mode, hits: bool, failing: set[tuple[str, str]]
) -> None:
    report = check(MarkovRuntime(trusts_the_draft(mode, hits=hits)), HAS_DRAFT, EFFORT, quiet)
    assert {(r.variant, r.rounds) for r in report.sampled if not r.passed} == failing
    assert not report.exact


@pytest.mark.slow
def test_a_temperature_that_is_off_is_found() -> None:
    def cooler(mode: str, _is_hit: bool, _text: list[int], row: Row) -> Row:
        return row * np.float32(1.25) if mode == "sd" else row

    results = check(MarkovRuntime(cooler), HAS_DRAFT[1:2], EFFORT, quiet).sampled
    assert [result.passed for result in results] == [True, False, False]


def swaps(gap: float, later: float = 0.0) -> tuple[MarkovRuntime, Bend]:
    """Return a runtime whose best two tokens after any token are `gap` apart, and one that takes the second.

    From the second token on it takes one that is `later` below the best.
    """
    runtime = MarkovRuntime()
    table = runtime.table.copy()
    order = table.argsort(axis=1)
    rows = np.arange(VOCABULARY)
    best = table[rows, order[:, -1]] + 20  # everything else is far away
    table[rows, order[:, -1]] = best
    table[rows, order[:, -2]] = best - np.float32(gap)
    table[rows, order[:, -3]] = best - np.float32(later or 10)
    table[:, END] = -50
    runtime.table = table
    start = len(runtime.encode(QUESTION))

    def bend(mode: str, _is_hit: bool, text: list[int], row: Row) -> Row:
        if mode != "ssd":
            return row
        changed = row.copy()
        if len(text) == start:
            changed[row.argmax()] = -100
        elif len(text) == start + 1 and later:
            changed[row.argsort()[-2:]] = -100
        return changed

    return runtime, bend


QUESTION = (Message("user", "Write a Python function that reverses a string."),)
ONE_PROMPT = replace(EFFORT, prompts=1, greedy_tokens=8, sampled_tokens=50)
SSD = (Variant("ssd", EngineSettings(mode="ssd")),)


@pytest.mark.parametrize(
    ("gap", "later", "passes"),
    [(0.01, 0.0, True), (NEAR_TIE * 1.2, 0.0, False), (0.01, 0.9, False), (1.0, 0.0, False)],
)
def test_a_near_tie_counts_as_equal_if_the_rest_is_greedy_too(gap: float, later: float, passes: bool) -> None:
    runtime, bend = swaps(gap, later)
    runtime.bend = bend
    [result] = check(runtime, SSD, ONE_PROMPT, quiet).greedy
    [difference] = result.differences
    assert result.passed == passes
    assert difference.near_tie == passes
    assert (difference.kind, difference.position) == ("code", 0)
    assert difference.gap == pytest.approx(gap, abs=1e-4)
    assert difference.worst_gap == pytest.approx(max(gap, later), abs=1e-4)
    assert difference.expected != difference.found


def test_plain_decoding_that_is_wrong_is_not_a_near_tie() -> None:
    runtime, bend = swaps(1.0)
    runtime.bend = lambda mode, *more: bend("ssd" if mode == "off" else "off", *more)
    [result] = check(runtime, SSD, ONE_PROMPT, quiet).greedy
    assert not result.passed
    assert result.differences[0].gap == pytest.approx(-1.0, abs=1e-4)
    assert result.differences[0].worst_gap == 0


def test_the_tolerance_can_be_widened() -> None:
    runtime, bend = swaps(0.2)
    runtime.bend = bend
    [result] = check(runtime, SSD, replace(ONE_PROMPT, near_tie=0.3), quiet).greedy
    assert result.passed


def test_an_answer_that_stops_early_differs() -> None:
    [result] = check(MarkovRuntime(stop_early=True), SSD, ONE_PROMPT, quiet).greedy
    assert not result.passed
    assert result.differences[0].found == ""


def test_too_few_tokens_are_not_verdict() -> None:
    effort = replace(EFFORT, sampled_tokens=20, greedy_tokens=10)
    report = check(MarkovRuntime(trusts_the_draft("ssd", hits=True)), SSD, effort, quiet)
    assert {(result.p_value, result.passed) for result in report.sampled} == {(None, True)}


def test_rounds_of_few_tokens_are_judged_with_the_others() -> None:
    def astray(mode: str, _is_hit: bool, _text: list[int], row: Row) -> Row:
        return -row if mode == "ssd" else row

    for bend, passed in ((straight, True), (astray, False)):
        sampled = check(MarkovRuntime(bend), SSD, replace(EFFORT, sampled_tokens=70), quiet).sampled[1:]
        assert {(r.passed, r.p_value is None) for r in sampled} == {(passed, False)}


@pytest.mark.parametrize(
    ("mode", "possible", "names"),
    [
        (None, ("off", "ngram", "sd", "ssd"), ["ngram", "sd", "ssd"]),
        (None, ("off", "ngram", "sd"), ["ngram", "sd"]),
        (None, ("off",), []),
        ("sd", ("off", "ngram", "sd"), ["sd"]),
        ("ssd", ("off", "ngram", "sd"), []),
    ],
)
def test_variants(mode: Mode | None, possible: tuple[Mode, ...], names: list[str]) -> None:
    found = variants(EngineSettings(draft_length=3), mode, possible)
    assert [variant.name for variant in found] == names
    assert [variant.settings.mode for variant in found] == names
    assert all(variant.settings.draft_length == 3 for variant in found)


def test_the_quick_test_is_smaller() -> None:
    assert QUICK.prompts < VerifyEffort().prompts
    assert QUICK.sampled_tokens < VerifyEffort().sampled_tokens
