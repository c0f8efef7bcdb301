"""One target, at most one draft model, and every way to decode with them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from itertools import count

import numpy as np

from localspec.decoding.drafters.combined import CombinedDrafter, PromptLookupStats, repetitions_of
from localspec.decoding.drafters.draft_state import DraftState
from localspec.decoding.drafters.drafter import Drafter, ModelDrafter, NoDrafter, PromptLookupDrafter
from localspec.decoding.drafters.prompt_lookup import SuffixIndex
from localspec.decoding.drafters.proposer import Proposer
from localspec.decoding.drafters.ssd import SSDDrafter
from localspec.decoding.fallback import ModeFallback, PlainCost, seconds_of
from localspec.decoding.loop import DecodeParams, Decoder, Round
from localspec.decoding.model import LanguageModel
from localspec.decoding.policy import AcceptanceCalibrations, LatencyModel, SpeculationPolicy
from localspec.types import EngineSettings, Mode, ModeChanged, PromptProgress


class Engine:
    """What outlives answers: both caches, the repetitions in the text, and how often drafts were accepted."""

    def __init__(self, target: LanguageModel, draft: LanguageModel | None = None) -> None:
        self._decoder = Decoder(target)
        self._vocabulary = target.vocabulary_size
        self._trunk = None if draft is None else DraftState(draft)
        self._index = SuffixIndex()
        self._calibrations = AcceptanceCalibrations()
        self._learned = PromptLookupStats()
        self._reused: int | None = None  # of the prompt, where a later part of the answer has been decoded

    def cached(self, prompt: Sequence[int]) -> int:
        """Return how many tokens of a prompt the target need not read again."""
        return self._decoder.cached(prompt)

    @property
    def reused(self) -> int:
        """Return how many tokens of the last prompt the target did not read again."""
        return self._decoder.reused if self._reused is None else self._reused

    def forget_after(self, length: int) -> None:
        """Cut the target's cache to so many tokens."""
        self._decoder.forget(length)

    def forget(self) -> None:
        """Empty both caches."""
        self._reused = None
        self._decoder.forget()
        if self._trunk is not None:
            self._trunk.begin([])

    def rounds(
        self,
        prompt: Sequence[int],
        settings: EngineSettings,
        task: DecodeParams,
        experience: LatencyModel,
        seed: int | None = None,
        part: int = 0,
    ) -> Generator[PromptProgress | Round, None, None]:
        """Decode an answer to a prompt, or a later part of an answer to the text so far.

        Drafts and verdicts draw from independent random streams, in every part from others.
        """
        self._reused = self.reused if part else None
        streams = np.random.SeedSequence(seed).spawn(2 * part + 2)
        for_target, for_draft = map(np.random.default_rng, streams[-2:])
        proposer = Proposer(task.sampling, settings, for_draft, self._vocabulary)
        known = self._calibrations
        pace = SpeculationPolicy(experience, known.chosen, settings, deterministic=True)
        if settings.mode == "ngram":
            pace = SpeculationPolicy(experience, known.repeated, settings, deterministic=True)
        elif not proposer.deterministic:
            pace = SpeculationPolicy(experience, known.drawn, settings, deterministic=False)
        drafter = self._drafter(settings, pace, proposer)
        return self._decoder.rounds(prompt, drafter, pace, task, for_target)

    def _drafter(self, settings: EngineSettings, pace: SpeculationPolicy, proposer: Proposer) -> Drafter:
        if settings.mode == "off":
            return NoDrafter()
        if settings.mode == "ngram":
            return PromptLookupDrafter(pace, self._index)
        if self._trunk is None:
            raise ValueError(f"mode {settings.mode} needs a draft model")
        repeats = repetitions_of(settings, self._index, pace, self._learned)
        if settings.mode == "ssd":
            return SSDDrafter(self._trunk, pace, proposer, settings, repeats)
        if repeats is None:
            return ModelDrafter(self._trunk, pace, proposer)
        return CombinedDrafter(self._trunk, pace, proposer, repeats, settings.draft_length)


Rounds = Generator[PromptProgress | Round, None, None]
DecodePart = Callable[[Mode, int], Rounds]
"""Decodes on from the text so far: in which mode, and which part of the answer this is."""


def decode_in_parts(
    decode: DecodePart, mode: Mode, text: list[int], plain: PlainCost, ladder: ModeFallback | None = None
) -> Generator[PromptProgress | Round | ModeChanged, None, None]:
    """Decode an answer, with the ladder changing the mode between two rounds; `text` grows by its tokens.

    A part begins with nothing in flight and with random streams of its own, so that whatever led to the
    change, the tokens that follow are drawn afresh.
    """
    if ladder is not None and ladder.mode != mode:
        yield ModeChanged(ladder.mode, ladder.reason)
    for part in count():
        if ladder is not None:
            mode = ladder.mode
            ladder.begin()
        change: ModeChanged | None = None
        with closing(decode(mode, part)) as events:
            is_first = True
            for event in events:
                if isinstance(event, Round):
                    text += event.tokens
                    if mode == "off" and not is_first:
                        plain.observe(len(text), seconds_of(event.stats) / len(event.tokens))
                    if ladder is not None and not event.is_last:
                        change = ladder.observe(event.stats, len(event.tokens), len(text))
                    is_first = False
                yield event
                if change is not None:
                    break
        if change is None:
            return
        yield change
