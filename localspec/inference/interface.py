"""What open models offer, whether they sit in this process (`runtime`) or in another (`worker`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from localspec.types.drafts import Token
from localspec.types.events import GenerationEvent
from localspec.types.models import DeviceMemory, ModelInfo, PlainRate, SavedConversations
from localspec.types.request import EngineSettings, Message, Request

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Choice:
    """The settings to use, because they should be fastest or were tuned, and why."""

    settings: EngineSettings
    reason: str


class OpenModels(Protocol):
    """A target and at most one draft model, open.

    One thread at a time generates or measures; `cancel`, `count_tokens`, `memory` and `first_call_s` may be
    called meanwhile from others. Every call may raise `EngineDied`.
    """

    @property
    def target(self) -> ModelInfo:
        """Return what the target is."""

    @property
    def draft(self) -> ModelInfo | None:
        """Return what the draft model is, None without one."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what a person should know about these models on this machine."""

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        """Yield the answer as it is written; raises `ContextFullError` before the first event."""

    def cancel(self) -> None:
        """End the running answer within a moment."""

    def choose_settings(self, settings: EngineSettings | None = None) -> tuple[EngineSettings, str]:
        """Return the settings whose mode should be fastest here, and the reason in a plain sentence.

        Raises `Cancelled` after `cancel`.
        """

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return how many tokens a conversation takes, the start of the next answer included."""

    def measure_plain(self) -> PlainRate | None:
        """Measure plain decoding after the text of the last answer, in a fraction of a second.

        None if there was no answer, the context is full, or it was cancelled.
        """

    def memory(self) -> tuple[DeviceMemory, ...]:
        """Return the memory of every device that holds a part of these models."""

    def first_call_s(self) -> float | None:
        """Return for how long a card has been making the programs of a call, None if it is not."""

    def close(self) -> None:
        """Free the models; a second call does nothing."""


@runtime_checkable
class QuickChooser(OpenModels, Protocol):
    """Open models that choose settings without measuring, and measure when nobody waits."""

    def known_settings(self, settings: EngineSettings | None = None) -> tuple[EngineSettings, str]:
        """Return what `choose_settings` does by what is known already: it takes no time."""

    def measure_before_leaving(self, limit_s: float) -> None:
        """Measure and keep the costs that answers lacked; what takes more than `limit_s` is given up."""

    def is_measuring(self) -> bool:
        """Tell whether costs are being measured because nobody asks anything; any thread may ask."""


class SharedModels(OpenModels, Protocol):
    """Open models on which conversations take turns: an answer can stand still while others are written.

    Any thread may ask how they read, also while they generate.
    """

    def keep_conversations(self, limit: int) -> None:
        """Keep the caches of conversations in turn, in so many bytes of this machine's memory.

        At first the limit is 0, and nothing is kept: whatever is not in the cache is read again.
        """

    def pause(self) -> None:
        """End the running answer's events with `Paused` after its round, or a piece of its prompt.

        Any thread may call it. It does nothing where no answer runs, or where it ends by itself;
        an answer that is cancelled as well may end either way.
        """

    def resume(self, number: int) -> Iterator[GenerationEvent]:
        """Yield the rest of a paused answer; raises `UserError` if there is none of this number."""

    def drop(self, number: int) -> None:
        """Give up a paused answer, if there is one of this number; any thread may call it."""

    def saved(self) -> SavedConversations:
        """Return what is kept of conversations in turn; any thread may call it."""

    def count_tokens(self, messages: Sequence[Message], tools: Sequence[str] = ()) -> int:
        """Return how many tokens a conversation takes, the start of the next answer included."""

    def render(self, request: Request) -> str:
        """Return the text of a request's prompt as the target reads it."""

    def tokenize(self, text: str, *, special: bool = True, add_special: bool = False) -> list[Token]:
        """Return the tokens of a text; `special` reads control tokens in it, `add_special` puts BOS first."""

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, control tokens included; raises `UserError` for what is none."""


class TunableModels(OpenModels, Protocol):
    """Open models with which the tuner works in the process that has them."""

    def perform(self, task: Callable[..., _Value], *arguments: object) -> _Value:
        """Return what a function of a module makes of their `Runtime` and some arguments.

        Raises what the function raises, and `Cancelled` after `cancel`.
        """


def on_card(models: OpenModels) -> bool:
    """Tell whether a card computes a part of these models: there the first call of a kind makes programs."""
    sides = (models.target, models.draft)
    return any(device != "CPU" for side in sides if side is not None for device in side.devices)
