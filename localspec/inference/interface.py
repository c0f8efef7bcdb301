"""The interface of open models, in this process (`runtime`) or in another (`worker`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from localspec.errors import ContextFullError
from localspec.types.drafts import Token
from localspec.types.events import GenerationEvent, ReadAhead
from localspec.types.models import DeviceMemory, ModelInfo, PlainRate, SavedConversations, SlotFile
from localspec.types.request import EngineSettings, Message, Request, TemplateVariables

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class ModeChoice:
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
        """Return the target's information."""

    @property
    def draft(self) -> ModelInfo | None:
        """Return the draft model's information, None without one."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the user about these models on this machine."""

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        """Yield the answer as it is written; raises `ContextFullError` before the first event."""

    def cancel(self) -> None:
        """End the running answer within a moment."""

    def choose_settings(self, settings: EngineSettings | None = None) -> tuple[EngineSettings, str]:
        """Return the settings of the fastest mode here, and the reason in a sentence.

        Raises `Cancelled` after `cancel`.
        """

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return the tokens of a conversation, including the start of the next answer."""

    def measure_plain(self) -> PlainRate | None:
        """Measure plain decoding after the text of the last answer, in a fraction of a second.

        None if there was no answer, another one is being written, the context is full, or it was cancelled.
        """

    def memory(self) -> tuple[DeviceMemory, ...]:
        """Return the memory of every device of these models."""

    def first_call_s(self) -> float | None:
        """Return for how long a GPU has been making the programs of a call, None if it is not."""

    def close(self) -> None:
        """Free the models; a second call does nothing."""


@runtime_checkable
class QuickChooser(OpenModels, Protocol):
    """Open models that choose settings without measuring, and measure when idle."""

    def known_settings(self, settings: EngineSettings | None = None) -> tuple[EngineSettings, str]:
        """Choose as `choose_settings` does, from known costs; takes no time."""

    def measure_before_leaving(self, limit_s: float) -> None:
        """Measure and save the missing costs, each within `limit_s` seconds."""

    def is_measuring(self) -> bool:
        """Return whether costs are being measured while idle; callable from any thread."""


@runtime_checkable
class ReadsAhead(OpenModels, Protocol):
    """Open models that read what comes before the next answer while they have nothing else to do."""

    def read_ahead(self, request: Request | None) -> None:
        """Read how every prompt begins that continues the last question of a conversation, perhaps empty.

        The draft model reads it as well where the request's mode drafts. It replaces what was to be read
        before, and None ends that; every call that takes time ends it at once. Nothing is read where that
        would cost another conversation its cache. Never waits, and may be called from any thread.
        """

    def read_so_far(self) -> ReadAhead | None:
        """Return the progress of that, None if nothing is known yet; callable from any thread."""


def check_room(tokens: int, target: ModelInfo) -> None:
    """Raise ContextFullError for a prompt that leaves no token of the context to an answer."""
    room = target.context
    trained = target.training_context
    if tokens >= room:
        larger = f", or open the model with a larger -c (it was trained on {trained:,})"
        raise ContextFullError(
            f"the prompt is {tokens:,} tokens, but the context has {room:,} with the answer",
            f"shorten it by {tokens - room + 1:,} tokens or more{larger * (trained > tokens)}",
            tokens=tokens,
            context=room,
        )


@runtime_checkable
class ServesSeveral(OpenModels, Protocol):
    """Open models that write several answers at once, because a server interleaves them."""

    def for_one_answer(self) -> OpenModels:
        """Return the same models, whose `cancel` ends only what is asked of these."""


@runtime_checkable
class PausableModels(OpenModels, Protocol):
    """Open models whose answer can be paused while others are written."""

    def pause(self) -> None:
        """End the running answer's events with `Paused` after its round, or a piece of its prompt.

        Any thread may call it. It does nothing where no answer runs, or where it ends by itself;
        an answer that is cancelled as well may end either way.
        """

    def resume(self, number: int) -> Iterator[GenerationEvent]:
        """Yield the rest of a paused answer; raises `UserError` if there is none of this number."""

    def drop(self, number: int) -> None:
        """Drop a paused answer, if there is one of this number; callable from any thread."""


@runtime_checkable
class ShowsPrompts(OpenModels, Protocol):
    """Open models that show how a prompt reaches the target; from any thread, also while they generate."""

    def render(self, request: Request) -> str:
        """Return the text of a request's prompt as the target reads it."""

    def tokenize(self, text: str, *, special: bool = True, add_special: bool = False) -> list[Token]:
        """Return the tokens of a text; `special` reads control tokens in it, `add_special` puts BOS first."""


class SharedModels(ShowsPrompts, PausableModels, Protocol):
    """Open models that interleave conversations.

    Their information is available from any thread, also while they generate.
    """

    def keep_conversations(self, limit: int, on_disk: int = 0) -> None:
        """Save the KV caches of interleaved conversations, in at most `limit` bytes of memory.

        At first the limit is 0 and nothing is saved: prompts outside the cache are processed again. Copies
        pass through memory to the disk, where those of all programs take at most that many bytes.
        """

    def read(self, request: Request) -> Iterator[GenerationEvent]:
        """Read a prompt that a later request continues, and answer nothing: progress, then `Finished`.

        The draft model reads it as well where the request's mode drafts. Nothing is read where that would
        cost another conversation its cache. `cancel` ends it; the summary counts what is in the cache then.
        """

    def saved(self) -> SavedConversations:
        """Return the saved caches of conversations; callable from any thread."""

    def count_tokens(
        self, messages: Sequence[Message], tools: Sequence[str] = (), variables: TemplateVariables = ()
    ) -> int:
        """Return the tokens of a conversation, including the start of the next answer."""

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, control tokens included; raises `UserError` for what is none."""


@runtime_checkable
class KeepsOnDisk(OpenModels, Protocol):
    """Open models that may keep copies of conversations' caches on disk."""

    def forget_conversation(self, name: str) -> None:
        """Delete what was `kept_as` a name, and write none of it before its next request; from any thread."""


@runtime_checkable
class KeepsSlots(OpenModels, Protocol):
    """Open models whose conversations are saved and restored by the numbers of their slots.

    Each call waits until no answer is being written.
    """

    def save_slot(self, slot: int, path: Path) -> SlotFile:
        """Write the conversation of a slot to a file; raises UserError."""

    def restore_slot(self, slot: int, path: Path, adapters: tuple[float, ...] | None = None) -> SlotFile:
        """Put the conversation of a file, read with some LoRA adapters, into a slot; raises UserError."""

    def erase_slot(self, slot: int) -> int:
        """Forget the conversation of a slot, with all copies of it but saved files; return its tokens."""


class OneAnswer(Protocol):
    """Models with which one of several answers is written, whose calls are made together."""

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        """Yield the answer as it is written.

        Its events are to be taken without a pause: the other answers wait for each. They end with `Paused`,
        unasked, where the caches have no room for the text beside the others'.
        """

    def resume(self, number: int) -> Iterator[GenerationEvent]:
        """Yield the rest of a paused answer; raises `UserError` if there is none of this number."""

    def pause(self) -> None:
        """End its events with `Paused` after its round; callable from any thread."""

    def cancel(self) -> None:
        """End it within a moment; callable from any thread."""


@runtime_checkable
class SeatedModels(SharedModels, Protocol):
    """Open models that can write several answers at once, each in a thread of its own."""

    @property
    def seats(self) -> int:
        """Return the number of answers; with one, they take turns."""

    def for_one_of_several(self) -> OneAnswer:
        """Return the models for one answer.

        What needs the models whole waits until all have ended or are paused, or gives up.
        """


class TunableModels(OpenModels, Protocol):
    """Open models with which the tuner works in the process that has them."""

    def perform(self, task: Callable[..., _Value], *arguments: object) -> _Value:
        """Run a module's function on their `Runtime` and some arguments, and return the result.

        Raises what the function raises, and `Cancelled` after `cancel`.
        """


def on_card(models: OpenModels) -> bool:
    """Return whether a GPU computes a part of these models; it compiles kernels at first calls."""
    sides = (models.target, models.draft)
    return any(device != "CPU" for side in sides if side is not None for device in side.devices)
