"""Placements in plain words: who sits where, why, and why not elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.decoding.speed_model import ACCEPTANCE, HIT_RATE, PredictedSpeed
from localspec.hardware.bandwidth import PROCESSOR
from localspec.hardware.memory.budget import Shortage
from localspec.hardware.memory.needs import DeviceNeed, LayerSplit
from localspec.hardware.placement.candidates import PlacementCandidate, PlacementSearch, is_recurrent
from localspec.units import MODE_NAMES, memory

_MIXTURE = 0.8  # a model that reads less than this share of its layers for one token is a mixture of experts


def rate(tokens_per_s: float) -> str:
    """Return tokens per second as people say them."""
    return f"{tokens_per_s:,.{0 if tokens_per_s >= 20 else 1}f}"


def describe(found: PlacementCandidate, search: PlacementSearch) -> str:
    """Return who would sit where, in a few words."""
    target = f"target on {_assignments(found.target, len(search.target.layers))}"
    if search.draft is None:
        return target
    if found.draft is None:
        return f"{target}, no draft"
    draft = _assignments(found.draft, len(search.draft.layers))
    return f"{target}, draft on {draft} ({MODE_NAMES[found.best.mode]})"


def _assignments(split: LayerSplit, layers: int) -> str:
    if not split.devices:
        return "the processor"
    rest = layers - split.on_cards
    if rest == 0 and len(split.devices) == 1:
        return split.devices[0]
    parts = [f"{name} ({count} layers)" for name, count in zip(split.devices, split.layers, strict=True)]
    if rest:
        parts.append(f"the processor ({rest} layers)")
    return ", ".join(parts[:-1]) + " and " + parts[-1]


def lack(shortages: Sequence[Shortage]) -> str:
    """Return what does not fit, with the numbers."""
    return ", ".join(
        f"{short.device} has {memory(short.available)} to give and {memory(short.needed)} are needed"
        for short in shortages
    )


def target_reason(found: PlacementCandidate, search: PlacementSearch) -> str:
    """Return why the target sits where it does."""
    needs, split = found.target_needs, found.target
    total, layers = memory(sum(need.total for need in needs)), len(search.target.layers)
    if not split.devices:
        why = "" if search.budget.cards else "; this build of llama.cpp finds no graphics card"
        return f"the target ({total}) computes on the processor{why}"
    rest = layers - split.on_cards
    if rest == 0 and len(split.devices) == 1:
        name = split.devices[0]
        return f"the target needs {memory(_on(needs, name))} and fits on {_roomy(search, name)}"
    parts = [
        f"{count} of {layers} layers ({memory(_on(needs, name))}) on {_roomy(search, name)}"
        for name, count in zip(split.devices, split.layers, strict=True)
    ]
    if rest:
        parts.append(f"{rest} with the processor ({memory(_on(needs, PROCESSOR))})")
    return f"the target needs {total} and is split: {', '.join(parts)}"


def _roomy(search: PlacementSearch, name: str) -> str:
    free, reserve = search.budget.devices[name].memory_free, search.budget.reserve[name]
    return f"{name} ({memory(free)} free, {memory(reserve)} of it kept free)"


def _on(needs: Sequence[DeviceNeed], name: str) -> int:
    return sum(need.total for need in needs if need.device == name)


def draft_reason(found: PlacementCandidate, search: PlacementSearch) -> str | None:
    """Return why the draft sits where it does, or why it stays closed."""
    if search.draft is None:
        return None
    if found.draft is None:
        return f"the draft stays closed: {_why_closed(search)}"
    if search.cannot_rewind:
        return f"the draft stays idle: {_why_closed(search)}"
    return _draft_place(found, found.draft, len(search.draft.layers), search)


def _why_closed(search: PlacementSearch) -> str:
    shapes = {"target": search.target, "draft": search.draft}
    for who, shape in shapes.items():
        if shape is not None and is_recurrent(shape):
            return f"the {who} keeps a running state and cannot take tokens back, so decoding is plain"
    if search.constraints.mode in {"off", "ngram"}:
        return f"mode {search.constraints.mode} does not ask it"
    return "no device has room for it"


def _draft_place(found: PlacementCandidate, split: LayerSplit, layers: int, search: PlacementSearch) -> str:
    mode = found.best.mode
    draft = f"the draft ({memory(sum(need.total for need in found.draft_needs))})"
    where = _assignments(split, layers)
    draft_at, target_at = set(split.devices or (PROCESSOR,)), set(found.target.devices or (PROCESSOR,))
    if mode == "ssd" and draft_at == target_at == {PROCESSOR}:
        verifies, drafts = search.threads(found.target, split).together
        cores = "core" if verifies == 1 else "cores"
        shares = f"{verifies} {cores} for the target, {drafts} for drafting ahead (SSD)"
        return f"{draft} shares the processor: {shares}"
    if mode == "ssd":
        return f"{draft} sits on {where}, so that it works while the target verifies: SSD"
    if mode == "off":
        return f"{draft} sits on {where}, ready in case measured costs speak for it"
    if search.budget.cards and not split.devices and search.constraints.draft_devices is None:
        return f"{draft} sits on {where}: the cards' memory is worth more to the target"
    if draft_at.isdisjoint(target_at):
        return f"{draft} sits on {where}; they take turns, because drafting ahead would not hide enough"
    return f"{draft} sits on {where} beside the target, and they take turns"


def speed_reason(found: PlacementCandidate, search: PlacementSearch) -> str:
    """Return the expected speeds and what they assume."""
    figures = ", ".join(f"{MODE_NAMES[speed.mode]} {rate(speed.tokens_per_s)}" for speed in found.speeds)
    if len(found.speeds) == 1:
        return f"expected tokens/s: {figures}"
    known = search.draft.acceptance if search.draft else None
    if known is not None:
        return (
            f"expected tokens/s: {figures}, if {known:.0%} of the draft's tokens are accepted, as its file "
            "tells of the target that it was made for, and as many of the outcomes were prepared"
        )
    return (
        f"expected tokens/s: {figures}, if {ACCEPTANCE:.0%} of the draft's tokens are accepted and "
        f"{HIT_RATE:.0%} of the outcomes were prepared (assumed until the models are open)"
    )


def shape_reason(search: PlacementSearch) -> str | None:
    """Return what is special about the target's shape."""
    layers = search.target.layers
    read, whole = sum(layer.read_bytes for layer in layers), sum(layer.weight_bytes for layer in layers)
    if search.draft is None or read >= _MIXTURE * whole:
        return None
    return (
        f"the target is a mixture of experts: one token reads {memory(read)} of its {memory(whole)}, "
        "several at once read more, so that speculation gains less"
    )


def rate_reasons(found: PlacementCandidate, search: PlacementSearch) -> list[str]:
    """Return which rates of devices in use were not measured."""
    used = {need.device for need in (*found.target_needs, *found.draft_needs)}
    reasons = []
    for name, known in search.rates.of.items():
        if name not in used or known.origin == "measured":
            continue
        if name == PROCESSOR and not _computes(found, search):
            continue
        source = {
            "theoretical": "70% of its theoretical rate",
            "name": "from what its maker states of the chip",
            "kind": "assumed for a device of its kind",
        }[known.origin]
        reasons.append(
            f"{name}'s memory rate was not measured: {known.read / 1e9:.0f} GB/s, {source} "
            "(`localspec devices` measures it)"
        )
    return reasons


def _computes(found: PlacementCandidate, search: PlacementSearch) -> bool:
    return search.uses_processor(search.target, found.target) or (
        found.draft is not None
        and search.draft is not None
        and search.uses_processor(search.draft, found.draft)
    )


def slower_reason(found: PlacementCandidate, chosen: PlacementCandidate, search: PlacementSearch) -> str:
    """Return why a placement that fits was not taken."""
    if found.best.tokens_per_s > 0.999 * chosen.best.tokens_per_s:
        return _equal_reason(found, chosen)
    if found.draft is None and chosen.draft is not None:
        return "nothing guesses ahead"
    rest = len(search.target.layers) - found.target.on_cards
    if rest > len(search.target.layers) - chosen.target.on_cards:
        return f"{rest} of the target's layers would be with the slower processor"
    if found.draft is not None and found.draft != chosen.draft:
        if not found.draft.devices:
            return "the processor drafts more slowly"
        shared = [name for name in found.draft.devices if name in found.target.devices]
        if shared:
            return f"draft and target would share {shared[0]} and take turns"
    other = [name for name in found.target.devices if name not in chosen.target.devices]
    return f"a part of the target would sit on {other[0]}, which reads more slowly" if other else "slower"


def _equal_reason(found: PlacementCandidate, chosen: PlacementCandidate) -> str:
    if chosen.draft is not None and found.draft is None:
        return "no faster, and without a draft speculation cannot be tried"
    if len(found.target.devices) > len(chosen.target.devices):
        return "no faster, and takes more cards"
    if found.draft is not None and found.best.mode == "off" and found.draft != chosen.draft:
        return "no faster, and speculation would gain less there"
    return "no faster, and leaves less room on a card"


def mode_alternatives(chosen: PlacementCandidate) -> list[tuple[str, str, PredictedSpeed]]:
    """Return the other ways of decoding on the chosen devices: what, why not, how fast."""
    reasons = {
        "off": "speculation writes several tokens in one pass of the target",
        "sd": "the target would wait while the draft guesses",
        "ssd": "drafting ahead does not hide enough here",
    }
    if chosen.best.mode == "off":
        reasons = dict.fromkeys(reasons, "expected to gain less than 5% over plain decoding")
    return [
        (f"the same seats with {MODE_NAMES[speed.mode]}", reasons[speed.mode], speed)
        for speed in chosen.speeds[1:]
    ]
