"""What the user asks of a pair of models, whichever front end they asked at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from localspec.models.names import Reference
from localspec.types.models import Adapter, GivenTemplate, KvType, SplitMode, TensorOverride
from localspec.types.request import Mode

DraftKind = Literal["draft-simple", "draft-mtp", "draft-eagle3"]
"""What drafts, in llama.cpp's words: a model, or a head of one kind."""
USUAL_BATCH = 2048
USUAL_MICRO_BATCH = 512
USUAL_FAN_OUT = 16  # outcomes by default


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Models on disk that the user chose; the target's file as draft means the head in it."""

    target: Path
    draft: Path | None


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """The request for one model; None leaves a field to the plan.

    `name` is a path, a name that `localspec models` lists, or a model on the Hub. `threads` 0: all cores.
    `experts_at_home` "all": of every layer. The other fields are those of `ModelOptions`.
    """

    name: str | Reference | None = None
    devices: tuple[str, ...] | None = None
    gpu_layers: int | None = None
    threads: int | None = None
    kv_type_k: KvType | None = None
    kv_type_v: KvType | None = None
    experts_at_home: int | Literal["all"] | None = None
    overrides: tuple[TensorOverride, ...] = ()
    adapters: tuple[Adapter, ...] = ()  # LoRA, of the target

    @property
    def kv_types(self) -> tuple[KvType, KvType]:
        """Return the types of the K and the V cache."""
        return self.kv_type_k or "f16", self.kv_type_v or "f16"


@dataclass(frozen=True, slots=True)
class PairRequest:
    """Which models to open, and how; None leaves a field to config.toml and the plan.

    `file` names one of the target's repository. `own_head` False leaves a head in the target's file unused.
    `chat_template` "own": the one in the target's file, whatever config.toml names.
    `mode` None: the fastest. `split_mode` None: by layers or, where that is faster, by tensor.
    `context` 0: the trained length. `flash_attention` "auto": llama.cpp's choice, even if tuned otherwise.
    `in_company`: several conversations are mostly answered in the same calls. Unless `kv_unified`, each has
    an equal part of the target's context to itself.
    `reserve` are bytes to keep free on devices. Without `plans` llama.cpp places the models, whether they
    fit or not.
    """

    target: ModelRequest = ModelRequest()
    draft: ModelRequest = ModelRequest()
    file: str | None = None
    draft_kind: DraftKind | None = None
    own_head: bool = True
    chat_template: Path | GivenTemplate | Literal["own"] | None = None
    mode: Mode | None = None
    draft_length: int | None = None
    max_fan_out: int = USUAL_FAN_OUT
    context: int | None = None
    split_mode: SplitMode | None = None
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    flash_attention: bool | Literal["auto"] | None = None
    in_company: bool = False
    kv_unified: bool = True
    swa_full: bool = False
    batch: int | None = None
    micro_batch: int | None = None
    mmap: bool = True
    reserve: tuple[tuple[str, int], ...] = ()
    plans: bool = True

    def choosing(self, choice: ModelChoice, *, keeps_template: bool = False) -> PairRequest:
        """Return the request for models that were chosen; without a draft it asks for nothing that takes one.

        The chat template and LoRA adapters stay only if the request `keeps_template`: they were meant for
        another model.
        """
        adapters = self.target.adapters if keeps_template else ()
        target = replace(self.target, name=str(choice.target), adapters=adapters)
        draft = replace(self.draft, name=None if choice.draft is None else str(choice.draft))
        mode = self.mode
        if choice.draft is None:
            draft = ModelRequest()
            mode = None
        return replace(
            self,
            target=target,
            draft=draft,
            mode=mode,
            file=None,
            draft_kind=None,
            own_head=choice.draft is not None,
            chat_template=self.chat_template if keeps_template else None,
        )

    def without_remote_devices(self) -> PairRequest:
        """Return the request with the choice of devices left open where it names another machine's."""

        def here(model: ModelRequest) -> ModelRequest:
            is_remote = any(device.startswith("RPC") for device in model.devices or ())
            return replace(model, devices=None) if is_remote else model

        return replace(self, target=here(self.target), draft=here(self.draft))

    @property
    def longest_draft(self) -> int | None:
        """Return the length of the longest draft, 0 without drafts; None for the usual one."""
        return 0 if self.mode == "off" else self.draft_length

    @property
    def is_named(self) -> bool:
        """Return whether models are named."""
        return bool(self.target.name or self.draft.name)

    @property
    def wants_gpu(self) -> bool:
        """Return whether layers are asked onto a GPU."""
        return bool(self.target.gpu_layers or self.draft.gpu_layers)

    @property
    def flash(self) -> bool | None:
        """Return whether flash attention was asked for or refused, None where it was left open."""
        return None if self.flash_attention == "auto" else self.flash_attention

    @property
    def batch_size(self) -> int:
        """Return the batch size in tokens."""
        return self.batch or USUAL_BATCH

    @property
    def micro_batch_size(self) -> int:
        """Return the physical batch size in tokens."""
        return self.micro_batch or min(USUAL_MICRO_BATCH, self.batch_size)

    @property
    def fixed(self) -> tuple[str, ...]:
        """Return the fields of `LoadOptions` that the user set, which tuned values do not change."""
        target = self.target
        draft = self.draft
        has_batch = (self.batch, self.micro_batch) != (None, None)
        given = {
            "threads": target.threads is not None,
            "draft_threads": draft.threads is not None,
            "micro_batch": has_batch,
            "micro_batch_factor": has_batch,
            "target_kv_type": (target.kv_type_k, target.kv_type_v) != (None, None) or self.flash is False,
            "draft_flash_attention": self.flash_attention is not None,
            "draft_kv_type": (draft.kv_type_k, draft.kv_type_v) != (None, None),
            "more_experts_at_home": target.experts_at_home is not None,
            "draft_on_cpu": (draft.devices, draft.gpu_layers) != (None, None),
        }
        return tuple(name for name, is_given in given.items() if is_given)
