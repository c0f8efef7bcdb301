"""Decide the placement of models: a pure function of devices, sizes and constraints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from localspec.decoding.speed_model import ACCEPTANCE, HIT_RATE
from localspec.errors import UserError
from localspec.hardware.bandwidth import PROCESSOR
from localspec.hardware.device_info import DescribedMachine, Machine
from localspec.hardware.memory.budget import Shortage, suggestions
from localspec.hardware.memory.needs import (
    CacheTypes,
    DeviceNeed,
    LayerSplit,
    Needs,
    experts_at_home,
)
from localspec.hardware.placement.candidates import (
    Alternative,
    DeviceAssignment,
    Placement,
    PlacementCandidate,
    PlacementSearch,
)
from localspec.hardware.placement.measured import MeasuredCompute
from localspec.hardware.placement.passes import ACTIVATION, LOGIT, SUMS_PER_LAYER
from localspec.models.pair_request import PairRequest
from localspec.models.shape import ModelShape
from localspec.types.models import GivenTemplate
from localspec.units import MODE_NAMES, bandwidth, long_mode, memory, rate, size

_MIXTURE = 0.8  # a model that reads less than this share of its layers for one token is a mixture of experts
_OUTPUT = "the output layer"
_MICRO_BATCHES = (1024, 2048)  # larger ones than usual
_WAY_TO_MEASURE = " (`localspec devices` measures it)"
_WORTH_PROPOSING = 1.1
_FEW = 3  # alternatives that are shown by default


def place(
    machine: Machine,
    target: ModelShape,
    draft: ModelShape | None,
    request: PairRequest,
    measured: MeasuredCompute | None = None,
) -> Placement:
    """Return the fastest placement that fits and is as asked, with reasons.

    `measured` replaces what the formula says of intermediate memory.
    Raises `UserError`, with the numbers and three ways out, if there is none.
    """
    models = (target, draft)
    search = PlacementSearch(machine, models, request, measured)
    chosen = search.chosen()
    if chosen is None:
        raise _refusal(search)
    for better in (_with_larger_batches, _with_smaller_draft_cache):
        for other in better(search, chosen):
            again = PlacementSearch(machine, models, other, measured)
            found = again.chosen()
            if found and found.context >= chosen.context and again.turn_s(found) < search.turn_s(chosen):
                search = again
                chosen = found
    return _placement(search, chosen)


def _with_larger_batches(search: PlacementSearch, chosen: PlacementCandidate) -> list[PairRequest]:
    """Return requests with which a GPU copies the weights in RAM less often to read a prompt."""
    asked = search.request
    if (asked.batch, asked.micro_batch) != (None, None) or not search.copies_weights(chosen):
        return []
    return [replace(asked, micro_batch=size) for size in _MICRO_BATCHES if size <= chosen.context]


def _with_smaller_draft_cache(search: PlacementSearch, chosen: PlacementCandidate) -> list[PairRequest]:
    """Return requests whose draft model leaves more of the GPUs to the target.

    Its cache decides which tokens it drafts, never which are written.
    """
    draft = search.request.draft
    is_free = (draft.kv_type_k, draft.kv_type_v) == (None, None) and search.request.flash is not False
    on_card = chosen.draft is not None and chosen.draft.devices
    if not (is_free and on_card and search.copies_weights(chosen)):
        return []
    return [replace(search.request, draft=replace(draft, kv_type_k="q8_0", kv_type_v="q8_0"))]


def _placement(search: PlacementSearch, chosen: PlacementCandidate) -> Placement:
    target = search.target
    draft = search.draft
    for_target, for_draft = search.threads(chosen.target, chosen.draft).alone

    def assigned(shape: ModelShape, split: LayerSplit, threads: int, needs: Needs) -> DeviceAssignment:
        next_experts = shape.layers[split.experts_at_home].experts if split.parts_at_home else ()
        return DeviceAssignment(
            devices=split.devices,
            layers=split.layers,
            threads=threads,
            context=chosen.context,
            needs=needs,
            output_at_home=split.output_at_home,
            prediction_layers=shape.prediction_layers,
            experts_at_home=split.experts_at_home,
            parts_at_home=tuple(expert.name for expert in next_experts[: split.parts_at_home]),
            shares=split.shares,
        )

    attention = search.attention(chosen.target, chosen.context)
    return Placement(
        target=assigned(target, chosen.target, for_target, chosen.target_needs),
        draft=None
        if chosen.draft is None or draft is None
        else assigned(draft, chosen.draft, for_draft, chosen.draft_needs),
        mode=chosen.best.mode,
        tokens_per_s=chosen.best.tokens_per_s,
        reasons=(*_reasons(chosen, search), *_cache_proposal(chosen, search)),
        rejected=tuple(_rejected(chosen, search)),
        micro_batch=attention.micro_batch,
        flash_attention=attention.flash,
        draft_cache=CacheTypes(*search.request.draft.kv_types),
        mmap=search.request.mmap and not search.pins_weights(chosen),
    )


def _reasons(chosen: PlacementCandidate, search: PlacementSearch) -> Iterable[str]:
    for shape in filter(None, (search.target, search.draft)):
        if shape.doubt:
            yield f"in {shape.name} {shape.doubt}"
    yield _target_reason(chosen, search)
    if chosen.context < search.contexts[0]:
        usual = search.fitting(search.contexts[0])
        gain = (
            "more does not fit"
            if usual is None
            else f"with {search.contexts[0]:,} it would write {rate(usual.best.tokens_per_s)} tokens/s "
            f"instead of {rate(chosen.best.tokens_per_s)}"
        )
        yield f"the context is {chosen.context:,} tokens: {gain}"
    for reason in (
        _moved_reason(search.target),
        _sums_reason(chosen, search),
        _output_reason(chosen, search),
        _batch_reason(chosen, search),
        _draft_reason(chosen, search),
        _shape_reason(search),
    ):
        if reason is not None:
            yield reason
    yield _speed_reason(chosen, search)
    yield from _rate_reasons(chosen, search)


def _cache_proposal(chosen: PlacementCandidate, search: PlacementSearch) -> Iterable[str]:
    """Yield the gain of a smaller type of the target's cache, if it is large; it is never taken unasked."""
    asked = search.request.target
    is_free = (asked.kv_type_k, asked.kv_type_v) == (None, None) and search.request.flash is not False
    if not (is_free and search.target.takes_quantised_cache and _lacks_memory(chosen, search)):
        return
    request = replace(search.request, target=replace(asked, kv_type_k="q8_0", kv_type_v="q8_0"))
    models = (search.target, search.draft)
    found = PlacementSearch(search.machine, models, request, search.measured).chosen()
    if found is None:
        return
    speed = found.best.tokens_per_s
    usual = chosen.best.tokens_per_s
    price = "it rounds what the model remembers to 8 bits, so answers may differ a little"
    if found.context > chosen.context:
        yield (
            f"-ctk q8_0 -ctv q8_0 would allow a context of {found.context:,} tokens instead of "
            f"{chosen.context:,}; {price}"
        )
    elif found.context == chosen.context and speed >= _WORTH_PROPOSING * usual:
        yield f"-ctk q8_0 -ctv q8_0 would write {rate(speed)} tokens/s instead of {rate(usual)}; {price}"


def _lacks_memory(chosen: PlacementCandidate, search: PlacementSearch) -> bool:
    """Return whether the target would be placed otherwise if it took less memory."""
    in_ram = bool(search.budget.cards) and search.uses_processor(search.target, chosen.target)
    return in_ram or len(chosen.target.devices) > 1 or chosen.context < search.contexts[0]


def _rejected(chosen: PlacementCandidate, search: PlacementSearch) -> Iterable[Alternative]:
    """Yield every other placement once, the fastest first and those that do not fit last."""
    for speed in chosen.speeds[1:]:
        slower = "slower" if speed.tokens_per_s < chosen.best.tokens_per_s else "expected to gain too little"
        yield Alternative(f"the same placement in mode {MODE_NAMES[speed.mode]}", slower, speed.tokens_per_s)
    if chosen.context < search.contexts[0]:
        usual = search.fitting(search.contexts[0])
        if usual is not None:
            text = f"{usual.context:,} tokens of context: {_describe(usual, search)}"
            yield Alternative(text, "slower", usual.best.tokens_per_s)
    seen = {_describe(chosen, search)}
    others = sorted(search.at(chosen.context), key=lambda other: other.preference, reverse=True)
    for other in sorted(others, key=lambda other: bool(other.shortages)):
        text = _describe(other, search)
        if text in seen:
            continue
        seen.add(text)
        lack = f"does not fit: {_lack(other.shortages)}" if other.shortages else ""
        is_slower = other.best.tokens_per_s < 0.999 * chosen.best.tokens_per_s
        yield Alternative(text, lack or ("slower" if is_slower else "no faster"), other.best.tokens_per_s)


def _refusal(search: PlacementSearch) -> UserError:
    """Return the error for models that fit nowhere: the numbers and three ways out."""
    nearest = search.nearest()
    models = [(search.target, search.memory_request(search.target, nearest.target, nearest.context))]
    ways = []
    if search.draft is not None and nearest.draft is not None:
        models.append((search.draft, search.memory_request(search.draft, nearest.draft, nearest.context)))
        ways.append("leave the draft model out")
    ways += ["close programs that use memory", "reserve less memory (--reserve)", "choose a smaller model"]
    worked_out = suggestions(tuple(models), search.budget)
    return UserError(
        f"{search.target.name} does not fit with {nearest.context:,} tokens of context: "
        f"{_lack(nearest.shortages)}",
        f"three ways out: {'; '.join((*worked_out, *ways)[:3])}",
    )


def _describe(found: PlacementCandidate, search: PlacementSearch) -> str:
    target = f"target on {_assignments(found.target, len(search.target.layers))}"
    if experts := _experts_words(found.target, search.target):
        target += f" with {experts}"
    if search.draft is None:
        return target
    if found.draft is None:
        return f"{target}, no draft"
    draft = _assignments(found.draft, len(search.draft.layers))
    return f"{target}, draft on {draft} ({MODE_NAMES[found.best.mode]})"


def _assignments(split: LayerSplit, layers: int) -> str:
    if not split.devices:
        return "the CPU"
    rest = layers - split.on_cards
    if split.shares:
        return _divided_between(split) + (f", {rest} layers on the CPU" if rest else "")
    if rest == 0 and len(split.devices) == 1 and not split.output_at_home:
        return split.devices[0]
    held = {name: f"{count} layers" if count else _OUTPUT for name, count in _layers(split)}
    if rest or split.output_at_home:
        here = ([f"{rest} layers"] if rest else []) + [_OUTPUT] * split.output_at_home
        held["the CPU"] = " and ".join(here)
    parts = [f"{name} ({what})" for name, what in held.items()]
    return ", ".join(parts[:-1]) + " and " + parts[-1]


def _divided_between(split: LayerSplit) -> str:
    """Return the devices of a split by tensor, with their shares unless these are equal."""
    shares = ":".join(f"{share:g}" for share in split.shares)
    uneven = f" {shares}" if len({*split.shares}) > 1 else ""
    return f"{' and '.join(split.devices)}, every matrix divided{uneven}"


def _experts_words(split: LayerSplit, shape: ModelShape) -> str:
    """Return the experts of layers on GPUs that are in RAM, in words; empty without any."""
    kept = experts_at_home(shape, split)
    if not kept:
        return ""
    total = memory(sum(expert.bytes for _, experts in kept for expert in experts))
    whole = sum(experts == shape.layers[number].experts for number, experts in kept)
    layers = f"{whole} layer{'s' if whole != 1 else ''}" if whole else ""
    part = "a part of " + ("the next" if whole else "one layer") if len(kept) > whole else ""
    return f"the experts of {' and '.join(filter(None, (layers, part)))} ({total}) in RAM"


def _lack(shortages: Sequence[Shortage]) -> str:
    return ", ".join(
        f"{short.device} has {memory(short.available)} to give and {memory(short.needed)} are needed"
        for short in shortages
    )


def _target_reason(found: PlacementCandidate, search: PlacementSearch) -> str:
    needs = found.target_needs
    split = found.target
    total = memory(sum(need.total for need in needs))
    layers = len(search.target.layers)
    if not split.devices:
        is_here = not isinstance(search.machine, DescribedMachine)
        no_gpu = "this build of llama.cpp finds no GPU" if is_here else "the machine has no GPU"
        why = "" if search.budget.cards else f"; {no_gpu}"
        return f"the target ({total}) runs on the CPU{why}"
    rest = layers - split.on_cards
    experts = _experts_words(split, search.target)
    if rest == 0 and len(split.devices) == 1:
        name = split.devices[0]
        if experts:
            return (
                f"the target needs {total}: {memory(_on(needs, name))} on {_roomy(search, name)}, {experts}"
            )
        return f"the target needs {memory(_on(needs, name))} and fits on {_roomy(search, name)}"
    if split.shares:
        held = [f"{memory(_on(needs, name))} on {_roomy(search, name)}" for name in split.devices]
        here = [f"{rest} of {layers} layers ({memory(_on(needs, PROCESSOR))}) on the CPU"] if rest else []
        kept = [experts] if experts else []
        return f"every matrix of the target ({total}) is divided: {', '.join((*held, *here, *kept))}"
    parts = [
        f"{f'{count} of {layers} layers' if count else _OUTPUT} ({memory(_on(needs, name))}) "
        f"on {_roomy(search, name)}"
        for name, count in _layers(split)
    ]
    if rest:
        parts.append(f"{rest} on the CPU ({memory(_on(needs, PROCESSOR))})")
    if experts:
        parts.append(experts)
    return f"the target needs {total} and is split: {', '.join(parts)}"


def _layers(split: LayerSplit) -> Iterable[tuple[str, int]]:
    return zip(split.devices, split.layers, strict=True)


def _moved_reason(shape: ModelShape) -> str | None:
    """Return the bytes of the target's layers that the user keeps in RAM by name, None without any."""
    moved = shape.moved_to(PROCESSOR)
    return f"-ot keeps {memory(moved)} of the target's layers in RAM" if moved else None


def _output_reason(found: PlacementCandidate, search: PlacementSearch) -> str | None:
    """Return the bytes that a local output layer saves on the network, None without one."""
    if search.is_remote(found.target.output) or not any(map(search.is_remote, found.target.devices)):
        return None
    wide = search.target.width * ACTIVATION
    row = search.target.vocabulary * LOGIT
    return f"the output layer stays here: {size(wide)} a token over the network instead of {size(row)}"


def _batch_reason(found: PlacementCandidate, search: PlacementSearch) -> str | None:
    """Return the size of pieces in which prompts are read, None without weights in RAM."""
    if not search.copies_weights(found):
        return None
    size = search.request.micro_batch_size
    return f"prompts are read {size:,} tokens at a time: for each such piece, the GPU copies weights from RAM"


def _sums_reason(found: PlacementCandidate, search: PlacementSearch) -> str | None:
    """Return the cost of the sums of a split by tensor in words, None without one."""
    split = found.target
    if not split.shares:
        return None
    count = SUMS_PER_LAYER * split.on_cards
    each_s = search.rates.sum_s(split.devices, search.target.width * ACTIVATION)
    origin = "measured" if search.rates.knows_sums(split.devices) else "assumed"
    return f"a token takes {count} sums over these devices, {each_s * count * 1e3:.1f} ms in all ({origin})"


def _roomy(search: PlacementSearch, name: str) -> str:
    free = search.budget.devices[name].memory_free
    reserve = search.budget.reserve[name]
    return f"{name} ({memory(free)} free, {memory(reserve)} of it reserved)"


def _on(needs: Sequence[DeviceNeed], name: str) -> int:
    return sum(need.total for need in needs if need.device == name)


def _draft_reason(found: PlacementCandidate, search: PlacementSearch) -> str | None:
    if search.draft is None:
        return None
    if found.draft is None:
        return f"the draft stays closed: {_why_closed(search)}"
    return _draft_place(found, found.draft, len(search.draft.layers), search)


def _why_closed(search: PlacementSearch) -> str:
    if search.request.mode in {"off", "ngram"}:
        return f"mode {search.request.mode} does not ask it"
    return "it does not fit on any device"


def _draft_place(found: PlacementCandidate, split: LayerSplit, layers: int, search: PlacementSearch) -> str:
    mode = found.best.mode
    draft = f"the draft ({memory(sum(need.total for need in found.draft_needs))})"
    where = _assignments(split, layers)
    if search.draft is not None and (experts := _experts_words(split, search.draft)):
        where += f" with {experts}"
    draft_at = set(split.devices or (PROCESSOR,))
    target_at = set(found.target.devices or (PROCESSOR,))
    if mode == "ssd" and draft_at == target_at == {PROCESSOR}:
        verifies, drafts = search.threads(found.target, split).together
        cores = "core" if verifies == 1 else "cores"
        shares = f"{verifies} {cores} for the target, {drafts} for drafting ahead (SSD)"
        return f"{draft} shares the CPU: {shares}"
    if mode == "ssd":
        return f"{draft} is on {where}, so it drafts while the target verifies: SSD"
    if mode == "off":
        return f"{draft} is on {where}, ready if measured costs favour it"
    if search.budget.cards and not split.devices and search.request.draft.devices is None:
        return f"{draft} is on {where}: the target makes better use of the GPUs' memory"
    if draft_at.isdisjoint(target_at):
        return f"{draft} is on {where}; they work alternately, because drafting ahead would not save enough"
    return f"{draft} is on {where} with the target; they work alternately"


def _speed_reason(found: PlacementCandidate, search: PlacementSearch) -> str:
    figures = ", ".join(f"{MODE_NAMES[speed.mode]} {rate(speed.tokens_per_s)}" for speed in found.speeds)
    if len(found.speeds) == 1:
        return f"expected tokens/s: {figures}"
    known = search.draft.acceptance if search.draft else None
    if known is not None:
        return (
            f"expected tokens/s: {figures}, if {known:.0%} of the draft's tokens are accepted, as its file "
            "claims for its target, and as many outcomes were prepared"
        )
    return (
        f"expected tokens/s: {figures}, if {ACCEPTANCE:.0%} of the draft's tokens are accepted and "
        f"{HIT_RATE:.0%} of the outcomes were prepared (assumed until the models are open)"
    )


def _shape_reason(search: PlacementSearch) -> str | None:
    layers = search.target.layers
    read = sum(layer.read_bytes for layer in layers)
    whole = sum(layer.weight_bytes for layer in layers)
    if search.draft is None or read >= _MIXTURE * whole:
        return None
    return (
        f"the target is a mixture of experts: one token reads {memory(read)} of its {memory(whole)}, "
        "several at once read more, so that speculation gains less"
    )


def _rate_reasons(found: PlacementCandidate, search: PlacementSearch) -> list[str]:
    """Return the rates of devices in use that were not measured."""
    used = {need.device for need in (*found.target_needs, *found.draft_needs)}
    pair = (search.target, search.draft)
    reasons = []
    for name, known in search.rates.of.items():
        if name not in used or known.origin == "measured":
            continue
        if name == PROCESSOR and not any(map(search.uses_processor, pair, (found.target, found.draft))):
            continue
        source = {
            "theoretical": "70% of its theoretical rate",
            "name": "from what its maker states of the chip",
            "kind": "assumed for a device of its kind",
            "failure": "assumed to be as fast as the CPU's",
        }[known.origin]
        trouble = search.rates.failures.get(name)
        lack = f"could not be measured ({trouble})" if trouble else "was not measured"
        way_out = "" if trouble or isinstance(search.machine, DescribedMachine) else _WAY_TO_MEASURE
        reasons.append(f"{name}'s memory rate {lack}: {bandwidth(known.read)}, {source}{way_out}")
    return reasons


def lines(placement: Placement, *, explain: bool, template: Path | GivenTemplate | None = None) -> list[str]:
    """Return a plan in words, with the best of what was not taken, or all of it to `explain`.

    `template` is a chat template that is used instead of the target's own.
    """
    found = [f"plan: {long_mode(placement.mode)}{_about(placement.tokens_per_s)}"]
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
    return "" if tokens_per_s is None else f", about {rate(tokens_per_s)} tokens/s"
