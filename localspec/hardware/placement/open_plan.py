"""The options that open a pair of models, and the reasons of its placement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.gguf import read_header
from localspec.hardware.memory.needs import context_size, target_attention
from localspec.models.pair_files import PairFiles
from localspec.models.pair_request import USUAL_FAN_OUT, ModelRequest, PairRequest
from localspec.models.shape import read_shape
from localspec.storage.tuned_settings import LoadOptions
from localspec.types.models import FLOAT_TYPES, ModelOptions, TensorOverride

if TYPE_CHECKING:
    from localspec.hardware.placement.candidates import Placement


@dataclass(frozen=True, slots=True)
class OpenPlan:
    """The options that open a target and at most one draft model.

    With 0 threads, the runtime divides the CPU's cores. Without a `placement`, llama.cpp places the models.
    `notes` are for the user. With `remembers_costs`, call costs are saved, not measured at every start.
    """

    target: ModelOptions
    draft: ModelOptions | None = None
    max_fan_out: int = USUAL_FAN_OUT
    placement: Placement | None = None
    notes: tuple[str, ...] = ()
    remembers_costs: bool = False
    seats: int = 1  # answers that are to share calls, where the models can

    def opened_with(self, found: LoadOptions) -> OpenPlan:
        """Return the plan with tuned options; fields that they leave at the default stay as planned."""
        usual = LoadOptions()
        target = self.target
        draft = self.draft
        target = replace(target, threads=found.threads or target.threads)
        notes = self.notes
        if found.target_kv_type != usual.target_kv_type:
            target = replace(target, kv_type_k=found.target_kv_type, kv_type_v=found.target_kv_type)
            notes += (_cache_note(found),)
            if target.kv_type_v not in FLOAT_TYPES and target.flash_attention is False:
                target = replace(target, flash_attention=None)  # which these need
        if found.more_experts_at_home:
            target = self._with_more_experts(target, found.more_experts_at_home)
        is_own = found.micro_batch != usual.micro_batch
        size = found.micro_batch if is_own else round(found.micro_batch_factor * target.micro_batch)
        if size != target.micro_batch:
            target = _as_wide(target, size)
            draft = draft and _as_wide(draft, size)
        if draft is None:
            return replace(self, target=target, notes=notes)
        draft = replace(draft, threads=found.draft_threads or draft.threads)
        if found.draft_flash_attention is not None:  # the target keeps its own, because it decides the text
            draft = replace(draft, flash_attention=found.draft_flash_attention)
        if found.draft_kv_type != usual.draft_kv_type:
            draft = replace(draft, kv_type_k=found.draft_kv_type, kv_type_v=found.draft_kv_type)
        if found.draft_on_cpu:
            draft = replace(draft, devices=(), gpu_layers=0, tensor_split=())
        return replace(self, target=target, draft=draft, notes=notes)

    @property
    def layers_with_experts_at_home(self) -> int:
        """Return the number of the target's layers with experts in RAM, in part or whole."""
        return self.target.experts_at_home + (self._part_at_home is not None)

    @property
    def _part_at_home(self) -> TensorOverride | None:
        return None if self.placement is None else self.placement.target.part_override

    def _with_more_experts(self, target: ModelOptions, more: int) -> ModelOptions:
        """Return the target with the experts of more whole layers in RAM than planned, or of fewer."""
        layers = read_header(target.path).integer("{arch}.block_count")
        number = min(max(0, self.layers_with_experts_at_home + more), layers)
        overrides = tuple(override for override in target.overrides if override != self._part_at_home)
        return replace(target, experts_at_home=number, overrides=overrides)


def _cache_note(found: LoadOptions) -> str:
    return (
        f"the target's cache is {found.target_kv_type}, which `localspec tune --allow-cache-types` found "
        "faster: answers may differ a little; -ctk f16 undoes it"
    )


def as_asked(files: PairFiles, request: PairRequest, *, on_processor: bool = False) -> OpenPlan:
    """Return a plan that leaves the placement to llama.cpp, except for requested places.

    `on_processor`: this llama.cpp has no other device than the CPU.
    """
    target = replace(
        _options(files.target, request.target, request),
        tensor_split=request.tensor_split,
        split_mode=request.split_mode or "layer",
        main_gpu=request.main_gpu,
        longest_draft=request.longest_draft,
        chat_template=files.chat_template,
        adapters=request.target.adapters,
    )
    draft = None if files.draft is None else _options(files.draft, request.draft, request)
    if on_processor:
        shape = read_shape(files.target)
        size = context_size(request.context or 0, shape.training_context)
        attention = target_attention(shape, request, size, on_processor=True)
        target = replace(target, flash_attention=attention.flash, micro_batch=attention.micro_batch)
        draft = draft and replace(draft, micro_batch=attention.micro_batch)
    return OpenPlan(target, draft, request.max_fan_out, notes=files.notes)


def _options(path: Path, asked: ModelRequest, request: PairRequest) -> ModelOptions:
    kv_type_k, kv_type_v = asked.kv_types
    return ModelOptions(
        path,
        context=request.context or 0,
        gpu_layers=asked.gpu_layers,
        devices=asked.devices,
        experts_at_home=_experts_at_home(path, asked),
        overrides=asked.overrides,
        kv_type_k=kv_type_k,
        kv_type_v=kv_type_v,
        flash_attention=request.flash,
        swa_full=request.swa_full,
        batch=request.batch_size,
        micro_batch=request.micro_batch_size,
        threads=asked.threads or 0,
        mmap=request.mmap,
    )


def _experts_at_home(path: Path, asked: ModelRequest) -> int:
    if asked.experts_at_home == "all":
        return read_header(path).integer("{arch}.block_count")
    return asked.experts_at_home or 0


def _as_wide(options: ModelOptions, micro_batch: int) -> ModelOptions:
    return replace(options, micro_batch=micro_batch, batch=max(options.batch, micro_batch))
