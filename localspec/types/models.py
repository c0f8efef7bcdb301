"""Open models and the options that open them. Sizes are in bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from localspec.types.request import Recommendation

SplitMode = Literal["none", "layer", "row", "tensor"]
Pooling = Literal["none", "mean", "cls", "last"]
"""What becomes of the vectors of a text's tokens: "none" leaves one for each."""
KvType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
FLOAT_TYPES: tuple[KvType, ...] = ("f32", "f16", "bf16")  # values of others need flash attention


@dataclass(frozen=True, slots=True)
class PlainRate:
    """How fast plain decoding runs with `depth` tokens in the context, as measured."""

    depth: int
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The used memory of a device, by all programs; for the CPU, by this program. In bytes."""

    device: str
    used: int
    total: int


@dataclass(frozen=True, slots=True)
class CachesOnDisk:
    """Files with KV caches of conversations, of all models; `bytes` are at most `limit`."""

    count: int = 0
    bytes: int = 0
    limit: int = 0


@dataclass(frozen=True, slots=True)
class SavedConversations:
    """Saved KV caches of conversations that gave way to others.

    `tokens` are those of the target; `bytes` are at most `limit`.
    """

    count: int = 0
    tokens: int = 0
    bytes: int = 0
    limit: int = 0
    on_disk: CachesOnDisk | None = None


@dataclass(frozen=True, slots=True)
class SlotFile:
    """A file with the conversation of a slot."""

    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter: a GGUF file, and how much of it is added to the weights, 0 for nothing."""

    path: Path
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """An open model."""

    path: Path
    name: str
    architecture: str
    parameters: int
    file_bytes: int
    context: int  # size for one conversation, in tokens
    training_context: int
    vocabulary: int
    devices: tuple[str, ...]  # the devices of the weights, in words
    recommended: Recommendation = field(default_factory=Recommendation)  # of a target
    adapters: tuple[Adapter, ...] = ()  # with the scales of requests that name none
    end_tokens: tuple[int, ...] = ()  # which end the turn of a target

    @property
    def servers(self) -> tuple[str, ...]:
        """Return the addresses of the RPC servers among its devices."""
        return tuple(name.partition(" (RPC")[0] for name in self.devices if " (RPC" in name)


@dataclass(frozen=True, slots=True)
class TensorOverride:
    """Weights whose name matches a regular expression are on a device, wherever their layer is."""

    pattern: str
    device: str


@dataclass(frozen=True, slots=True)
class GivenTemplate:
    """A chat template that a flag gives as text: Jinja, or the name of one that llama.cpp has."""

    text: str

    @property
    def is_name(self) -> bool:
        """Return whether it can only be a name."""
        return not ("{{" in self.text or "{%" in self.text)

    def __str__(self) -> str:
        """Return the name, or where the text is from."""
        return self.text if self.is_name else "of --chat-template"


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The options that open a GGUF file.

    `context` 0: the trained length; `threads` 0: all physical cores; `gpu_layers` None: all if there is a
    GPU. `devices` names ggml devices ("CUDA0"); an empty tuple is the CPU alone, None lets
    llama.cpp choose. `output_at_home` keeps the output layer on this machine's CPU: another
    machine then sends rows as wide as the model, not as its vocabulary.
    `experts_at_home` is the number of first layers whose experts stay in RAM although their layers are on
    GPUs; `overrides` move other weights.
    Unless `kv_unified`, each of several conversations that are answered at once has an equal part of the
    context to itself; else they share it.
    `swa_full` makes layers with a window cache all tokens, as a draft model's do in any case.
    `longest_draft` limits the drafts that a target with recurrent state can take back at first, and so the
    memory of its states; None does not.
    `chat_template`, of a target, is a template that is used instead of the model's own; a path is its file.
    `adapters`, of a target, are LoRA adapters, with the scales of requests that name none.
    """

    path: Path
    context: int = 0
    gpu_layers: int | None = None
    devices: tuple[str, ...] | None = None
    tensor_split: tuple[float, ...] = ()
    split_mode: SplitMode = "layer"
    main_gpu: int = 0
    output_at_home: bool = False
    experts_at_home: int = 0
    overrides: tuple[TensorOverride, ...] = ()
    kv_type_k: KvType = "f16"
    kv_type_v: KvType = "f16"
    flash_attention: bool | None = None
    kv_unified: bool = True
    swa_full: bool = False
    longest_draft: int | None = None
    batch: int = 2048
    micro_batch: int = 512
    threads: int = 0
    mmap: bool = True
    chat_template: Path | GivenTemplate | None = None
    adapters: tuple[Adapter, ...] = ()
