"""Values of saved conversations: stored messages, and what the screen and exports read."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from localspec.chat.thinking import without_thinking
from localspec.types.drafts import Provenance
from localspec.types.events import ModeChanged, RoundDone, Summary
from localspec.types.models import PlainRate
from localspec.types.request import (
    EngineSettings,
    FrequencyPenalty,
    MaxTokens,
    MinP,
    Mode,
    PenaltyWindow,
    PresencePenalty,
    RepetitionPenalty,
    Sampling,
    Seed,
    Temperature,
    ThinkingBudget,
    ToolCall,
    TopK,
    TopP,
)
from localspec.units import counted

Role = Literal["user", "assistant", "tool"]
State = Literal["writing", "complete", "stopped", "length", "context", "circles", "failed"]
"""Of a message. `writing` is an answer in progress; `stopped` was ended by the user, a kill or a power cut;
`length` and `context` ran into a limit, `circles` repeated itself; `failed` lost its engine. All but
`complete` can be continued."""

RESOURCE = "mcp://"
_LINES = re.compile(r":\d+(-\d+)?\Z")


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that travels with a prompt as text, as it was when it was sent, or some lines or pages of it.

    `name` ends with their numbers, as in `main.py:3-5`; with a slash for a folder, whose entries are listed.
    That of a resource begins with `mcp://` and its MCP server.
    """

    name: str
    text: str

    @property
    def source(self) -> str:
        """Return the name of the file alone."""
        return self.name if self.is_resource else _LINES.sub("", self.name)

    @property
    def is_folder(self) -> bool:
        """Return whether it is the listing of a folder."""
        return self.name.endswith("/") and not self.is_resource

    @property
    def is_resource(self) -> bool:
        """Return whether it is a resource of an MCP server."""
        return self.name.startswith(RESOURCE)


RunOutcome = Literal["done", "failed", "refused", "stopped"]
"""Of a call. `refused` was not run, because the user or a rule said no; `stopped` was not run to its end."""


@dataclass(frozen=True, slots=True)
class ToolRun:
    """How a call of a tool came to its result; `source` is the MCP server that ran it, empty for our own.

    `because` says in words why it was allowed, or refused.
    """

    call: ToolCall
    outcome: RunOutcome = "done"
    source: str = ""
    because: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of the tree of a chat; `parent` None starts a branch at the top.

    `dropped` messages stay visible and are not sent to the model. A `summary` stands for this message and
    all those before it, for what follows on its branch. An answer may end in `calls` of tools; a message of
    the role "tool" is the result of one, whose `run` says how it came about, or a step of a question.
    """

    id: int
    chat: int
    parent: int | None
    role: Role
    content: str
    created: float  # Unix time
    state: State = "complete"
    attachments: tuple[Attachment, ...] = ()
    dropped: bool = False
    summary: str = ""
    calls: tuple[ToolCall, ...] = ()
    run: ToolRun | None = None

    @property
    def is_silent(self) -> bool:
        """Whether the model ended its answer without a word and without a call."""
        is_whole = self.role == "assistant" and self.state == "complete" and not self.calls
        return is_whole and not without_thinking(self.content).strip()

    @property
    def is_step(self) -> bool:
        """Whether LocalSpec asks for a part of the question here: only its own calls have no id."""
        return self.run is not None and not self.run.call.id


SAID_NOTHING = "the model said nothing"
"""Stands where a silent answer is shown."""


@dataclass(frozen=True, slots=True)
class Span:
    """A number of characters of an answer with one provenance."""

    length: int
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """How an answer came about and what it cost.

    `mode` is that of the request; `changes` are the steps down and up within the answer.
    `spans` cover the whole text. `plain` is the measured plain decoding that the ratio refers to, None where
    nothing was measured near that depth of context.
    """

    mode: Mode
    reason: str
    settings: EngineSettings
    sampling: Sampling
    seed: Seed
    profile: str
    target: str
    draft: str | None
    summary: Summary
    rounds: tuple[RoundDone, ...] = ()
    spans: tuple[Span, ...] = ()
    changes: tuple[ModeChanged, ...] = ()
    plain: PlainRate | None = None
    thinking_budget: ThinkingBudget | None = None


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """A chat's own settings, which override flags and profile; None leaves a setting to them."""

    mode: Literal["auto", Mode] | None = None
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: PresencePenalty | None = None
    frequency_penalty: FrequencyPenalty | None = None
    penalty_window: PenaltyWindow | None = None
    max_tokens: MaxTokens | None = None
    seed: Seed | None = None
    thinking: bool | None = None
    thinking_budget: ThinkingBudget | None = None
    ignores_circles: bool | None = None
    tools: tuple[str, ...] | None = None  # that are on, by the names of their boxes

    @property
    def settled(self) -> dict[str, Any]:
        """Return the settings that are not left open, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class ChatInfo:
    """One line of the sidebar. `system` None takes the system prompt of the profile.

    `messages` are those of all branches, `shown` those of the branch that is shown. The `folder` is a name.
    """

    id: int
    title: str
    created: float
    updated: float
    pinned: bool = False
    messages: int = 0
    profile: str = "general"
    system: str | None = None
    leaf: int | None = None  # the last message of the branch that is shown
    draft: str = ""  # what was being written and not yet sent
    deleted: float | None = None  # Unix time
    settings: ChatSettings = ChatSettings()
    shown: int = 0
    folder: str = ""


@dataclass(frozen=True, slots=True)
class AddedChat:
    """The chat that an import has led to: a new one, or one that was there and has `messages` more now."""

    chat: ChatInfo
    is_new: bool
    messages: int

    def growth(self) -> str:
        """Return in words by what the chat grew."""
        return f'{counted(self.messages, "message")} added to "{self.chat.title or "Untitled"}"'


WholeChat = tuple[ChatInfo, tuple[StoredMessage, ...], dict[int, AnswerRecord]]
"""A chat with the messages of all branches, parents before their children, and how its answers came about."""


Outcome = Literal["answered", "failed"]
"""How an answer ended in a chat that was not open."""


@dataclass(frozen=True, slots=True)
class DeletedMessages:
    """Messages of a chat that were deleted together, at a `time`; `first` is the one above the others."""

    chat: int
    time: float
    count: int
    first: int


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A place where a search found something: in a title, or in a message.

    `marks` are the (start, end) of the found words in `excerpt`.
    """

    chat: ChatInfo
    message: int | None
    excerpt: str
    marks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class BranchMessage:
    """A message as a screen shows it: number `branch` (from 1) of `branches` with the same parent.

    One that `summarises` a number of messages is their summary; its id is that of the last of them, negative.
    Those are `covered`: the model reads the summary instead.
    """

    message: StoredMessage
    branch: int = 1
    branches: int = 1
    spans: tuple[Span, ...] = field(default=(), repr=False)
    model: str = ""  # that wrote it
    label: str = ""  # e.g. "SSD  58 tokens/s  1.9× plain"
    covered: bool = False
    summarises: int = 0
