"""Drafters, beginning with plain decoding's empty one, and the draft model's own text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from localspec.decoding.drafters.proposer import Proposal, Proposer
from localspec.decoding.model import LanguageModel
from localspec.decoding.policy import SpeculationPolicy
from localspec.decoding.prefixes import common_prefix
from localspec.decoding.sampling import one_point
from localspec.errors import ContextFullError, DraftError, EngineError, LogitsError
from localspec.types.drafts import Draft, DraftOrigin, VerifyOutcome


class Drafter:
    """Propose tokens; the loop calls `begin` once, then `commit` and `draft` alternately, then `end`.

    This one never proposes any: plain decoding.
    """

    def __init__(self) -> None:
        self.busy_s = 0.0
        """Native seconds of the draft model so far, while the target waited."""
        self.wait_s = 0.0
        """Other seconds that the target waited for a draft."""
        self.model_name = ""
        """The draft model's, where there is one."""

    @property
    def ahead_s(self) -> float:
        """Return the native seconds of the draft model so far, while the target did not wait."""
        return 0.0

    def begin(self, text: Sequence[int]) -> None:
        """Take the prompt; the verdict on an empty draft follows."""

    def commit(self, outcome: VerifyOutcome) -> None:
        """Take the verdict on the last draft."""

    def draft(self, limit: int) -> Draft:
        """Propose at most `limit` tokens after the committed text."""
        return Draft()

    def end(self) -> None:
        """Stop all work, also after an error; the cache stays for the next answer."""


@contextmanager
def failing(model: str) -> Iterator[None]:
    """Turn an error inside into a `DraftError` with the draft model's name."""
    try:
        yield
    except LogitsError as error:
        raise DraftError(str(LogitsError(f"the draft model {model}"))) from error
    except (EngineError, ContextFullError) as error:
        raise DraftError(f"the draft model {model} failed: {error}") from error


def draft_of(proposals: Sequence[Proposal], origin: DraftOrigin, copied: Sequence[int] = ()) -> Draft:
    """Return a draft of proposals, possibly none, followed by copied tokens."""
    tokens = (*(proposal.token for proposal in proposals), *copied)
    q = [proposal.q for proposal in proposals if proposal.q is not None]
    q += [one_point(token) for token in copied if q]
    return Draft(tokens, tuple(q) or None, origin, len(copied))


class DraftState:
    """Sequence 0 of a draft model: the committed text, and proposals that follow it; it outlives answers.

    `text` ends with the token that the target has not processed yet; `proposals[i]` follows it and i
    proposals. The cache contains a prefix of all of it, usually everything but the last proposal.
    """

    def __init__(self, model: LanguageModel, clock: Callable[[], float] = time.perf_counter) -> None:
        self.model = model
        self.clock = clock
        self.text: list[int] = []
        self.proposals: list[Proposal] = []
        self._last_token = model.vocabulary_size - 1
        self.most_read: int | None = None
        """How much of a text to read at its beginning at most, None for all that the cache lacks."""

    def begin(self, text: Sequence[int]) -> None:
        """Start from a new text; its cached part stays, in every sequence.

        If `most_read` leaves out its middle, drafts are a little worse, but as exact.
        """
        kept = self.model.rewindable(min(common_prefix(self.cached_tokens(), text), max(len(text) - 1, 0)))
        for sequence in range(self.model.max_sequences):
            if self.model.length(sequence) > kept:
                self.model.truncate(kept, sequence)
        gap = 0 if self.most_read is None else max(0, len(text) - kept - self.most_read)
        self.text = [*text[:kept], *text[kept + gap :]]
        self.proposals = []

    def read_ahead(self, text: Sequence[int], settled: int, chunk: int) -> Iterator[None]:
        """Read the beginning of a prompt, with a stop after each chunk.

        The end of its first `settled` tokens stays reachable, because what follows may change.
        """
        if common_prefix(self.cached_tokens(), text) == len(text):
            return
        self.most_read = None
        self.begin(text)
        while True:
            held = self.model.length()
            if held == settled:
                self.model.checkpoint(pinned=True)
            if held == len(text):
                return
            count = min(chunk, settled - held) if held < settled else chunk
            self.model.evaluate(self.missing()[:count], 0)
            yield

    def cached_tokens(self) -> list[int]:
        """Return the cached text, in sequence 0."""
        return self.whole()[: self.model.length()]

    def set_cached(self, text: Sequence[int]) -> None:
        """Record the cached prefix of a text."""
        self.text = [*text[: self.model.length()]]
        self.proposals = []

    def whole(self) -> list[int]:
        """Return the text with the proposals."""
        return self.text + [proposal.token for proposal in self.proposals]

    def missing(self) -> list[int]:
        """Return the uncached rest of text and proposals."""
        held = self.model.length() - len(self.text)
        missing = [] if held >= 0 else self.text[held:]
        missing += [proposal.token for proposal in self.proposals[max(held, 0) :]]
        last = self._last_token  # a target may have a few ids more, to fill up its matrices
        return missing if max(missing, default=0) <= last else [min(token, last) for token in missing]

    def confidences(self) -> list[float]:
        """Return the confidence of each proposal."""
        return [proposal.confidence for proposal in self.proposals]

    def extend(self, policy: SpeculationPolicy, proposer: Proposer) -> None:
        """Draft one more token, after forced ones."""
        whole = self.whole() if proposer.needs_history else []
        if proposer.leaps:
            forced = proposer.forced(whole)
            self.proposals += forced
            whole += [proposal.token for proposal in forced]
        missing = self.missing()
        started = self.clock()
        histories = [whole] if proposer.needs_history else None
        self.proposals += proposer.after(self.model, missing, 1, histories)
        self.model.mark()
        if len(missing) == 1:
            policy.step.observe(1, self.clock() - started)

    def extend_while_worth(self, policy: SpeculationPolicy, proposer: Proposer, limit: int) -> None:
        """Draft until the next token would cost more than it is expected to earn."""
        confidences = self.confidences()
        while policy.worth_drafting(confidences, limit):
            self.extend(policy, proposer)
            confidences += [proposal.confidence for proposal in self.proposals[len(confidences) :]]

    def take(self, tokens: Sequence[int], after: int = 0) -> None:
        """Replace the proposals after the first `keep`; the model processes the new ones when it drafts."""
        taken = [Proposal(token, 0.0, (), None) for token in tokens]
        self.proposals = [*self.proposals[:after], *taken]
        self._cut(len(self.text) + after - 1)

    def adopt(self, tokens: Sequence[int], proposer: Proposer, after: int = 0) -> None:
        """Replace the proposals after the first `keep` by other tokens, and draft beyond their end."""
        self.take(tokens, after)
        whole = self.whole()
        start = len(self.text) + after
        count = len(tokens) + 1
        histories = None
        if proposer.needs_history:
            histories = [whole[: start + index] for index in range(count)]
        own = proposer.after(self.model, self.missing(), count, histories)
        self.model.mark()  # the next call may continue from here, and leave no other place to branch from
        judged = [
            Proposal(token, proposal.confidence, proposal.guesses, None)
            for token, proposal in zip(tokens, own, strict=False)
        ]
        self.proposals = [*self.proposals[:after], *judged, own[-1]]

    def apply_result(self, outcome: VerifyOutcome) -> None:
        """Commit the result; later proposals stay if the bonus token was also proposed."""
        accepted = outcome.accepted
        bonus = outcome.bonus
        proposals = self.proposals
        self.text += [proposal.token for proposal in proposals[:accepted]]
        self.text.append(bonus)
        if accepted < len(proposals) and proposals[accepted].token == bonus:
            self.proposals = proposals[accepted + 1 :]
        else:
            self.proposals = []
            self._cut(len(self.text) - 1)

    def read_singly(self) -> None:
        """Process everything but the last proposal, one token at a time after the known text."""
        self._cut(len(self.text) - 1)
        for token in self.missing()[:-1]:
            self.model.evaluate([token], 0)
            self.model.mark()

    def _cut(self, length: int) -> None:
        """Drop cells from a position on, or from the last state before it."""
        self.model.truncate(self.model.rewindable(min(self.model.length(), length)))
