"""The decoding loop: draft, verify, commit."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

import numpy as np

from localspec.decoding.drafters.drafter import Drafter, failing
from localspec.decoding.model import EFFICIENT_READ, LanguageModel
from localspec.decoding.policy import SpeculationPolicy
from localspec.decoding.prefixes import common_prefix
from localspec.decoding.rounds import DecodeParams, Round, RoundTimes, close_round, emitted_tokens
from localspec.decoding.sampling import score
from localspec.decoding.verify import BufferedUniforms, Judge, judge
from localspec.errors import LogitsError
from localspec.types.candidates import Rows
from localspec.types.drafts import Draft
from localspec.types.events import PromptProgress, TokenScore

READ_CHUNK = 512  # tokens of a prompt between two reports
MIN_CHECKPOINT = 32  # tokens read ahead whose end is worth a checkpoint
MIN_REREAD = 128  # cached tokens that are read again; from here on their end is worth a checkpoint


class Decoder:
    """A target model with its cached text; it outlives answers."""

    def __init__(self, target: LanguageModel, judge: Judge = judge) -> None:
        """Take a model, and what judges a draft by its candidates."""
        self.model = target
        self._judge = judge
        self._held: list[int] = []
        self.reused = 0  # tokens of the last prompt that were not read again

    def forget(self, length: int = 0) -> None:
        """Empty the cache from a position on, or as far before it as the model can go back."""
        self._forget(self.model.rewindable(min(length, len(self.cached_tokens()))))
        self.reused = 0

    def cached_tokens(self) -> list[int]:
        """Return the cached text."""
        return self._held[: self.model.length()]

    def set_cached(self, text: Sequence[int]) -> None:
        """Record the cached prefix of a text."""
        self._held = [*text[: self.model.length()]]

    def cached(self, prompt: Sequence[int]) -> int:
        """Return the number of reusable tokens of a prompt; the last is processed again for its logits."""
        return min(common_prefix(self.cached_tokens(), prompt), len(prompt) - 1)

    def rounds(
        self,
        prompt: Sequence[int],
        drafter: Drafter,
        policy: SpeculationPolicy | None,
        params: DecodeParams,
        random: np.random.Generator,
    ) -> Generator[PromptProgress | Round, None, None]:
        """Decode after a prompt until an end token, `task.max_tokens` or the end of the context.

        The first round verifies an empty draft, so the first token does not wait for the drafter. A `policy`
        learns what rounds take.
        Raises `DraftError` between two rounds if the drafter fails, `EngineError` if the target fails.
        """
        text = list(prompt)
        draft = Draft()
        emitted = 0
        uniforms = BufferedUniforms(random)
        try:
            with failing(drafter.model_name):
                drafter.begin(text)
            clock = _Clock(self.model, drafter)
            free = replace(params, rules=None)
            ruled = params
            params = self._prepared(ruled, free, text, draft)
            rows = yield from self._read(text, tells_all=params.tells_reading)
            while True:
                try:
                    outcome = self._judge(draft, rows, text, params, uniforms)
                except LogitsError:
                    raise LogitsError(f"the model {self.model.name}") from None
                tokens = emitted_tokens(draft, outcome, params.max_tokens - emitted, params.end_tokens)
                scores = _scores(tokens, rows, params.top_logprobs)
                self._forget(len(text) + min(outcome.accepted, len(tokens)))
                text += tokens
                is_first = not emitted
                emitted = emitted + len(tokens)
                done = close_round(draft, outcome, tokens, clock.lap(), None if is_first else policy)
                room = min(params.max_tokens - emitted, self.model.context_size - len(text))
                is_last = tokens[-1] in params.end_tokens or room <= 0
                if is_last or scores:
                    done = replace(done, is_last=is_last, scores=scores)
                yield done
                clock.restart()
                if is_last:
                    return
                with failing(drafter.model_name):
                    drafter.commit(outcome)
                    draft = drafter.draft(min(params.draft_length, room - 1, self.model.max_draft))
                params = self._prepared(ruled, free, text, draft)
                rows = self._evaluate([text[-1], *draft.tokens], len(draft.tokens) + 1)
        finally:
            drafter.end()

    def _prepared(
        self, ruled: DecodeParams, free: DecodeParams, text: Sequence[int], draft: Draft
    ) -> DecodeParams:
        """Return the parameters for judging a draft: those without rules where lazy ones refuse nothing.

        The model returns all logits only where they may.
        """
        rules = ruled.rules
        if rules is None or not rules.are_lazy:
            return ruled
        applies = rules.apply(text, draft.tokens)
        self.model.choose(None if applies else free.candidates)
        return ruled if applies else free

    def read_ahead(self, text: Sequence[int], settled: int, chunk: int) -> Iterator[int]:
        """Read what the cache lacks of the beginning of a prompt; its end stays reachable for `truncate`.

        So does the end of its first `settled` tokens, because what follows may change.
        Yields the cached tokens after each chunk. Raises what `LanguageModel.evaluate` raises.
        """
        self.reused = len(text)
        if common_prefix(self.cached_tokens(), text) < len(text):
            for _ in self._read_pieces(text, chunk, settled):
                yield len(self._held)
            self._evaluate(text[len(self._held) :], 0)
            if len(text) == settled or len(text) - self.reused >= MIN_CHECKPOINT:
                self.model.checkpoint(pinned=len(text) == settled)
        yield len(text)

    def _read(
        self, prompt: Sequence[int], *, tells_all: bool = False
    ) -> Generator[PromptProgress, None, Rows]:
        """Read what the cache lacks of a prompt; tell of the whole chunks, or also of its start and end."""
        if tells_all:
            cached = self.model.rewindable(self.cached(prompt))
            yield PromptProgress(0, len(prompt) - cached, cached)
        yield from self._read_pieces(prompt, READ_CHUNK)
        rows = self._evaluate(prompt[len(self._held) :], 1)
        if tells_all:
            new = len(prompt) - self.reused
            yield PromptProgress(new, new, self.reused)
        return rows

    def _read_pieces(
        self, prompt: Sequence[int], chunk: int, settled: int = 0
    ) -> Generator[PromptProgress, None, None]:
        """Read what the cache lacks of a prompt, all but the last chunk.

        Where the prompt differs from the cached text, the next one may differ again: clients put the time,
        or what a search found, before the last question. It certainly may after the `settled` tokens.
        """
        changed = self.cached(prompt)
        self._forget(self.model.rewindable(changed))
        cached = self.reused = len(self._held)
        turns = {changed} if changed - cached >= MIN_REREAD else set()
        if 0 < settled == cached:
            self.model.checkpoint(pinned=True)
        elif cached < settled < len(prompt):
            turns.add(settled)
        for end in sorted(turns.union(_ends(cached, len(prompt), chunk))):
            self._evaluate(prompt[len(self._held) : end], 0)
            if end in turns:
                self.model.checkpoint(pinned=end == settled)
            yield PromptProgress(end - cached, len(prompt) - cached, cached)

    def _evaluate(self, tokens: Sequence[int], logits: int) -> Rows:
        """Evaluate tokens, with `_held` right even if it is interrupted."""
        self._held += tokens
        try:
            if logits > 1:  # a draft, which may be taken back
                self.model.mark()
            return self.model.evaluate(tokens, logits)
        finally:
            del self._held[self.model.length() :]

    def _forget(self, length: int) -> None:
        self.model.truncate(length)
        del self._held[self.model.length() :]


def _ends(start: int, end: int, chunk: int) -> list[int]:
    """Return the ends of a prompt's chunks except the last one, which is not left inefficiently short."""
    ends = [*range(start + chunk, end, chunk)]
    if ends and end - ends[-1] < EFFICIENT_READ <= chunk // 2:
        ends[-1] -= EFFICIENT_READ
    return ends


def _scores(tokens: Sequence[int], rows: Rows, top: int | None) -> tuple[TokenScore, ...]:
    """Return the target's log-probabilities of tokens, with `count` of its best; empty for None."""
    if top is None:
        return ()
    scored = [(token, *score(row.logits, token, top)) for token, row in zip(tokens, rows, strict=False)]
    return tuple(
        TokenScore(token, b"", logprob, tuple((each, b"", its) for each, its in best))
        for token, logprob, best in scored
    )


class _Clock:
    """Split a round's time among the target, the draft model, waiting and Python."""

    def __init__(self, target: LanguageModel, drafter: Drafter) -> None:
        self._target = target
        self._drafter = drafter
        self._last = self._totals()
        self._started = time.perf_counter()

    def restart(self) -> None:
        """Leave out the time that the reader of the rounds took."""
        self._started = time.perf_counter()

    def lap(self) -> RoundTimes:
        """End a round and return its times."""
        now = self._totals()
        last = self._last
        self._last = now
        verify_s = now[0] - last[0]
        draft_s = now[1] - last[1]
        wait_s = now[2] - last[2]
        python_s = time.perf_counter() - self._started - verify_s - draft_s - wait_s
        # a call counts where it ends, also one that began a round before
        return RoundTimes(verify_s, draft_s, wait_s, python_s, min(now[3] - last[3], verify_s))

    def _totals(self) -> tuple[float, float, float, float]:
        drafter = self._drafter
        return self._target.busy_s, drafter.busy_s, drafter.wait_s, drafter.ahead_s
