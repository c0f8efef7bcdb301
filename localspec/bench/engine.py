"""Run prompts through several ways of decoding in turn, and compare them with their spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from localspec.engines.costs import Experience
from localspec.engines.engine import Engine
from localspec.engines.loop import Round, Task
from localspec.engines.tally import Tally
from localspec.types import EngineSettings, Sampling, Summary

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to decode: an engine of its own, made ready by `prepare` before each answer."""

    name: str
    engine: Engine
    settings: EngineSettings
    experience: Experience
    prepare: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's tokens and the task that it stands for."""

    task: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One answer of one variant."""

    variant: str
    task: str
    prompt: int
    summary: Summary

    @property
    def rate(self) -> float:
        """Return the tokens per second of decoding."""
        return (self.summary.tokens - 1) / self.summary.decode_s


def interleave(
    variants: Sequence[Variant],
    prompts: Sequence[Prompt],
    sampling: Sampling,
    max_tokens: int,
    end_tokens: frozenset[int],
) -> Iterator[Run]:
    """Answer every prompt with every variant, one variant after another, each time from empty caches.

    The order of the variants moves on by one with each prompt, so that drift of the machine hits all alike.
    """
    for number, prompt in enumerate(prompts):
        shift = number % len(variants)
        for variant in [*variants[shift:], *variants[:shift]]:
            variant.engine.forget()
            variant.prepare()
            summary = _answer(variant, prompt, sampling, max_tokens, end_tokens, number)
            if summary.tokens > 1:
                yield Run(variant.name, prompt.task, number, summary)


def _answer(
    variant: Variant,
    prompt: Prompt,
    sampling: Sampling,
    max_tokens: int,
    end_tokens: frozenset[int],
    seed: int,
) -> Summary:
    settings = variant.settings
    task = Task(sampling, settings.acceptance, settings.draft_length, max_tokens, end_tokens)
    tally = Tally(len(prompt.tokens), settings.mode)
    started = time.perf_counter()
    for event in variant.engine.rounds(prompt.tokens, settings, task, variant.experience, seed):
        if isinstance(event, Round):
            tally.add(event.stats, len(event.tokens), time.perf_counter() - started)
    return tally.summary()


@dataclass(frozen=True, slots=True)
class Figures:
    """What a variant did over some prompts; times are means per round."""

    tokens_per_s: float
    tokens_per_round: float
    hit_rate: float | None
    acceptance: float | None
    drafted: float
    verify_s: float
    draft_s: float
    wait_s: float
    python_s: float

    @property
    def of_bound(self) -> float:
        """Return the share of the time that only the target, and drafting on misses, took.

        The bound is the same rounds without waiting for the drafter and without Python.
        """
        work = self.verify_s + self.draft_s
        return work / (work + self.wait_s + self.python_s)


def figures(runs: Sequence[Run]) -> Figures:
    """Add up some runs of one variant."""
    summaries = [run.summary for run in runs]
    rounds = sum(summary.rounds for summary in summaries)
    seconds = sum(summary.decode_s for summary in summaries)
    tokens = sum(summary.tokens - 1 for summary in summaries)
    drafted = sum(summary.drafted for summary in summaries)
    hits, misses = sum(s.hits for s in summaries), sum(s.misses for s in summaries)
    return Figures(
        tokens_per_s=tokens / seconds,
        tokens_per_round=tokens / rounds,
        hit_rate=hits / (hits + misses) if misses + hits else None,
        acceptance=sum(s.accepted for s in summaries) / drafted if drafted else None,
        drafted=drafted / rounds,
        verify_s=sum(s.verify_s for s in summaries) / rounds,
        draft_s=sum(s.draft_s for s in summaries) / rounds,
        wait_s=sum(s.wait_s for s in summaries) / rounds,
        python_s=sum(s.python_s for s in summaries) / rounds,
    )


def ratio(runs: Sequence[Run], baseline: Sequence[Run]) -> tuple[float, float, float]:
    """Return the speed of some runs in that of a baseline, with a bootstrap 95% interval over prompts."""
    by_prompt = {run.prompt: run.summary for run in baseline}
    pairs = [(run.summary, by_prompt[run.prompt]) for run in runs if run.prompt in by_prompt]
    # Seconds per token of each, so that answers of different length weigh alike.
    mine = np.array([s.decode_s / (s.tokens - 1) for s, _ in pairs])
    theirs = np.array([s.decode_s / (s.tokens - 1) for _, s in pairs])
    picks = np.random.default_rng(0).integers(len(pairs), size=(RESAMPLES, len(pairs)))
    drawn = theirs[picks].sum(axis=1) / mine[picks].sum(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(theirs.sum() / mine.sum()), float(low), float(high)
