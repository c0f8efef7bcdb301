"""Whether models fit this machine; where they do not, by how much and what would."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from localspec.errors import UserError
from localspec.hardware.device_info import Machine
from localspec.hardware.memory.budget import MemoryBudget, Shortage, reserve_on
from localspec.hardware.memory.needs import DeviceNeed, LayerSplit, MemoryRequest, estimate
from localspec.models.shape import ModelShape
from localspec.units import memory

Models = tuple[tuple[ModelShape, MemoryRequest], ...]
"""The target and how it is to sit, then the draft model."""

_STEP, _SMALLEST = 256, 512  # tokens of context

# bits per weight, as usual mixtures of it come out
_QUANT_BITS = {
    "Q8_0": 8.5, "Q6_K": 6.57, "Q5_K_M": 5.69, "Q4_K_M": 4.85, "IQ4_XS": 4.3, "Q3_K_M": 3.91, "Q2_K": 3.35,
}  # fmt: skip


def check_fit(
    needs: Iterable[DeviceNeed],
    machine: Machine,
    reserve: Sequence[tuple[str, int]] = (),
    models: Models = (),
) -> None:
    """Raise `UserError` with the numbers if a device has too little for `needs` and its reserve.

    From `models`, of which those are the needs, follow the ways out that the error names.
    """
    needs = tuple(needs)
    budget = MemoryBudget(machine, reserve_on(machine, reserve))
    shortages = budget.shortages(needs)
    if not shortages:
        return
    words = "; ".join(_words(shortage, budget) for shortage in shortages)
    ways = ways_out(models, _corrected(budget, machine, needs, models))
    hint = ", or ".join(ways) or "close other programs, or choose smaller models"
    raise UserError(f"there is not enough memory: {words}", hint)


def _corrected(
    budget: MemoryBudget, machine: Machine, needs: Iterable[DeviceNeed], models: Models
) -> MemoryBudget:
    """Return the room with so much less in it as `needs` are above what the formula expects of `models`."""
    reserve = dict(budget.reserve)
    for need in needs:
        reserve[need.device] += need.total
    for shape, request in models:
        for need in estimate(shape, request):
            reserve[need.device] -= need.total
    return MemoryBudget(machine, [(name, max(kept, budget.reserve[name])) for name, kept in reserve.items()])


def ways_out(models: Models, budget: MemoryBudget) -> tuple[str, ...]:
    """Return what would fit, each way by itself and worked out: less context, fewer bits, fewer layers."""
    if not models:
        return ()
    ways = (_smaller_context(models, budget), _smaller_quant(models, budget), _fewer_layers(models, budget))
    return tuple(way for way in ways if way)


def _words(shortage: Shortage, budget: MemoryBudget) -> str:
    device, reserve = budget.devices[shortage.device], budget.reserve[shortage.device]
    return (
        f"{shortage.device} has {memory(device.memory_free, 0.1)} free, {memory(reserve, 0.1)} of it in "
        f"reserve, and {memory(shortage.needed, 0.1)} are needed"
    )


def _fits(models: Models, budget: MemoryBudget) -> bool:
    return not budget.shortages(need for shape, request in models for need in estimate(shape, request))


def _smaller_context(models: Models, budget: MemoryBudget) -> str:
    def fits(steps: int) -> bool:
        context = steps * _STEP
        return _fits(tuple((shape, replace(request, context=context)) for shape, request in models), budget)

    best = _most(fits, _SMALLEST // _STEP, (max(request.context for _, request in models) - 1) // _STEP)
    return f"take a context of {best * _STEP:,} tokens (-c {best * _STEP})" if best else ""


def _smaller_quant(models: Models, budget: MemoryBudget) -> str:
    (shape, request), rest = models[0], models[1:]
    held = 8 * shape.weight_bytes / max(1, shape.parameters)
    for name, bits in _QUANT_BITS.items():
        smaller = _scaled(shape, bits / held)
        if bits < 0.97 * held and _fits(((smaller, request), *rest), budget):
            return f"choose {shape.name} as {name} (about {memory(smaller.weight_bytes, 0.1)})"
    return ""


def _fewer_layers(models: Models, budget: MemoryBudget) -> str:
    (shape, request), rest = models[0], models[1:]
    split = request.split
    while split.on_cards:
        split = _one_less(split, shape, request, rest, budget)
        if _fits(((shape, replace(request, split=split)), *rest), budget):
            count = split.on_cards + 1 if split.devices else 0  # what follows the layers counts as one more
            return f"put fewer layers on the card{'s' if len(split.devices) > 1 else ''} (-ngl {count})"
    return ""


def _one_less(
    split: LayerSplit, shape: ModelShape, request: MemoryRequest, rest: Models, budget: MemoryBudget
) -> LayerSplit:
    """Take a layer from the card that lacks most."""
    models = ((shape, replace(request, split=split)), *rest)
    left = budget.left(need for shape, request in models for need in estimate(shape, request))
    used = [at for at, count in enumerate(split.layers) if count]
    at = min(used, key=lambda at: left[split.devices[at]])
    layers = tuple(count - (number == at) for number, count in enumerate(split.layers))
    kept = [number for number, count in enumerate(layers) if count]
    return LayerSplit(
        tuple(split.devices[number] for number in kept), tuple(layers[number] for number in kept)
    )


def _scaled(shape: ModelShape, factor: float) -> ModelShape:
    return replace(
        shape,
        layers=tuple(replace(layer, weight_bytes=int(layer.weight_bytes * factor)) for layer in shape.layers),
        input_bytes=int(shape.input_bytes * factor),
        output_bytes=int(shape.output_bytes * factor),
    )


def _most(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest number from `low` to `high` that fits, 0 if none does."""
    if high < low or not fits(low):
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
