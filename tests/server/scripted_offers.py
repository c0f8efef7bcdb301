"""Models that a server offers, of made-up sizes, which open when a test lets them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localspec.chat.answer_settings import nothing_known, with_auto
from localspec.errors import Cancelled, LocalSpecError, UserError
from localspec.hardware.memory.needs import DeviceNeed
from localspec.hardware.placement.room import HeldMemory
from localspec.inference.encoders import Encoder
from localspec.inference.interface import SharedModels
from localspec.server.queue import EngineQueue
from localspec.server.served import Kind, ModelDescription, OnProgress, PreparedModel
from localspec.server.service import ChatService, EncoderService, ServerSettings
from localspec.storage.profiles import Profile, profiles
from tests.cli.fake_runtime import model_info

ROOM = 10  # of the machine, in the unit of sizes
PROFILES = {each.name: each for each in with_auto(profiles(Path("/nonexistent")))}


@dataclass(eq=False)
class ScriptedPair:
    """A pair; `fails` says how its opening does, and `may_open` when, step by step."""

    name: str
    open_models: Callable[[], SharedModels]
    settings: ServerSettings
    size: int = 1
    is_named: bool = True  # by its own name, not by profiles
    fails: LocalSpecError | None = None
    may_open: threading.Semaphore | None = None
    kind: Kind = "chat"
    is_listed: bool = True
    openings: int = 0
    is_opening: threading.Event = field(default_factory=threading.Event)

    @property
    def ids(self) -> tuple[str, ...]:
        return (self.name,) if self.is_named else tuple(PROFILES)

    @property
    def aliases(self) -> tuple[str, ...]:
        return tuple(f"{self.name}:{name}" for name in PROFILES) if self.is_named else ()

    @property
    def profiles(self) -> Mapping[str, Profile]:
        named = {f"{self.name}:{name}": profile for name, profile in PROFILES.items()}
        return PROFILES | (named if self.is_named else {})

    def describe(self) -> ModelDescription:
        return ModelDescription(model_info(self.name), takes_tools=True)

    def prepare(self, others: Sequence[HeldMemory], on_progress: OnProgress) -> PreparedModel:
        return prepared(self.size, others, self._open)

    def _open(self, on_progress: OnProgress) -> ChatService:
        self.is_opening.set()
        self.openings += 1
        for step in range(1, 11):
            if self.may_open is not None:
                while not self.may_open.acquire(timeout=0.005):
                    if not on_progress((step - 1) / 10):
                        raise Cancelled
        if self.fails is not None:
            raise self.fails
        return self.opened()

    def opened(self) -> ChatService:
        queue = EngineQueue(self.open_models, nothing_known, report=self.settings.report)
        return ChatService(queue, self.profiles, self.settings)


@dataclass(eq=False)
class ScriptedEncoder:
    """A model for embeddings or reranking."""

    name: str
    encoder: Encoder
    totals: Counter[str] = field(default_factory=Counter)
    size: int = 1
    kind: Kind = "embeddings"
    is_listed: bool = True

    @property
    def ids(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def aliases(self) -> tuple[str, ...]:
        return ()

    @property
    def profiles(self) -> Mapping[str, Profile]:
        return {}

    def describe(self) -> ModelDescription:
        return ModelDescription(self.encoder.info)

    def prepare(self, others: Sequence[HeldMemory], on_progress: OnProgress) -> PreparedModel:
        return prepared(self.size, others, lambda _on_progress: self.opened())

    def opened(self) -> EncoderService[Encoder]:
        return EncoderService(self.name, self.encoder, self.totals)


def prepared(
    size: int,
    others: Sequence[HeldMemory],
    opens: Callable[[OnProgress], ChatService | EncoderService[Encoder]],
) -> PreparedModel:
    """Plan a model of a size: it closes as many others as it needs to."""
    if size > ROOM:
        raise UserError(f"there is not enough memory: {size} of {ROOM}", "choose smaller models")
    sizes = [sum(other.by_device.values()) for other in others]
    closes = next(count for count in range(len(sizes) + 1) if sum(sizes[count:]) + size <= ROOM)
    return PreparedModel(HeldMemory((DeviceNeed("CPU", size, 0, 0),)), closes, opens, lambda: None)
