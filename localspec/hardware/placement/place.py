"""Decide who sits where on this machine: a pure function from devices, sizes and constraints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

from localspec import units
from localspec.errors import EngineError, UserError
from localspec.hardware.device_info import Machine
from localspec.hardware.memory.budget import MemoryBudget, check_fit, reserve_on, ways_out
from localspec.hardware.memory.needs import CacheTypes, LayerSplit, MemoryRequest, Needs, exact
from localspec.hardware.placement import words
from localspec.hardware.placement.candidates import PlacementCandidate, PlacementSearch
from localspec.hardware.placement.constraints import (
    Alternative,
    DeviceAssignment,
    Placement,
    PlacementConstraints,
)
from localspec.models.shape import ModelShape
from localspec.types import ModelOptions

CLOSE = 0.15  # of what a device has to give: the formula may be wrong by less than that


def place(
    machine: Machine,
    target: ModelShape,
    draft: ModelShape | None,
    constraints: PlacementConstraints,
) -> Placement:
    """Return the fastest placement that fits and keeps the constraints, with reasons.

    Raises `UserError`, with the numbers and three ways out, if there is none.
    """
    search = PlacementSearch(machine, (target, draft), constraints)
    chosen = search.chosen()
    if chosen is None:
        raise _refusal(search)
    for_target, for_draft = search.threads(chosen.target, chosen.draft).alone

    def assigned(split: LayerSplit, threads: int, needs: Needs) -> DeviceAssignment:
        return DeviceAssignment(split.devices, split.layers, threads, chosen.context, needs)

    return Placement(
        target=assigned(chosen.target, for_target, chosen.target_needs),
        draft=None if chosen.draft is None else assigned(chosen.draft, for_draft, chosen.draft_needs),
        mode=chosen.best.mode,
        tokens_per_s=chosen.best.tokens_per_s,
        reasons=(*_reasons(chosen, search), *_costs_of_overrides(chosen, machine, search)),
        rejected=tuple(_rejected(chosen, search)),
    )


def _reasons(chosen: PlacementCandidate, search: PlacementSearch) -> Iterable[str]:
    yield words.target_reason(chosen, search)
    if chosen.context < search.contexts[0]:
        usual = search.fitting(search.contexts[0])
        gain = (
            "more does not fit"
            if usual is None
            else f"with {search.contexts[0]:,} it would write {words.rate(usual.best.tokens_per_s)} tokens/s "
            f"instead of {words.rate(chosen.best.tokens_per_s)}"
        )
        yield f"the context is {chosen.context:,} tokens: {gain}"
    for reason in (words.draft_reason(chosen, search), words.shape_reason(search)):
        if reason is not None:
            yield reason
    yield words.speed_reason(chosen, search)
    yield from words.rate_reasons(chosen, search)


def _costs_of_overrides(
    chosen: PlacementCandidate, machine: Machine, search: PlacementSearch
) -> Iterable[str]:
    """Say what the flags that override parts of the plan cost against the plan without them."""
    free = search.constraints.without_overrides()
    if free == search.constraints:
        return
    other = PlacementSearch(machine, (search.target, search.draft), replace(free, context=chosen.context))
    best = other.chosen()
    if best is None:
        return
    got, could = chosen.best.tokens_per_s, best.best.tokens_per_s
    if got > 0.99 * could:
        yield "the flags cost no speed against the plan without them"
        return
    moved = [
        f"{units.memory(abs(more))} {'more' if more > 0 else 'less'} on {name}"
        for name, more in _differences(chosen, best).items()
        if abs(more) >= 2**20
    ]
    bytes_ = f": {', '.join(moved)}" if moved else ""
    yield (
        f"the flags cost {words.rate(could - got)} of {words.rate(could)} expected tokens/s against the plan "
        f"without them ({words.describe(best, other)}){bytes_}"
    )


def _differences(chosen: PlacementCandidate, other: PlacementCandidate) -> dict[str, int]:
    more: dict[str, int] = {}
    for sign, found in ((1, chosen), (-1, other)):
        for need in (*found.target_needs, *found.draft_needs):
            more[need.device] = more.get(need.device, 0) + sign * need.total
    return more


def _rejected(chosen: PlacementCandidate, search: PlacementSearch) -> Iterable[Alternative]:
    """Yield every other placement once, the fastest first and those that do not fit last."""
    for text, reason, speed in words.mode_alternatives(chosen):
        yield Alternative(text, reason, speed.tokens_per_s)
    if chosen.context < search.contexts[0]:
        usual = search.fitting(search.contexts[0])
        if usual is not None:
            text = f"{usual.context:,} tokens of context: {words.describe(usual, search)}"
            yield Alternative(text, "slower", usual.best.tokens_per_s)
    seen = {words.describe(chosen, search)}
    others = sorted(search.at(chosen.context), key=lambda other: other.preference, reverse=True)
    for other in sorted(others, key=lambda other: bool(other.shortages)):
        text = words.describe(other, search)
        if text in seen:
            continue
        seen.add(text)
        lack = f"does not fit: {words.lack(other.shortages)}" if other.shortages else ""
        yield Alternative(text, lack or words.slower_reason(other, chosen, search), other.best.tokens_per_s)


def _refusal(search: PlacementSearch) -> UserError:
    """Return the error for models that fit nowhere: the numbers and three ways out."""
    nearest = search.nearest()
    models = [(search.target, search.request(search.target, nearest.target, nearest.context))]
    ways = []
    if search.draft is not None and nearest.draft is not None:
        models.append((search.draft, search.request(search.draft, nearest.draft, nearest.context)))
        ways.append("leave the draft model out")
    ways += ["close programs that hold memory", "keep less free (--reserve)", "choose a smaller model"]
    worked_out = ways_out(tuple(models), search.budget)
    return UserError(
        f"{search.target.name} does not fit with {nearest.context:,} tokens of context: "
        f"{words.lack(nearest.shortages)}",
        f"three ways out: {'; '.join((*worked_out, *ways)[:3])}",
    )


def confirm(
    placement: Placement,
    shapes: tuple[ModelShape, ...],
    options: tuple[ModelOptions, ...],
    machine: Machine,
    constraints: PlacementConstraints,
) -> None:
    """Raise `UserError` if models that the plan holds for fitting do not; `options` open them as planned.

    Where the plan leaves room enough, or llama.cpp cannot tell, the plan's own figures stand.
    """
    assignments = [assignment for assignment in (placement.target, placement.draft) if assignment is not None]
    budget = MemoryBudget(machine, reserve_on(machine, constraints.reserve))
    planned = [need for assignment in assignments for need in assignment.needs]
    left = budget.left(planned)
    if all(left[need.device] >= CLOSE * budget.free[need.device] for need in planned):
        return
    try:
        needs = exact(*options, max_fan_out=constraints.max_fan_out)
    except EngineError:
        return
    requests = zip(shapes, assignments, (constraints.cache, constraints.draft_cache), strict=False)
    models = tuple((shape, _request(assignment, cache, constraints)) for shape, assignment, cache in requests)
    check_fit(chain(*needs), machine, constraints.reserve, models)


def _request(
    assignment: DeviceAssignment, cache: CacheTypes, constraints: PlacementConstraints
) -> MemoryRequest:
    split = LayerSplit(assignment.devices, assignment.layers)
    return MemoryRequest(
        split, assignment.context, cache, constraints.flash_attention, constraints.micro_batch
    )
