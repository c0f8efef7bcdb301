"""One target, at most one draft model, and every way to decode with them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count

from localspec.decoding.conversations import Conversations, worth
from localspec.decoding.drafters.draft_worker import in_thread
from localspec.decoding.drafters.drafter import Drafter, DraftState, failing
from localspec.decoding.drafters.model_drafter import HeadDrafter, ModelDrafter
from localspec.decoding.drafters.prompt_lookup import (
    PromptLookup,
    PromptLookupDrafter,
    PromptLookupStats,
    SuffixIndex,
)
from localspec.decoding.drafters.proposer import Proposer, RowProposer
from localspec.decoding.drafters.speculation_cache import SpeculationCache
from localspec.decoding.drafters.ssd import AheadDrafter, SSDDrafter
from localspec.decoding.fallback import ModeFallback, PlainCost
from localspec.decoding.loop import Decoder
from localspec.decoding.model import LanguageModel
from localspec.decoding.policy import AcceptanceCalibration, LatencyModel, SpeculationPolicy
from localspec.decoding.prefixes import common_prefix
from localspec.decoding.rounds import DecodeParams, Round
from localspec.decoding.sampling import deciding
from localspec.decoding.verify import random_streams
from localspec.errors import DraftError
from localspec.types.events import ModeChanged, PromptProgress
from localspec.types.request import EngineSettings, Mode

PROMPT_END = 16  # tokens at the end of a prompt that the next one may spell otherwise
CATCH_UP = 64  # tokens that a draft model reads of what it missed while its mode rested

Rounds = Generator[PromptProgress | Round, None, None]
MakeAheadDrafter = Callable[[SpeculationCache, int, PromptLookup | None], AheadDrafter]
"""Makes a worker that drafts ahead for the outcomes in a cache, with a maximum draft length."""


class Drafters:
    """What drafting keeps between answers: the draft model's text, the lookup index, what was learned."""

    def __init__(self, state: DraftState | None, ahead: MakeAheadDrafter | None = None) -> None:
        """Take the draft model's text, and what drafts ahead of the target if no thread of its own does."""
        self.state = state
        self.reads_late = False  # whether the draft model would slow the target down at the prompt
        self.failure = ""
        """Why the draft model is left out from here on."""
        self._ahead = ahead
        self.index = SuffixIndex()
        self._lookup_stats = PromptLookupStats()
        # by whether drafts are copied, take the best token, and follow rules: else they draw from q
        self._calibrations: dict[tuple[bool, bool, bool], AcceptanceCalibration] = {}

    def policy(
        self, latency: LatencyModel, settings: EngineSettings, *, deterministic: bool, ruled: bool = False
    ) -> SpeculationPolicy:
        """Return the stopping rules; `deterministic` drafts take the best token and draw none.

        Those that are `ruled` by a grammar or a bias are learned apart: some of their tokens have no choice.
        """
        copied = settings.mode == "ngram"
        kind = (copied, deterministic or copied, ruled)
        calibration = self._calibrations.setdefault(kind, AcceptanceCalibration())
        return SpeculationPolicy(latency, calibration, settings, deterministic or copied)

    def drafter(self, settings: EngineSettings, policy: SpeculationPolicy, proposer: Proposer) -> Drafter:
        """Return the drafter of an answer."""
        if settings.mode == "off":
            return Drafter()
        if settings.mode == "ngram":
            return PromptLookupDrafter(policy, self.index)
        if self.state is None:
            raise ValueError(f"mode {settings.mode} needs a draft model")
        if self.failure:
            raise DraftError(self.failure)
        settings = replace(settings, draft_length=min(settings.draft_length, self.state.model.max_draft))
        uses_lookup = settings.fallback == "ngram"
        lookup = PromptLookup(self.index, policy, self._lookup_stats) if uses_lookup else None
        is_head = self.state.model.is_head
        if settings.mode == "ssd" and not is_head:  # a head waits for its target's hidden states
            cache = SpeculationCache(self.state, policy, proposer, settings)
            return (self._ahead or self._in_thread)(cache, settings.draft_length, lookup)
        kind = HeadDrafter if is_head else ModelDrafter
        return kind(self.state, policy, proposer, settings.draft_length, lookup)

    def _in_thread(
        self, cache: SpeculationCache, draft_length: int, lookup: PromptLookup | None
    ) -> AheadDrafter:
        return SSDDrafter(in_thread(cache), draft_length, lookup, reads_late=self.reads_late)


class Engine:
    """What outlives answers: both caches, the index of the text, and how often drafts were accepted."""

    def __init__(
        self, target: LanguageModel, draft: LanguageModel | None = None, beside: Engine | None = None
    ) -> None:
        """Take the models; those `beside` another engine save conversations together with it."""
        self.decoder = Decoder(target)
        self._vocabulary = target.vocabulary_size
        state = None if draft is None else DraftState(draft)
        self.drafters = Drafters(state)
        caches: list[Decoder | DraftState] = [self.decoder] if state is None else [self.decoder, state]
        store = None if beside is None else beside.conversations
        self.conversations: Conversations = Conversations(*caches, beside=store)
        self._reused: int | None = None  # of the prompt, where a later segment of the answer has been decoded
        self._settled = 0  # tokens of the last prompt, or of what was read ahead before an unsent question
        self._is_unsent = False  # the question at the end of the cached text

    @property
    def reused(self) -> int:
        """Return the number of cached tokens of the last prompt."""
        return self.decoder.reused if self._reused is None else self._reused

    def turn_to(self, text: Sequence[int], *, evicts: bool = True, elsewhere: int = 0) -> bool:
        """Prepare the caches for a text as `Conversations.turn_to` does.

        Of the conversation that goes on, an unsent question that has changed is dropped: it is worth no copy.
        """
        shared = common_prefix(self.decoder.cached_tokens(), text)
        if self._is_unsent and self._goes_on(shared):
            self.decoder.forget(shared)
        return self.conversations.turn_to(text, evicts=evicts, elsewhere=elsewhere)

    def loses(self, text: Sequence[int]) -> bool:
        """Return whether a text would cost another conversation a cache that is worth a copy."""
        held = self.decoder.cached_tokens()
        shared = common_prefix(held, text)
        is_this_one = self._is_unsent and self._goes_on(shared)
        return not is_this_one and len(held) - shared >= worth(held)

    def _goes_on(self, shared: int) -> bool:
        """Return whether a text that shares `shared` tokens with the cached one is of its conversation."""
        return shared > self._settled - PROMPT_END

    def forget(self, *, saves: bool = True) -> None:
        """Empty both caches; save those of a conversation if that is worth it and wanted."""
        if saves:
            self.conversations.turn_to(())
        self._reused = None
        self.decoder.forget()
        if self.drafters.state is not None and not self.drafters.failure:
            self.drafters.state.begin([])

    def rounds(
        self,
        prompt: Sequence[int],
        settings: EngineSettings,
        params: DecodeParams,
        latency: LatencyModel,
        seed: int | None = None,
        segment: int = 0,
    ) -> Rounds:
        """Decode an answer to a prompt, or a later segment of an answer to the text so far.

        Drafts and verdicts draw from independent random streams: see `random_streams`.
        """
        self._reused = self.reused if segment else None
        self._settled = self._settled if segment else len(prompt)
        self._is_unsent = False
        for_target, for_draft = random_streams(seed, len(prompt) - params.answer_start, segment)
        rules = params.rules
        drafted = rules.copy() if rules is not None and settings.mode == "ssd" else rules  # in its thread
        start = params.answer_start
        state = self.drafters.state
        is_larger = state is not None and state.model.vocabulary_size > self._vocabulary
        proposer = RowProposer(
            params.sampling, settings, for_draft, self._vocabulary if is_larger else None, drafted, start
        )
        candidates = _candidates(params)
        self.decoder.model.choose(candidates)
        self.drafters.index.rules = rules
        policy = self.drafters.policy(
            latency,
            settings,
            deterministic=proposer.deterministic,
            ruled=rules is not None and not rules.are_lazy,
        )
        if state is not None:  # rules, penalties and heads look at the whole text
            state.model.choose(proposer.candidates)
            is_head = state.model.is_head
            may_skip = segment > 0 and not proposer.needs_history and not is_head
            state.most_read = CATCH_UP if may_skip else None
            proposer.leaps = rules is not None and not is_head  # a head needs its own state before each
        drafter = self.drafters.drafter(settings, policy, proposer)
        params = replace(params, candidates=candidates)
        learning = None if settings.mode == "off" else policy
        return self._watched(self.decoder.rounds(prompt, drafter, learning, params, for_target))

    def _watched(self, rounds: Rounds) -> Rounds:
        """Decode, and leave the draft model out from where it fails on.

        A later segment may still read the prompt: its progress is that of the answer.
        """
        first_reused = self._reused
        try:
            with closing(rounds):
                for event in rounds:
                    if first_reused is None or not isinstance(event, PromptProgress):
                        yield event
                    elif event.done:  # the first segment has told of the start
                        yield event.since(first_reused)
        except DraftError as error:
            self.leave_out_draft(error)
            raise

    def read_ahead(
        self,
        text: Sequence[int],
        settled: int,
        chunk: int,
        *,
        drafts: bool,
        kept_as: str | None = "",
    ) -> Iterator[int]:
        """Read the beginning of a later prompt into the target's cache, and for `drafts` into the draft's.

        What follows its first `settled` tokens is of an unsent question, which may change. Yields the tokens
        in the target's cache, after each chunk of either. Reads nothing where that would cost another
        conversation its cache: of this one only an answer goes that the text shows in another way. Raises
        `Cancelled`.
        """
        is_this_one = self._goes_on(common_prefix(self.decoder.cached_tokens(), text))
        if not is_this_one and not self.turn_to(text, evicts=False):
            return
        self._settled = settled
        self._is_unsent = True
        self.conversations.kept_as = kept_as
        state = self.drafters.state if drafts and not self.drafters.failure else None
        head = state.model if state is not None and state.model.is_head else None
        try:
            if state is not None and head is not None:
                state.begin(text)
                head.follow(on=True)
            yield from self.decoder.read_ahead(text, settled, chunk)
        finally:
            if head is not None:
                head.follow(on=False)
        if state is not None and head is None:
            try:
                with failing(state.model.name):
                    for _ in state.read_ahead(text, settled, chunk):
                        yield len(text)
            except DraftError as error:
                self.leave_out_draft(error)

    def leave_out_draft(self, error: DraftError) -> None:
        """Work without the draft model from here on, and its cache."""
        self.drafters.failure = str(error)
        self.conversations.forget_draft()


def _candidates(params: DecodeParams) -> int | None:
    """Return the number of the target's candidates that decide an answer; None: all logits are needed.

    Where lazy rules apply, all are needed, too.
    """
    is_ruled = params.rules is not None and not params.rules.are_lazy
    needs_all = is_ruled or params.top_logprobs is not None
    return None if needs_all else deciding(params.sampling)


DecodeSegment = Callable[[Mode, int], Rounds]
"""Decodes on from the text so far: in which mode, and which segment of the answer this is."""


def decode_in_segments(
    decode: DecodeSegment,
    mode: Mode,
    text: list[int],
    plain: PlainCost,
    mode_fallback: ModeFallback | None = None,
    first: int = 0,
) -> Generator[PromptProgress | Round | ModeChanged, None, None]:
    """Decode an answer, with the fallback changing the mode between two rounds; `text` grows by its tokens.

    An answer returns to a higher mode at most once, and not after it has left one: modes do not alternate.
    If the draft model fails, the answer continues with plain decoding.
    It continues with segment number `first` if an earlier one was left after a round.
    A segment begins without pending drafts, and every position of the text has its own random numbers, so
    the tokens after a change are independent of its reason.
    """
    if mode_fallback is not None and mode_fallback.mode != mode:
        yield ModeChanged(mode_fallback.mode, mode_fallback.reason)
    for segment in count(first):
        if mode_fallback is not None:
            mode = mode_fallback.mode
            mode_fallback.may_return = not segment
            mode_fallback.begin()
        change: ModeChanged | None = None
        try:
            with closing(decode(mode, segment)) as events:
                is_first = True
                for event in events:
                    if isinstance(event, Round):
                        text += event.tokens
                        if mode in {"off", "ngram"} and not event.stats.drafted and not is_first:
                            plain.observe(len(text), event.stats.seconds / len(event.tokens))
                        if mode_fallback is not None and not event.is_last:
                            change = mode_fallback.observe(event.stats, len(event.tokens), len(text))
                        is_first = False
                    yield event
                    if change is not None:
                        break
        except DraftError as error:
            mode = "off"
            mode_fallback = None
            change = ModeChanged("off", str(error), draft_failed=True)
        if change is None:
            return
        yield change
