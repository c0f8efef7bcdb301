"""Plan a pair from its files and its request: the seam to the placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from localspec.child_process import ValuesOf
from localspec.errors import EngineError, ModelFileError, UserError
from localspec.gguf import read_header, read_model
from localspec.hardware.bandwidth import PROCESSOR
from localspec.hardware.device_info import DescribedMachine, Machine
from localspec.hardware.memory.budget import MemoryBudget, Models, check_fit
from localspec.hardware.memory.needs import Needs, estimate, exact
from localspec.hardware.placement.candidates import DeviceAssignment, Placement, PlacementSearch
from localspec.hardware.placement.explain import bars, outlook
from localspec.hardware.placement.measured import MeasuredCompute, kind_of
from localspec.hardware.placement.open_plan import OpenPlan, as_asked
from localspec.hardware.placement.place import place
from localspec.llama.backends import rows_refused
from localspec.llama.overrides import check_order, check_overrides, experts_override
from localspec.llama.tensor_split import check_tensor_split
from localspec.models.pair_files import PairFiles
from localspec.models.pair_request import PairRequest
from localspec.models.shape import ModelShape, read_draft_shape, read_shape, with_adapters
from localspec.types.models import ModelOptions, TensorOverride

Shapes = tuple[ModelShape, ModelShape | None]
"""The target's, and that of what drafts for it."""

_QUESTIONS = 4  # at most, before a plan
_CLOSE = 0.15  # share of the CPU's free memory; the formula's error is less than that


def plan_pair(
    files: PairFiles, request: PairRequest, machine: Machine, via: ValuesOf | None = None
) -> OpenPlan:
    """Return the placement of the models on a machine; raises UserError if they do not fit.

    llama.cpp confirms what GPUs hold, in a child process or the one of `via`.
    """
    shapes = _shapes(files, request)
    request = on_machine(request, machine)
    _check_overrides(files, request, machine)
    if request.split_mode == "tensor":
        _check_divided(files, request, machine)
    asked = as_asked(files, request)
    if isinstance(machine, DescribedMachine):  # llama.cpp knows only the devices that are here
        return placed_as(place(machine, *shapes, request), asked)
    return _confirmed(machine, shapes, request, asked, via)


def _confirmed(
    machine: Machine, shapes: Shapes, request: PairRequest, asked: OpenPlan, via: ValuesOf | None
) -> OpenPlan:
    """Plan by formula, and again with what llama.cpp says of the plan, until it knows the one that is chosen.

    If llama.cpp does not know, the formula counts.
    """
    measured = MeasuredCompute()
    plan = asked
    misfit = None
    for _ in range(_QUESTIONS):
        try:
            placement = place(machine, *shapes, request, measured)
        except UserError as error:
            raise (misfit or error) from None
        plan = placed_as(placement, asked)
        planned = _planned(placement, shapes, request, machine)
        models = tuple(model for model in planned if not model[0].is_head)  # which take next to nothing
        kinds = [kind_of(shape, asks, is_draft=bool(number)) for number, (shape, asks) in enumerate(models)]
        options = [plan.target] if len(models) == 1 or plan.draft is None else [plan.target, plan.draft]
        if _is_certain(placement, machine, request) or all(map(measured.knows, kinds)):
            return plan
        try:
            found = exact(*options, max_fan_out=request.max_fan_out, via=via)
        except EngineError:
            return plan
        for kind, needs in zip(kinds, found, strict=True):
            measured = measured.with_needs(kind, needs)
        misfit = _misfit(found, machine, request, models)
    if misfit is not None:
        raise misfit
    return plan


def _misfit(
    needs: Sequence[Needs], machine: Machine, request: PairRequest, models: Models
) -> UserError | None:
    """Return the error if models do not fit by these needs."""
    try:
        check_fit(chain(*needs), machine, request.reserve, models)
    except UserError as error:
        return error
    return None


def _is_certain(placement: Placement, machine: Machine, request: PairRequest) -> bool:
    """Return whether a plan without GPUs leaves enough memory free for any error of the formula."""
    budget = MemoryBudget(machine, request.reserve)
    assigned = (placement.target,) if placement.draft is None else (placement.target, placement.draft)
    left = budget.left(need for assignment in assigned for need in assignment.needs)
    uses_gpus = any(assignment.devices for assignment in assigned)
    return not uses_gpus and left[PROCESSOR] >= _CLOSE * budget.free[PROCESSOR]


def with_longest_context(
    plan: OpenPlan,
    files: PairFiles,
    request: PairRequest,
    machine: Machine,
    via: ValuesOf | None = None,
    *,
    shares: bool = False,
) -> OpenPlan:
    """Return a plan with the largest context, up to the trained one, that fits where it puts the models.

    Half of the CPU's free memory stays free, and with `shares`, for other pairs, half of each GPU's. What
    GPUs hold is confirmed as in `plan_pair`.
    """
    placement = plan.placement
    if placement is None:
        return plan
    shapes = _shapes(files, request)
    usual = _planned(placement, shapes, on_machine(request, machine), machine)
    budget = MemoryBudget(machine, request.reserve)
    left = _left(usual, budget)
    kept = {device: left[device] // 2 if shares else 0 for device in left}
    kept[PROCESSOR] = max(left[PROCESSOR] // 2, int(_CLOSE * budget.free[PROCESSOR]))
    for size in _larger_contexts(placement.target.context, shapes[0].training_context):
        larger = _with_context(placement, size)
        models = _planned(larger, shapes, on_machine(request, machine), machine)
        larger = replace(larger, flash_attention=models[0][1].flash_attention)
        wider = _opened_like(plan, larger)
        if all(free >= kept[device] for device, free in _left(models, budget).items()):
            if placement.target.devices and not _is_confirmed(wider, machine, request, models, via):
                continue
            return wider
    return plan


def needs_of(plan: OpenPlan, files: PairFiles, request: PairRequest, machine: Machine) -> Needs:
    """Return the needs of a plan on each device; none where llama.cpp places the models."""
    if plan.placement is None:
        return ()
    models = _planned(plan.placement, _shapes(files, request), on_machine(request, machine), machine)
    return tuple(need for shape, asks in models for need in estimate(shape, asks))


def _left(models: Models, budget: MemoryBudget) -> dict[str, int]:
    """Return the bytes that models leave free on each device; negative if they do not fit."""
    return budget.left(need for shape, asks in models for need in estimate(shape, asks))


def _larger_contexts(usual: int, trained: int) -> list[int]:
    """Return the trained context and the powers of two below it, down to the usual one, the largest first."""
    powers = (1 << bits for bits in reversed(range(trained.bit_length())))
    return [size for size in dict.fromkeys((trained, *powers)) if size > usual]


def _with_context(placement: Placement, size: int) -> Placement:
    draft = placement.draft and replace(placement.draft, context=size)
    return replace(placement, target=replace(placement.target, context=size), draft=draft)


def _opened_like(plan: OpenPlan, placement: Placement) -> OpenPlan:
    """Return a plan with the context of another placement, and with the attention that this asks for."""
    size = placement.target.context
    flash = placement.flash_attention
    return replace(
        plan,
        target=replace(plan.target, context=size, flash_attention=flash),
        draft=plan.draft and replace(plan.draft, context=size),
        placement=placement,
    )


def _is_confirmed(
    plan: OpenPlan, machine: Machine, request: PairRequest, models: Models, via: ValuesOf | None
) -> bool:
    """Return whether the models fit by what llama.cpp says of them."""
    options = [plan.target] if plan.draft is None else [plan.target, plan.draft]
    try:
        found = exact(*options, max_fan_out=request.max_fan_out, via=via)
    except EngineError:
        return False
    return _misfit(found, machine, request, models) is None


def _planned(placement: Placement, shapes: Shapes, request: PairRequest, machine: Machine) -> Models:
    """Return the models of a placement with what they ask of memory."""
    cache = placement.draft_cache
    draft = replace(request.draft, kv_type_k=cache.keys, kv_type_v=cache.values)
    request = replace(request, micro_batch=placement.micro_batch, draft=draft)
    search = PlacementSearch(machine, shapes, request)
    pairs = zip(shapes, (placement.target, placement.draft), strict=True)
    return tuple(
        (shape, search.memory_request(shape, assignment.split, assignment.context))
        for shape, assignment in pairs
        if shape is not None and assignment is not None
    )


def explained(placement: Placement, files: PairFiles, request: PairRequest, machine: Machine) -> list[str]:
    """Return the memory of a planned pair as bars, and what other caches would change, in lines."""
    request = on_machine(request, machine)
    models = _planned(placement, _shapes(files, request), request, machine)
    budget = MemoryBudget(machine, request.reserve)
    return [*bars(placement, budget), *outlook(models, budget, may_quantise=request.flash is not False)]


def _shapes(files: PairFiles, request: PairRequest) -> Shapes:
    """Return the shapes of the target and of what drafts for it."""
    target = _shape(files.target, request)
    return target, None if files.draft is None else _shape(files.target, request, files.draft)


def _shape(path: Path, request: PairRequest, draft: Path | None = None) -> ModelShape:
    """Return the shape of a target, or of what drafts for it."""
    try:
        if draft is None:
            adapters = [read_header(adapter.path) for adapter in request.target.adapters]
            return with_adapters(read_shape(path, request.target.overrides), adapters)
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
            devices = cards if asked.devices is None else asked.devices
            header = read_model(path)
            on_tensors, on_experts = flags
            number = asked.experts_at_home
            if number == "all":
                number = header.integer("{arch}.block_count")
                on_experts = on_experts.replace("-nc", "-c")
            check_overrides(header, asked.overrides, number, devices, (on_tensors, on_experts))
            check_order(header, asked.overrides, on_tensors)


def _check_divided(files: PairFiles, request: PairRequest, machine: Machine) -> None:
    """Raise UserError for a split by tensor that cannot be."""
    if request.target.overrides:
        raise UserError("-sm tensor divides weights that -ot puts elsewhere", "use -ncmoe, or -sm layer")
    cards = _target_cards(request, machine)
    shares = request.tensor_split
    check_tensor_split(read_model(files.target), cards, request.flash, shares)


def on_machine(request: PairRequest, machine: Machine) -> PairRequest:
    """Return a request with the devices that its split leaves to the target; without a split, the main one.

    Raises UserError for a split that these devices cannot do.
    """
    if request.split_mode in {None, "layer", "tensor"}:
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


def _target_cards(request: PairRequest, machine: Machine) -> tuple[str, ...]:
    """Return the GPUs that a request lets its target use."""
    asked = request.target
    if asked.gpu_layers == 0:
        return ()
    cards = tuple(device.id for device in machine.devices if device.kind != "cpu")
    return cards if asked.devices is None else tuple(name for name in asked.devices if name != PROCESSOR)


def placed_as(placement: Placement, plan: OpenPlan) -> OpenPlan:
    """Return a plan that opens the models where a placement puts them."""
    target = placement.target
    draft = placement.draft
    options = _with_batch(_assigned(plan.target, target), placement)
    options = replace(options, flash_attention=placement.flash_attention)
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
    if (part := assignment.part_override) is not None:
        options = replace(options, overrides=(*options.overrides, part))
    if assignment.shares:
        counted = assignment.split.on_cards + assignment.prediction_layers + 1
        uneven = assignment.shares if len({*assignment.shares}) > 1 else ()
        return replace(options, split_mode="tensor", gpu_layers=counted, tensor_split=uneven, main_gpu=0)
    # llama.cpp counts prediction layers and the output layer, on the last device, as layers
    shares = (*assignment.layers[:-1], assignment.layers[-1] + assignment.prediction_layers + 1)
    split = tuple(map(float, shares)) if len(shares) > 1 else ()
    return replace(options, gpu_layers=sum(shares), tensor_split=split, main_gpu=0)
