"""Events of an answer while it is generated, and its figures. Times are in seconds (`_s`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Literal

from localspec.types.drafts import DraftOrigin, Provenance
from localspec.types.request import Mode
from localspec.values import Range

FinishReason = Literal["stop", "length", "context", "circles", "cancelled"]
Logprob = Annotated[float, Range(-inf, inf)]


@dataclass(frozen=True, slots=True)
class RoundStats:
    """What one round of draft, verify and commit did and cost."""

    drafted: int
    accepted: int
    origin: DraftOrigin
    verify_s: float  # native time of the target
    draft_s: float  # native time of the draft model while the target waited
    wait_s: float  # other time that the target waited for the drafter
    python_s: float  # everything else
    ahead_s: float = 0.0  # native time of the draft model while the target verified
    copied: int = field(default=0, kw_only=True)  # of the drafted tokens: see Draft

    @property
    def seconds(self) -> float:
        """Return the total time; drafting ahead overlapped with it."""
        return self.verify_s + self.draft_s + self.wait_s + self.python_s


@dataclass(frozen=True, slots=True)
class Summary:
    """What one answer did and cost."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, found in the KV cache
    tokens: int = 0
    thinking_tokens: int = 0  # of those, up to the end of the thinking
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_at: tuple[int, ...] = ()  # per draft position: how often accepted
    drafted_at: tuple[int, ...] = ()  # per draft position: how often judged
    model_accepted_at: tuple[int, ...] = ()  # the same two of the draft model's tokens alone
    model_drafted_at: tuple[int, ...] = ()
    hits: int = 0  # rounds whose draft was prepared
    misses: int = 0  # rounds that wanted a prepared draft and had none; those that repeat the text want none
    prompt_s: float = 0.0  # native time of the prefill of the others
    first_token_s: float = 0.0  # from the request to the first token
    decode_s: float = 0.0
    verify_s: float = 0.0
    draft_s: float = 0.0
    wait_s: float = 0.0
    python_s: float = 0.0

    @property
    def new_prompt_tokens(self) -> int:
        """Tokens of the prompt that were not in the KV cache."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def prompt_tokens_per_s(self) -> float | None:
        """Speed of prefill; None if no time was measured."""
        return _ratio(self.new_prompt_tokens, self.prompt_s)

    @property
    def decoded_tokens(self) -> int:
        """Tokens after the first, which comes with the prompt."""
        return max(0, self.tokens - 1)

    @property
    def tokens_per_s(self) -> float | None:
        """Speed of decoding; None if nothing was decoded."""
        return _ratio(self.decoded_tokens, self.decode_s) or None

    @property
    def seconds_per_token(self) -> float | None:
        """Time of a decoded token; None if nothing was decoded."""
        return _ratio(self.decode_s, self.decoded_tokens)

    @property
    def seconds(self) -> float:
        """Time from the request to the last token."""
        return self.first_token_s + self.decode_s

    @property
    def mean_depth(self) -> int:
        """Tokens of context in the middle of the answer."""
        return self.prompt_tokens + self.tokens // 2

    @property
    def acceptance(self) -> float | None:
        """Share of the draft tokens that were accepted; None if nothing was drafted."""
        return _ratio(self.accepted, self.drafted)

    @property
    def acceptance_by_position(self) -> tuple[float | None, ...]:
        """Share of the judged draft tokens that were accepted, for each position in a draft."""
        return tuple(map(_ratio, self.accepted_at, self.drafted_at))

    @property
    def accepted_length(self) -> float | None:
        """Tokens per round, the target's own included; None without rounds."""
        return _ratio(self.decoded_tokens, self.rounds)

    @property
    def hit_rate(self) -> float | None:
        """Share of the wanted drafts that were prepared; None if none was wanted."""
        return _ratio(self.hits, self.hits + self.misses)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """The progress of the prefill, in new tokens of the prompt, beside those that were in the cache."""

    done: int
    total: int
    cached: int = 0

    def since(self, cached: int) -> PromptProgress:
        """Return the same progress of an answer that found `cached` tokens in the cache and read on."""
        read = self.cached - cached
        return PromptProgress(self.done + read, self.total + read, cached)


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """How many tokens of what is to be read before the next answer are in the cache, and of how many."""

    tokens: int
    total: int


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Some text whose tokens share one provenance."""

    text: str
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of the answer."""

    pieces: tuple[TextPiece, ...]

    @property
    def text(self) -> str:
        """Return the text without its provenance."""
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class RoundDone:
    """A round has ended and emitted `tokens` tokens."""

    stats: RoundStats
    tokens: int


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """Decoding continues in another mode, because the previous one was slower, or may be faster again.

    Or because the draft model failed, which is not used again until the models are reopened.
    """

    mode: Mode
    reason: str
    draft_failed: bool = field(default=False, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete, with reason and figures; `stop_string` is the one that ended it, if one did.

    `slot` is the number of the place that holds the conversation.
    """

    reason: FinishReason
    summary: Summary
    stop_string: str | None = None
    slot: int = 0


@dataclass(frozen=True, slots=True)
class TokenScore:
    """What the target itself thought of a token that the answer got.

    `logprob` is the natural logarithm of the target's probability at temperature 1, before any step of
    sampling: no logit bias, no grammar, no penalty. `top` are the most likely tokens, best first, each with
    its bytes and its logarithm.
    """

    token: int
    data: bytes  # what it adds to the text; one of a character's several bytes, perhaps
    logprob: Logprob
    top: tuple[tuple[int, bytes, Logprob], ...] = ()


@dataclass(frozen=True, slots=True)
class TokensScored:
    """The scores of a round's tokens, right before its text, if there is any yet.

    An end token has none, nor do tokens after a stop string.
    """

    scores: tuple[TokenScore, ...]


@dataclass(frozen=True, slots=True)
class Paused:
    """The answer is paused between two rounds, until it is resumed or dropped by this number.

    `summary` is that of an answer which ends here.
    """

    number: int
    summary: Summary = Summary()


@dataclass(frozen=True, slots=True)
class ThinkingOpened:
    """The prompt ends inside the model's thinking: the answer begins there, and its text lacks the tag.

    Comes before the text. `opening` is the tag with the white space after it, as in the prompt.
    """

    opening: str


GenerationEvent = (
    PromptProgress | ThinkingOpened | TokensScored | TextDelta | RoundDone | ModeChanged | Finished | Paused
)
