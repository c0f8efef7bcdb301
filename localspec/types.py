"""Values that cross borders: frozen, slotted, picklable; no native pointers, no input or output.

Sizes are in bytes, times in seconds (`_s`), token ids plain `int`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from localspec.values import Range

if TYPE_CHECKING:  # numpy costs 0.1 s at start-up, and this module is imported by `--help`
    import numpy as np
    from numpy.typing import NDArray

Mode = Literal["off", "ngram", "sd", "ssd"]
TaskType = Literal["coding", "writing", "math", "translate", "summarise", "dialogue"]
Acceptance = Literal["match", "rejection"]
FanOutShape = Literal["uniform", "geometric", "best-first"]
Fallback = Literal["just-in-time", "ngram"]
SplitMode = Literal["none", "layer", "row"]
KvType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
GrammarKind = Literal["json_schema", "gbnf", "lark", "regex"]
_COLDEST = 1e-30  # by less, differences of logits leave what 32 bits hold
FinishReason = Literal["stop", "length", "context", "circles", "cancelled"]
SEEDS = (-(2**63), 2**63 - 1)
"""The least and the largest seed: 64 bits with a sign, as other programs have it."""
Seed = Annotated[int, Range(*SEEDS)]
MaxTokens = Annotated[int, Range(1, 2**31 - 1)]
TopLogprobs = Annotated[int, Range(0, 64)]
Logprob = Annotated[float, Range(-inf, inf)]

Temperature = Annotated[float, Range(0, 100)]
TopK = Annotated[int, Range(0, 1_000_000)]
TopP = Annotated[float, Range(0, 1)]
MinP = Annotated[float, Range(0, 1)]
RepetitionPenalty = Annotated[float, Range(0.01, 10)]
PresencePenalty = Annotated[float, Range(-10, 10)]
FrequencyPenalty = Annotated[float, Range(-10, 10)]
PenaltyWindow = Annotated[int, Range(0, 1_000_000)]

DraftLength = Annotated[int, Range(1, 256)]
FanOutBudget = Annotated[int, Range(1, 64)]
DraftTemperature = Annotated[float, Range(0, 10)]
SaguaroC = Annotated[float, Range(0, 1)]
MinConfidence = Annotated[float, Range(0, 1)]
Token = tuple[int, bytes]
"""A token and the bytes that it stands for."""


def seed_after(seed: int, count: int) -> int:
    """Return the seed that comes so many after another; the least one follows the largest."""
    low, high = SEEDS
    return low + (seed - low + count) % (high - low + 1)


class DraftOrigin(Enum):
    """Who wrote a draft; also of one that was not worth sending and left empty."""

    NONE = "none"  # nobody: plain decoding
    FRESH = "fresh"  # the draft model, while the target waited
    AHEAD = "ahead"  # the draft model, while the target verified the round before
    NGRAM = "ngram"  # a repetition in the text; in mode ngram also what a grammar leaves no choice about


class Provenance(Enum):
    """Where an emitted token comes from."""

    TARGET = "target"  # the target's own: plain decoding, or the correction of a rejected draft token
    ACCEPTED = "accepted"  # drafted while the target waited, accepted
    PREPARED = "prepared"  # drafted ahead of time, accepted
    BONUS = "bonus"  # the target's own after a draft that was accepted in full


@dataclass(frozen=True, slots=True)
class Distribution:
    """A next-token distribution on its support."""

    ids: NDArray[np.int64] | None  # (n,); None is the whole vocabulary in order
    probs: NDArray[np.float64]  # (n,), sums to 1


@dataclass(frozen=True, slots=True)
class TokenMask:
    """The tokens that may follow: these alone, or all but these where they are fewer; ascending."""

    ids: NDArray[np.int64]
    are_refused: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed for the target to judge; the empty draft is plain decoding."""

    tokens: tuple[int, ...] = ()
    # the very distribution that each token was drawn from; None says that none was (q is one-hot)
    q: tuple[Distribution, ...] | None = field(default=None, compare=False, repr=False)
    origin: DraftOrigin = DraftOrigin.NONE
    copied: int = 0  # tokens at the end that repeat the text, behind those of the draft model


@dataclass(frozen=True, slots=True)
class VerifyOutcome:
    """How many draft tokens were accepted, and the target's own after them: the key of prepared drafts."""

    accepted: int
    bonus: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen; temperature 0 is greedy.

    The order is llama.cpp's: penalties, top-k, top-p, min-p, temperature.
    `top_k` 0, `top_p` 1, `min_p` 0, and penalties 1, 0, 0 switch their step off;
    penalties look at the last `penalty_window` tokens of the answer, and at none of the question.
    """

    temperature: Temperature = 0.8
    top_k: TopK = 40
    top_p: TopP = 0.95
    min_p: MinP = 0.05
    repetition_penalty: RepetitionPenalty = 1.0
    presence_penalty: PresencePenalty = 0.0
    frequency_penalty: FrequencyPenalty = 0.0
    penalty_window: PenaltyWindow = 64

    @property
    def is_greedy(self) -> bool:
        """Tell whether the best token is always taken; a temperature that numbers cannot bear means that."""
        return self.temperature < _COLDEST


SAMPLING = tuple(field.name for field in fields(Sampling))
"""The names of what can be chosen about sampling."""


@dataclass(frozen=True, slots=True)
class SamplingChoice:
    """The fields of `Sampling` that somebody settles; None leaves one open."""

    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: PresencePenalty | None = None
    frequency_penalty: FrequencyPenalty | None = None
    penalty_window: PenaltyWindow | None = None

    @property
    def settled(self) -> dict[str, Any]:
        """Return the fields that are not left open, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def over(self, sampling: Sampling) -> Sampling:
        """Return a sampling with the settled fields in its place."""
        return replace(sampling, **self.settled)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """How a model's maker recommends to sample it; `source` says in words where that is written.

    `firm` names fields that go before the profiles that LocalSpec ships. `unused` are recommendations that
    LocalSpec has no sampler for, `wrong` are sentences about values that make no sense; neither counts.
    """

    sampling: SamplingChoice = SamplingChoice()
    source: str = "from the model's file"
    firm: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How to speculate: exactly the search space of the tuner.

    `min_confidence` None lets measured costs decide when a draft ends;
    a number ends it where the draft model's confidence falls below it.
    """

    mode: Mode = "ssd"
    draft_length: DraftLength = 12
    fan_out_budget: FanOutBudget = 16
    fan_out_shape: FanOutShape = "best-first"
    draft_temperature: DraftTemperature = 1.0
    saguaro_c: SaguaroC = 1.0
    acceptance: Acceptance = "rejection"
    min_confidence: MinConfidence | None = None
    fallback: Fallback = "just-in-time"


@dataclass(frozen=True, slots=True)
class RoundStats:
    """What one round of draft, verify and commit did and cost."""

    drafted: int
    accepted: int
    origin: DraftOrigin
    verify_s: float  # native time of the target
    draft_s: float  # native time of the draft model while the target waited
    wait_s: float  # other time that the target waited for the drafter
    python_s: float  # the rest
    ahead_s: float = 0.0  # native time of the draft model while the target verified
    copied: int = field(default=0, kw_only=True)  # of the drafted tokens: see Draft

    @property
    def seconds(self) -> float:
        """Return all of its time; drafting ahead ran beside it."""
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
    prompt_s: float = 0.0  # native time of reading the rest
    first_token_s: float = 0.0  # from the request to the first token
    decode_s: float = 0.0
    verify_s: float = 0.0
    draft_s: float = 0.0
    wait_s: float = 0.0
    python_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """So many of the prompt's new tokens have been read."""

    done: int
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
    """One round ended, having emitted so many tokens."""

    stats: RoundStats
    tokens: int


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """Decoding goes on in another mode, because the one before was losing or may pay again.

    Or because the draft model failed, which then rests until the models are opened again.
    """

    mode: Mode
    reason: str
    draft_failed: bool = field(default=False, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete: why, and what it cost; `stop_string` is that which ended it, if one did."""

    reason: FinishReason
    summary: Summary
    stop_string: str | None = None


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

    An end token has none, nor has anything behind a stop string.
    """

    scores: tuple[TokenScore, ...]


@dataclass(frozen=True, slots=True)
class Paused:
    """The answer stands still between two rounds, until it is resumed or dropped by this number."""

    number: int


@dataclass(frozen=True, slots=True)
class ThinkingOpened:
    """The prompt ends inside the model's thinking: the answer begins there, and its text lacks the tag.

    Told before the text. `opening` is the tag with the white space behind it, as the prompt has them.
    """

    opening: str


GenerationEvent = (
    PromptProgress | ThinkingOpened | TokensScored | TextDelta | RoundDone | ModeChanged | Finished | Paused
)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What an assistant asks for: a tool by its name, with `arguments`, the JSON text of an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    The assistant may call tools; a message of the role "tool" is what one of them returned, to the call of
    that id. `thinking` is what the assistant thought before; most templates leave it out.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class Infill:
    """What stands behind a gap that the model is to fill, and other files, by name, that it may look at."""

    suffix: str
    files: tuple[tuple[str, str], ...] = ()


TemplateVariables = tuple[tuple[str, bool | int | float | str], ...]
"""What a chat template is given beside the conversation."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must look like, in one of four languages; `gbnf` is llama.cpp's."""

    kind: GrammarKind
    text: str


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to generate: from a conversation, or from a bare text that the model continues.

    A conversation that ends with an assistant's message has that message continued.
    `steps_down` leaves a mode that turns out slower than plain decoding, and tries it again later.
    `measures_first` waits until costs are measured, for answers that are compared; others never wait.
    `max_tokens` None goes on until the model ends its turn, goes in circles (unless it `ignores_circles`)
    or has filled the context; thinking that goes in circles is closed, and the answer follows. So is thinking
    in which the model would end its turn, if there is a grammar.
    In a conversation `stop` counts from the end of the thinking on.
    `seed` None draws one. With the same seed plain decoding, mode ngram and acceptance `match` write the same
    text, whatever is drafted and wherever the answer pauses, but for tokens that are all but equally likely.
    With `rejection` that holds while the same places are drafted, as in mode sd with a `min_confidence`; else
    measured times decide that, and the distribution alone stays the same.
    `template_variables` are passed to the model's chat template (`enable_thinking`, ...).
    `infill` of a bare text ends the answer where what follows begins.
    `tools` are those that the model may call, each OpenAI's JSON of one; calls are often written in control
    tokens, whose text `shows_control` leaves in the answer. The tags of thinking are always shown in a
    conversation.
    `reuses_cache` False reads the whole prompt, as if it were the first.
    `grammar` masks what the target may write, exactly: sampling goes on among the tokens that are left. Where
    the prompt has opened the model's thinking, it holds from the end of that. What it leaves no choice about
    is drafted without a model, and counts as drafted and accepted. Each of `logit_bias` adds a
    number to the logit of a token, and -100 or less bans it, unless the grammar leaves nothing else. The
    order is: logit bias, grammar, penalties and the rest of `Sampling`.
    `top_logprobs` asks for `TokensScored`: with so many of the best tokens beside each (0: itself alone).
    """

    prompt: tuple[Message, ...] | str
    sampling: Sampling = field(default_factory=Sampling)
    settings: EngineSettings = field(default_factory=EngineSettings)
    max_tokens: MaxTokens | None = None
    stop: tuple[str, ...] = ()
    seed: Seed | None = None
    template_variables: TemplateVariables = ()
    infill: Infill | None = None
    tools: tuple[str, ...] = ()
    shows_control: bool = False
    steps_down: bool = False
    measures_first: bool = field(default=False, repr=False)  # files of the tuner are named by the repr
    reuses_cache: bool = True
    grammar: Grammar | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: TopLogprobs | None = None
    ignores_circles: bool = False


@dataclass(frozen=True, slots=True)
class PlainRate:
    """How fast plain decoding runs with `depth` tokens in the context, as measured."""

    depth: int
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What is taken of a device's memory, by anybody; of the processor's, by this program. In bytes."""

    device: str
    used: int
    total: int


@dataclass(frozen=True, slots=True)
class SavedConversations:
    """What is kept of conversations whose caches made room for others, so as not to read them again.

    `tokens` are those of the target; of the `bytes` at most `limit` are taken.
    """

    count: int = 0
    tokens: int = 0
    bytes: int = 0
    limit: int = 0


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What an open model is."""

    path: Path
    name: str
    architecture: str
    parameters: int
    file_bytes: int
    context: int  # tokens that one conversation can hold
    training_context: int
    vocabulary: int
    devices: tuple[str, ...]  # where the weights sit, in words
    recommended: Recommendation = Recommendation()  # of a target

    @property
    def servers(self) -> tuple[str, ...]:
        """Return the addresses of the RPC servers among its devices."""
        return tuple(name.partition(" (RPC")[0] for name in self.devices if " (RPC" in name)


@dataclass(frozen=True, slots=True)
class Interval:
    """A measured figure with its 95% interval, whose ends are NaN where one sample tells no spread."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which GGUF to open, where, and with which context.

    `context` 0: the model's own training length; `threads` 0: all physical cores; `gpu_layers` None: all that
    there are devices for. `devices` names ggml devices ("CUDA0"); an empty tuple is the CPU alone, None lets
    llama.cpp choose. `output_at_home` keeps the weights after the last layer with the processor: from another
    machine then come rows as wide as the model.
    `chat_template`, of a target, is a file with a template that is used instead of the model's own.
    """

    path: Path
    context: int = 0
    gpu_layers: int | None = None
    devices: tuple[str, ...] | None = None
    tensor_split: tuple[float, ...] = ()
    split_mode: SplitMode = "layer"
    main_gpu: int = 0
    output_at_home: bool = False
    kv_type_k: KvType = "f16"
    kv_type_v: KvType = "f16"
    flash_attention: bool | None = None
    batch: int = 2048
    micro_batch: int = 512
    threads: int = 0
    mmap: bool = True
    chat_template: Path | None = None
