"""Plan a pair from its files and its request: the seam to the placement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from localspec.errors import ModelFileError, UserError
from localspec.gguf import read_header, read_model
from localspec.hardware.device_info import DescribedMachine, Machine
from localspec.hardware.placement.candidates import DeviceAssignment, Placement, PlacementSearch
from localspec.hardware.placement.explain import bars, outlook
from localspec.hardware.placement.open_plan import OpenPlan, as_asked
from localspec.hardware.placement.place import confirm, place
from localspec.llama.backends import rows_refused
from localspec.llama.overrides import check_overrides, experts_override
from localspec.models.pair_files import PairFiles
from localspec.models.pair_request import PairRequest
from localspec.models.shape import ModelShape, read_draft_shape, read_shape
from localspec.types.models import ModelOptions, TensorOverride


def plan_pair(files: PairFiles, request: PairRequest, machine: Machine) -> OpenPlan:
    """Return the placement of the models on a machine; raises UserError if they do not fit."""
    target, draft = _shapes(files, request)
    request = on_machine(request, machine)
    _check_overrides(files, request, machine)
    placement = place(machine, target, draft, request)
    plan = placed_as(placement, as_asked(files, request))
    alone = draft is None or draft.is_head or plan.draft is None  # a head takes next to nothing
    shapes = (target,) if draft is None or alone else (target, draft)
    options = (plan.target,) if plan.draft is None or alone else (plan.target, plan.draft)
    if not isinstance(machine, DescribedMachine):  # llama.cpp knows only the devices that are here
        confirm(placement, shapes, options, machine, request)
    return plan


def explained(placement: Placement, files: PairFiles, request: PairRequest, machine: Machine) -> list[str]:
    """Return the memory of a planned pair as bars, and what other caches would change, in lines."""
    shapes, cache = _shapes(files, request), placement.draft_cache
    draft = replace(request.draft, kv_type_k=cache.keys, kv_type_v=cache.values)
    request = replace(on_machine(request, machine), micro_batch=placement.micro_batch, draft=draft)
    search = PlacementSearch(machine, shapes, request)
    pairs = zip(shapes, (placement.target, placement.draft), strict=True)
    models = tuple(
        (shape, search.memory_request(shape, assignment.split, assignment.context))
        for shape, assignment in pairs
        if shape is not None and assignment is not None
    )
    return [*bars(placement, search.budget), *outlook(models, search.budget)]


def _shapes(files: PairFiles, request: PairRequest) -> tuple[ModelShape, ModelShape | None]:
    """Return the shapes of the target and of what drafts for it."""
    target = _shape(files.target, request)
    return target, None if files.draft is None else _shape(files.target, request, files.draft)


def _shape(path: Path, request: PairRequest, draft: Path | None = None) -> ModelShape:
    """Return the shape of a target, or of what drafts for it."""
    try:
        if draft is None:
            return read_shape(path, request.target.overrides)
        return read_draft_shape(path, draft, request.draft.overrides)
    except ModelFileError as error:
        if request.target.name:
            raise
        hint = f"{error.hint}; `localspec setup` chooses what opens without -m"
        raise ModelFileError(error.message, hint) from None


def _check_overrides(files: PairFiles, request: PairRequest, machine: Machine) -> None:
    """Raise UserError for overrides of weights that do not fit the models."""
    sides = (
        (files.target, request.target, ("-ot", "-ncmoe")),
        (files.draft, request.draft, ("-otd", "-ncmoed")),
    )
    cards = tuple(device.id for device in machine.devices if device.kind != "cpu")
    for path, asked, flags in sides:
        if path is not None and (asked.overrides or asked.experts_at_home):
            number = None if asked.experts_at_home == "all" else asked.experts_at_home
            devices = cards if asked.devices is None else asked.devices
            check_overrides(read_model(path), asked.overrides, number, devices, flags)


def on_machine(request: PairRequest, machine: Machine) -> PairRequest:
    """Return a request with the devices that its split leaves to the target; without a split, the main one.

    Raises UserError for a split that these devices cannot do.
    """
    if request.split_mode == "layer":
        return request
    asked = request.target
    cards = tuple(device.id for device in machine.devices if device.kind != "cpu")
    names = cards if asked.devices is None else asked.devices
    unable = [each.id for each in machine.devices if each.id in {*names} & {*cards} and not each.splits_rows]
    if request.split_mode == "row" and asked.gpu_layers != 0 and unable:
        raise rows_refused(unable[0])
    if request.split_mode == "row" or not names:
        return request
    if request.main_gpu >= len(names):
        raise UserError(f"-mg {request.main_gpu} names no device", f"there are {len(names)}, counted from 0")
    return replace(request, target=replace(asked, devices=(names[request.main_gpu],)))


def placed_as(placement: Placement, plan: OpenPlan) -> OpenPlan:
    """Return a plan that opens the models where a placement puts them."""
    target, draft = placement.target, placement.draft
    options = _with_batch(_assigned(plan.target, target), placement)
    if target.devices:
        options = replace(options, threads=target.threads)
    if draft is None or plan.draft is None:
        return replace(plan, target=options, draft=None, placement=placement)
    cache = placement.draft_cache
    beside = replace(
        _with_batch(_assigned(plan.draft, draft), placement), kv_type_k=cache.keys, kv_type_v=cache.values
    )
    if draft.experts_at_home and (head := _head_experts(beside.path)):
        beside = replace(beside, experts_at_home=0, overrides=(*beside.overrides, head))
        if beside.path == options.path:  # they are loaded with the target
            options = replace(options, overrides=(*options.overrides, head))
    if draft.devices or draft.threads != target.threads:  # else the runtime shares the CPU out
        beside = replace(beside, threads=draft.threads)
    return replace(plan, target=options, draft=beside, placement=placement)


def _head_experts(path: Path) -> TensorOverride | None:
    """Return the override that keeps the experts of a file's MTP head in RAM, None without such a head."""
    header = read_header(path)
    blocks = header.integer("{arch}.block_count")
    heads = header.integer("{arch}.nextn_predict_layers")
    return experts_override(range(blocks - heads, blocks)) if heads else None


def _with_batch(options: ModelOptions, placement: Placement) -> ModelOptions:
    size = placement.micro_batch
    return replace(options, micro_batch=size, batch=max(options.batch, size), mmap=placement.mmap)


def _assigned(options: ModelOptions, assignment: DeviceAssignment) -> ModelOptions:
    options = replace(
        options,
        context=assignment.context,
        devices=assignment.devices,
        output_at_home=assignment.output_at_home,
        experts_at_home=assignment.experts_at_home,
    )
    if not assignment.devices:
        return replace(options, gpu_layers=0, tensor_split=())
    if assignment.parts_at_home:
        part = experts_override([assignment.experts_at_home], assignment.parts_at_home)
        options = replace(options, overrides=(*options.overrides, part))
    # llama.cpp counts prediction layers and the output layer, on the last device, as layers
    shares = (*assignment.layers[:-1], assignment.layers[-1] + assignment.prediction_layers + 1)
    split = tuple(map(float, shares)) if len(shares) > 1 else ()
    return replace(options, gpu_layers=sum(shares), tensor_split=split, main_gpu=0)
