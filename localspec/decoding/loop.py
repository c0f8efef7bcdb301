"""The decoding loop: draft, verify, commit."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from localspec.decoding.constraint import TokenRules
from localspec.decoding.drafters.drafter import Drafter, common_prefix, failing
from localspec.decoding.model import LanguageModel, Rows
from localspec.decoding.policy import SpeculationPolicy
from localspec.decoding.sampling import distribution, largest, penalises, score
from localspec.decoding.verify import BufferedUniforms, Uniforms, verify, verify_greedily
from localspec.errors import LogitsError
from localspec.types.drafts import Distribution, Draft, DraftOrigin, Provenance, VerifyOutcome
from localspec.types.events import PromptProgress, RoundStats, TokenScore
from localspec.types.request import Acceptance, Sampling

READ_CHUNK = 512  # tokens of a prompt between two reports


@dataclass(frozen=True, slots=True)
class Round:
    """What one round emitted and cost; nothing follows the last one."""

    tokens: tuple[int, ...]
    provenance: tuple[Provenance, ...]
    stats: RoundStats
    is_last: bool = False
    scores: tuple[TokenScore, ...] = ()  # of its tokens, where they are asked for; without their bytes

    def up_to(self, count: int) -> Round:
        """Return the round as if it had ended with so many of its tokens."""
        if count >= len(self.tokens):
            return self
        stats = judged_up_to(self.stats, count)
        return Round(self.tokens[:count], self.provenance[:count], stats, True, self.scores[:count])


@dataclass(frozen=True, slots=True)
class DecodeParams:
    """One answer to decode: how to choose tokens, and where to stop."""

    sampling: Sampling
    acceptance: Acceptance
    draft_length: int
    max_tokens: int
    end_tokens: frozenset[int]
    rules: TokenRules | None = None
    top_logprobs: int | None = None
    answer_start: int = 0  # where the answer begins in the text, of which penalties see nothing before


class Decoder:
    """A target model with the text that its cache holds; it outlives answers."""

    def __init__(self, target: LanguageModel) -> None:
        self.model = target
        self._held: list[int] = []
        self.reused = 0  # tokens of the last prompt that were not read again

    def forget(self, length: int = 0) -> None:
        """Empty the cache from a position on, or as far before it as the model can go back."""
        self._forget(self.model.rewindable(min(length, len(self._held))))
        self.reused = 0

    def held(self) -> list[int]:
        """Return the text that the cache holds."""
        return self._held

    def hold(self, text: Sequence[int]) -> None:
        """Take over what the cache has been given of a text."""
        self._held = [*text[: self.model.length()]]

    def cached(self, prompt: Sequence[int]) -> int:
        """Return how many tokens of a prompt need not be read again; the last always is, for its logits."""
        return min(common_prefix(self._held, prompt), len(prompt) - 1)

    def rounds(
        self,
        prompt: Sequence[int],
        drafter: Drafter,
        policy: SpeculationPolicy,
        params: DecodeParams,
        random: np.random.Generator,
    ) -> Generator[PromptProgress | Round, None, None]:
        """Decode after a prompt until an end token, `task.max_tokens` or the end of the context.

        The first round verifies an empty draft, so that the first token waits for nobody.
        Raises `DraftError` between two rounds if the drafter fails, and `EngineError` if the target does.
        """
        text, draft, emitted = list(prompt), Draft(), 0
        uniforms = BufferedUniforms(random)
        try:
            with failing(drafter.model_name):
                drafter.begin(text)
            clock = _Clock(self.model, drafter)
            rows = yield from self._read(text)
            while True:
                try:
                    outcome = self._judge(draft, rows, text, params, uniforms)
                except LogitsError:
                    raise LogitsError(f"the model {self.model.name}") from None
                tokens = _cut([*draft.tokens[: outcome.accepted], outcome.bonus], params, emitted)
                accepted = min(outcome.accepted, len(tokens))
                scores = _scores(tokens, rows, params.top_logprobs)
                self._forget(len(text) + accepted)
                text += tokens
                emitted += len(tokens)
                stats = clock.lap(draft, accepted)
                if emitted > len(tokens):  # the first round read the prompt: it says nothing about the speed
                    policy.observe(stats, len(tokens))
                room = min(params.max_tokens - emitted, self.model.context_size - len(text))
                is_last = tokens[-1] in params.end_tokens or room <= 0
                origins = _provenance(draft, outcome)[: len(tokens)]
                yield Round(tuple(tokens), origins, judged_up_to(stats, len(tokens)), is_last, scores)
                clock.restart()
                if is_last:
                    return
                with failing(drafter.model_name):
                    drafter.commit(outcome)
                    draft = drafter.draft(min(params.draft_length, room - 1, self.model.max_draft))
                rows = self._evaluate([text[-1], *draft.tokens], len(draft.tokens) + 1)
        finally:
            drafter.end()

    def _read(self, prompt: Sequence[int]) -> Generator[PromptProgress, None, Rows]:
        """Read what the cache lacks of a prompt."""
        cached = self.reused = self.model.rewindable(self.cached(prompt))
        self._forget(cached)
        total = len(prompt) - cached
        done = 0
        while total - done > READ_CHUNK:
            self._evaluate(prompt[cached + done : cached + done + READ_CHUNK], 0)
            done += READ_CHUNK
            yield PromptProgress(done, total)
        return self._evaluate(prompt[cached + done :], 1)

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
        del self._held[length:]
        self.model.truncate(length)

    def _judge(
        self, draft: Draft, rows: Rows, text: list[int], params: DecodeParams, random: Uniforms
    ) -> VerifyOutcome:
        sampling, rules = params.sampling, params.rules
        start = max(params.answer_start, len(text) - sampling.penalty_window)
        history = text[start:] if penalises(sampling) else None
        best_decides = sampling.is_greedy and history is None and rules is None
        if best_decides:
            return verify_greedily(draft, rows)

        def target(accepted: int) -> Distribution:
            seen = () if history is None else [*history, *draft.tokens[:accepted]]
            if rules is None:
                return distribution(rows[accepted], sampling, seen)
            largest(rows[accepted])  # a mask may hide what is none
            mask = rules.mask([*text, *draft.tokens[:accepted]])
            return distribution(rules.biased(rows[accepted]), sampling, seen, mask)

        return verify(draft, target, params.acceptance, random)


def _cut(tokens: list[int], params: DecodeParams, emitted: int) -> list[int]:
    """Return the tokens up to the first end token or the limit."""
    for position, token in enumerate(tokens):
        if token in params.end_tokens:
            tokens = tokens[: position + 1]
            break
    return tokens[: params.max_tokens - emitted]


def judged_up_to(stats: RoundStats, tokens: int) -> RoundStats:
    """Return the counts of a round that ended with so many tokens: of its draft no more than those counts."""
    if tokens > stats.accepted:  # with the target's own
        return stats
    written = stats.drafted - stats.copied
    return replace(stats, drafted=tokens, accepted=tokens, copied=max(0, tokens - written))


def _scores(tokens: Sequence[int], rows: Rows, top: int | None) -> tuple[TokenScore, ...]:
    """Return what the target thought of tokens, with so many of its best; nothing for None."""
    if top is None:
        return ()
    scored = [(token, *score(row, token, top)) for token, row in zip(tokens, rows, strict=False)]
    return tuple(
        TokenScore(token, b"", logprob, tuple((each, b"", its) for each, its in best))
        for token, logprob, best in scored
    )


def _provenance(draft: Draft, outcome: VerifyOutcome) -> tuple[Provenance, ...]:
    """Return where each token of a round comes from."""
    drafted = Provenance.PREPARED if draft.origin is DraftOrigin.AHEAD else Provenance.ACCEPTED
    whole = draft.tokens and outcome.accepted == len(draft.tokens)
    return (*[drafted] * outcome.accepted, Provenance.BONUS if whole else Provenance.TARGET)


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

    def lap(self, draft: Draft, accepted: int) -> RoundStats:
        """End a round."""
        now = self._totals()
        last, self._last = self._last, now
        verify_s, draft_s, wait_s = now[0] - last[0], now[1] - last[1], now[2] - last[2]
        return RoundStats(
            drafted=len(draft.tokens),
            accepted=accepted,
            origin=draft.origin,
            verify_s=verify_s,
            draft_s=draft_s,
            wait_s=wait_s,
            python_s=time.perf_counter() - self._started - verify_s - draft_s - wait_s,
            # a call counts where it ends, also one that began a round before
            ahead_s=min(now[3] - last[3], verify_s),
            copied=draft.copied,
        )

    def _totals(self) -> tuple[float, float, float, float]:
        drafter = self._drafter
        return self._target.busy_s, drafter.busy_s, drafter.wait_s, drafter.ahead_s
