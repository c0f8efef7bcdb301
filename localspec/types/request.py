"""What is asked of open models: a prompt, how to sample, how to speculate, what to obey."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from localspec.values import Range

Mode = Literal["off", "ngram", "sd", "ssd"]
TaskType = Literal["coding", "writing", "math", "translate", "summarise", "dialogue"]
Acceptance = Literal["match", "rejection"]
FanOutShape = Literal["uniform", "geometric", "best-first"]
Fallback = Literal["just-in-time", "ngram"]
GrammarKind = Literal["json_schema", "gbnf", "lark", "regex"]
_COLDEST = 1e-30  # below this, logit differences overflow 32 bits
SEEDS = (-(2**63), 2**63 - 1)
"""The least and the largest seed: 64 bits with a sign, as other programs have it."""
Seed = Annotated[int, Range(*SEEDS)]
MaxTokens = Annotated[int, Range(1, 2**31 - 1)]
ThinkingBudget = Annotated[int, Range(-1, 2**31 - 1)]
NO_LIMIT = -1  # of thinking
BANS = -100.0  # the logit bias that forbids a token, as does any below it
TopLogprobs = Annotated[int, Range(0, 64)]
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
Slot = Annotated[int, Range(0, 2**31 - 1)]
AdapterScale = Annotated[float, Range(-1000, 1000)]


def seed_after(seed: int, count: int) -> int:
    """Return the seed `steps` after another; wraps around at the largest."""
    low, high = SEEDS
    return low + (seed - low + count) % (high - low + 1)


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
        """Return whether the best token is always chosen, also because the temperature is too small."""
        return self.temperature < _COLDEST


SAMPLING = tuple(field.name for field in fields(Sampling))
"""The names of what can be chosen about sampling."""


@dataclass(frozen=True, slots=True)
class SamplingChoice:
    """Overrides of `Sampling`; None leaves a field open."""

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
        """Return a sampling with these overrides."""
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

    With `min_confidence` None, measured costs decide when a draft ends; a number ends it where the draft
    model's confidence falls below it.
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
    """The text after a gap that the model fills, and other files by name as its background."""

    suffix: str
    files: tuple[tuple[str, str], ...] = ()


TemplateVariables = tuple[tuple[str, bool | int | float | str], ...]
"""Variables of a chat template, in addition to the conversation."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must look like, in one of four languages; `gbnf` is llama.cpp's."""

    kind: GrammarKind
    text: str


@dataclass(frozen=True, slots=True)
class Trigger:
    """Where grammars begin in an answer whose other text is free: behind the `head` of a call, until its end.

    The head is a regular expression whose group `name` says which of the grammars follows; it contains the
    text `mark`, which is looked for first. A leading one counts only where the answer begins, or where a call
    has ended. In thinking and in code there are none. A grammar has to admit any text behind the end of the
    call, because tokens may go past that.
    """

    head: str
    grammars: tuple[tuple[str, Grammar], ...]
    mark: str = ""
    is_leading: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to generate: from a conversation, or from a bare text that the model continues.

    A conversation that ends with an assistant's message has that message continued. `steps_down` leaves a
    mode that turns out slower than plain decoding, and tries it again later. `measures_first` waits until
    costs are measured, for compared answers; others never wait. `max_tokens` None: until the model ends its
    turn, repeats itself endlessly (unless `ignores_circles`) or has filled the context. `ends_circles` ends
    an answer that repeats itself also before its `max_tokens`. Thinking that repeats itself endlessly is
    closed, and the answer follows. With a grammar, so is thinking in which the model would end its turn.
    `thinking_budget` closes it after that number of tokens, those of a continued answer included and its tags
    not: at the same token in every mode, or up to a few later where that is in the middle of a character or
    of a closing tag. 0 closes it where it opens; -1 is no limit, as is None.
    In a conversation, `stop` applies after the thinking. `seed` None draws one.
    With the same seed plain decoding, mode ngram and acceptance `match` write the same text, whatever is
    drafted and wherever the answer pauses, except where two tokens are almost equally likely. With
    `rejection` that holds while the same places are drafted, as in mode sd with a `min_confidence`; else
    measured times decide that, and the distribution alone stays the same. `template_variables` are passed
    to the model's chat template (`enable_thinking`, ...). `infill` of a bare text ends the answer where the
    text after the gap begins. `tools` are those that the model may call, each OpenAI's JSON of one; calls
    are often written in control tokens, whose text `shows_control` leaves in the answer. The tags of
    thinking are always shown in a conversation. `reuses_cache` False processes the whole prompt, as if it
    were the first. `grammar` masks what the target may write, exactly: sampling continues among the tokens
    that are left. Where the prompt has opened the model's thinking, it holds from the end of that. Where it
    allows only one token, that is drafted without a model, and counts as drafted and accepted. `triggers`
    do the same for the calls of tools in an answer that is free elsewhere; one whose grammar cannot be used
    stays free. Each of
    `logit_bias` adds a number to the logit of a token, and -100 or less bans it, unless the grammar leaves
    nothing else. The order is: logit bias, grammar, penalties and the rest of `Sampling`. `top_logprobs`
    asks for `TokensScored`: with that many of the best tokens for each (0: only itself). Copies of the
    caches are `kept_as` that name on disk, if the models keep any there; None keeps them in memory alone.
    `slot` is the number of the place for the conversation; None takes the one that suits it best. Numbers
    above the last place begin again at the first. `adapters` are the scales of the target's LoRA adapters, in
    their order; None leaves them as the models were opened. Answers with others take turns. `tells_reading`
    asks for `PromptProgress` also before a token of the prompt is read, and after the last one.
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
    triggers: tuple[Trigger, ...] = field(default=(), repr=False)
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: TopLogprobs | None = None
    ignores_circles: bool = False
    ends_circles: bool = field(default=False, repr=False)
    kept_as: str | None = field(default="", repr=False)
    thinking_budget: ThinkingBudget | None = field(default=None, repr=False)
    slot: Slot | None = field(default=None, repr=False)
    adapters: tuple[AdapterScale, ...] | None = field(default=None, repr=False)
    tells_reading: bool = field(default=False, repr=False)
