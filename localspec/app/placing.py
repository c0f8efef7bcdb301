"""The seam between the command line and the plan of who sits where."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from localspec import units
from localspec.app.options import MODES, PairOptions
from localspec.errors import ModelFileError, UserError
from localspec.types import ModelOptions

if TYPE_CHECKING:
    from localspec.hardware.device_info import Machine
    from localspec.hardware.devices import Ask
    from localspec.hardware.placement.candidates import DeviceAssignment, Placement, PlacementConstraints
    from localspec.inference.worker.client import Worker
    from localspec.inference.worker.wire import LogLine
    from localspec.models.shape import ModelShape

_FEW = 3  # alternatives, where nobody asks for all


def placed(
    args: argparse.Namespace,
    pair: PairOptions,
    tell: Callable[[str], None],
    *,
    via: Ask | None,
) -> PairOptions:
    """Return a pair where it sits on this machine; `tell` of the plan if asked to, or to the screen.

    `via` asks for the devices in the process that opens the models; the screen has none. Raises UserError.
    """
    if args.no_fit:
        if args.explain and via is not None:
            raise UserError("--explain tells of a plan, and --no-fit makes none", "keep one of them")
        return pair
    placement = plan(args, pair, via=via)
    if args.explain or via is None:
        for line in lines(placement, explain=args.explain, template=pair.target.chat_template):
            tell(line)
    return apply(placement, pair)


def plan(args: argparse.Namespace, pair: PairOptions, *, via: Ask | None = None) -> Placement:
    """Return who should sit where on this machine; raises UserError if the models fit nowhere."""
    from localspec.hardware.machine import known_machine  # looks at the devices: 0.3 s
    from localspec.hardware.placement.place import confirm, place

    target = _shape(pair.target.path, args)
    draft = None if pair.draft is None else _shape(pair.target.path, args, pair.draft.path)
    machine = known_machine(may_measure=False, via=via)
    asked = constraints(args, pair, machine)
    placement = place(machine, target, draft, asked)
    applied = apply(placement, pair)
    alone = draft is None or draft.is_head or applied.draft is None  # a head takes next to nothing
    shapes = (target,) if draft is None or alone else (target, draft)
    options = (applied.target,) if applied.draft is None or alone else (applied.target, applied.draft)
    confirm(placement, shapes, options, machine, asked)
    return placement


def _shape(path: Path, args: argparse.Namespace, draft: Path | None = None) -> ModelShape:
    """Return the shape of a target, or of what drafts for it."""
    from localspec.models.shape import read_draft_shape, read_shape

    try:
        return read_shape(path) if draft is None else read_draft_shape(path, draft)
    except ModelFileError as error:
        if args.model:
            raise
        hint = f"{error.hint}; `localspec setup` chooses what opens without -m"
        raise ModelFileError(error.message, hint) from None


def constraints(args: argparse.Namespace, pair: PairOptions, machine: Machine) -> PlacementConstraints:
    """Return what the arguments ask of a plan."""
    from localspec.hardware.memory.budget import parse_reserve
    from localspec.hardware.memory.needs import CacheTypes
    from localspec.hardware.placement.candidates import PlacementConstraints

    target, draft = pair.target, pair.draft
    return PlacementConstraints(
        context=target.context,
        cache=CacheTypes(target.kv_type_k, target.kv_type_v),
        draft_cache=CacheTypes() if draft is None else CacheTypes(draft.kv_type_k, draft.kv_type_v),
        flash_attention=target.flash_attention,
        micro_batch=target.micro_batch,
        max_fan_out=pair.max_fan_out,
        reserve=() if args.reserve is None else parse_reserve(args.reserve),
        devices=_devices(target, machine),
        gpu_layers=target.gpu_layers,
        tensor_split=target.tensor_split or None,
        threads=target.threads or None,
        draft_devices=None if draft is None else draft.devices,
        draft_gpu_layers=None if draft is None else draft.gpu_layers,
        draft_threads=None if draft is None else draft.threads or None,
        mode=None if args.mode in (None, MODES[0]) else args.mode,
    )


def _devices(options: ModelOptions, machine: Machine) -> tuple[str, ...] | None:
    """Return the devices that the target is bound to; without a split, the main one."""
    if options.split_mode == "layer":
        return options.devices
    cards = tuple(device.id for device in machine.devices if device.kind != "cpu")
    names = cards if options.devices is None else options.devices
    unable = [each.id for each in machine.devices if each.id in {*names} & {*cards} and not each.splits_rows]
    if options.split_mode == "row" and options.gpu_layers != 0 and unable:
        from localspec.llama.backends import rows_refused

        raise rows_refused(unable[0])
    if options.split_mode == "row" or not names:
        return options.devices
    if options.main_gpu >= len(names):
        raise UserError(f"-mg {options.main_gpu} names no device", f"there are {len(names)}, counted from 0")
    return (names[options.main_gpu],)


def apply(placement: Placement, pair: PairOptions) -> PairOptions:
    """Return the options that open a pair as planned; what was given by flags is in the plan already."""
    target, draft = placement.target, placement.draft
    options = _assigned(pair.target, target)
    if target.devices:
        options = replace(options, threads=target.threads)
    if draft is None or pair.draft is None:
        return replace(pair, target=options, draft=None)
    beside = _assigned(pair.draft, draft)
    if draft.devices or draft.threads != target.threads:  # else the runtime shares the processor out
        beside = replace(beside, threads=draft.threads)
    return replace(pair, target=options, draft=beside)


def _assigned(options: ModelOptions, assignment: DeviceAssignment) -> ModelOptions:
    options = replace(
        options,
        context=assignment.context,
        devices=assignment.devices,
        output_at_home=assignment.output_at_home,
    )
    if not assignment.devices:
        return replace(options, gpu_layers=0, tensor_split=())
    # llama.cpp counts the weights after the last layer, which the last device holds, as a layer
    shares = (*assignment.layers[:-1], assignment.layers[-1] + 1)
    split = tuple(map(float, shares)) if len(shares) > 1 else ()
    return replace(options, gpu_layers=sum(shares), tensor_split=split, main_gpu=0)


def lines(placement: Placement, *, explain: bool, template: Path | None = None) -> list[str]:
    """Return a plan in words, with the best of what was not taken, or all of it to `explain`.

    `template` is the file with a chat template that is used instead of the target's own.
    """
    found = [f"plan: {units.long_mode(placement.mode)}{_about(placement.tokens_per_s)}"]
    found += [f"  {reason[0].upper()}{reason[1:]}." for reason in placement.reasons]
    if template is not None:
        found.append(f"  Chats follow the template {template}, not the one in the model's file.")
    shown = placement.rejected if explain else placement.rejected[:_FEW]
    if shown:
        found.append("not taken:")
    found += [f"  {other.description}{_about(other.tokens_per_s)}: {other.reason}" for other in shown]
    more = len(placement.rejected) - len(shown)
    if more:
        found.append(f"  and {more} more, which --explain lists")
    return found


def _about(tokens_per_s: float | None) -> str:
    return "" if tokens_per_s is None else f", about {units.rate(tokens_per_s)} tokens/s"


def open_in_worker(
    pair: PairOptions,
    on_progress: Callable[[float], bool] | None = None,
    on_log: Callable[[LogLine], None] | None = None,
) -> Worker:
    """Open a pair that has its place, in a process of its own."""
    from localspec.inference.worker.client import Worker

    return Worker.open(
        pair.target,
        pair.draft,
        max_fan_out=pair.max_fan_out,
        on_progress=on_progress,
        on_log=on_log,
    )
