"""How much of each device's memory may be taken, whether models fit, and what would otherwise; pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from localspec.errors import UserError
from localspec.hardware.bandwidth import PROCESSOR
from localspec.hardware.device_info import DeviceInfo, Machine
from localspec.hardware.memory.needs import (
    DeviceNeed,
    LayerSplit,
    MemoryRequest,
    cache_bytes,
    estimate,
)
from localspec.models.shape import ModelShape
from localspec.units import memory, parse_size

Models = tuple[tuple[ModelShape, MemoryRequest], ...]
"""The target and its placement, then the draft model's."""

# tokens of context
_STEP = 256
_SMALLEST = 512

# bits per weight of common mixtures
_QUANT_BITS = {
    "Q8_0": 8.5, "Q6_K": 6.57, "Q5_K_M": 5.69, "Q4_K_M": 4.85, "IQ4_XS": 4.3, "Q3_K_M": 3.91, "Q2_K": 3.35,
}  # fmt: skip

Reserve = tuple[tuple[str, int], ...]
_EXAMPLE = "for instance --reserve 0=1GiB,1=2GiB,cpu=4GiB"

GIB = 2**30
CARD_RESERVE = GIB // 2
DISPLAY_RESERVE = GIB  # windows and browsers use GPU memory as well; also if unknown
# of all memory, at most so much
PROCESSOR_SHARE = 0.1
PROCESSOR_RESERVE = 2 * GIB


@dataclass(frozen=True, slots=True)
class Shortage:
    """A device has too little memory."""

    device: str
    needed: int
    available: int

    @property
    def missing(self) -> int:
        """Return the bytes that are too many."""
        return self.needed - self.available


class MemoryBudget:
    """The free memory of a machine's devices."""

    def __init__(self, machine: Machine, reserve: Sequence[tuple[str, int]] = ()) -> None:
        self.devices = {device.id: device for device in machine.devices}
        if PROCESSOR not in self.devices:
            raise UserError("no CPU was found among the devices", "run `localspec doctor`")
        given = dict(reserve_on(machine, reserve))
        self.reserve = {
            name: given.get(name, default_reserve(device)) for name, device in self.devices.items()
        }
        self.free = {
            name: max(0, device.memory_free - self.reserve[name]) for name, device in self.devices.items()
        }
        self.cards = tuple(name for name, device in self.devices.items() if device.kind != "cpu")

    def left(self, needs: Iterable[DeviceNeed]) -> dict[str, int]:
        """Return the bytes left on each device after `needs`; negative if they do not fit."""
        left = dict(self.free)
        for need in needs:
            left[need.device] -= need.total
            if self.devices[need.device].kind == "integrated":
                left[PROCESSOR] -= need.total  # one memory, counted twice: by the driver and by the system
        for name in self.cards:
            if self.devices[name].kind == "integrated":
                left[name] = min(left[name], left[PROCESSOR])
        return left

    def shortages(self, needs: Iterable[DeviceNeed]) -> tuple[Shortage, ...]:
        """Return the devices that have too little."""
        left = self.left(needs)
        return tuple(
            Shortage(name, self.free[name] - left[name], self.free[name])
            for name in self.devices
            if left[name] < 0
        )


def default_reserve(device: DeviceInfo) -> int:
    """Return the default reserve of a device."""
    if device.kind == "cpu":
        return min(int(PROCESSOR_SHARE * device.memory_total), PROCESSOR_RESERVE)
    if device.kind == "integrated":
        return CARD_RESERVE  # in addition to the CPU's reserve
    return CARD_RESERVE if device.drives_display is False else DISPLAY_RESERVE


class LayerSizes:
    """The sizes of layers on GPUs, to count how many fit without a new calculation."""

    def __init__(self, shape: ModelShape, whole: MemoryRequest, card: str) -> None:
        layers = shape.layers
        on_card = next(found for found in estimate(shape, whole) if found.device == card)
        self.compute = on_card.compute
        self.output = max(0, on_card.weights - sum(layer.weight_bytes for layer in layers))
        dense = (layer.dense_bytes + cache_bytes(shape, whole, layer) for layer in layers)
        self._dense_up_to = list(accumulate(dense, initial=0))
        self._experts_up_to = list(accumulate((layer.expert_bytes for layer in layers), initial=0))

    def fill(
        self,
        devices: Sequence[str],
        left: Mapping[str, int],
        most: int,
        *,
        at_home: bool = False,
        experts_at_home: int = 0,
    ) -> LayerSplit:
        """Give the last device as many of the last layers as fit, then the one before it, `most` in all.

        It also gets the output layer, unless that stays on this machine, where the experts of the first
        `experts_at_home` layers stay as well.
        """
        end = len(self._dense_up_to) - 1
        lowest = end - most
        counts: dict[str, int] = {}
        for device in reversed(devices):
            free = left[device] - self.compute - (0 if counts or at_home else self.output)
            start = end
            while start > lowest and self._size(start - 1, end, experts_at_home) <= free:
                start -= 1
            if start < end:
                counts[device] = end - start
            end = start
        order = tuple(reversed(counts))
        layers = tuple(counts[name] for name in order)
        return LayerSplit(order, layers, at_home and bool(order), experts_at_home if order else 0)

    def fill_experts(
        self, devices: Sequence[str], left: Mapping[str, int], most: int, *, at_home: bool = False
    ) -> LayerSplit:
        """Put the dense weights and caches of `most` layers on GPUs, then experts of the last layers."""
        count = len(self._dense_up_to) - 1

        def fits(experts_at_home: int) -> bool:
            split = self.fill(devices, left, most, at_home=at_home, experts_at_home=experts_at_home)
            return split.on_cards == most

        fewest = bisect_left(range(count), True, key=fits)
        return self.fill(devices, left, most, at_home=at_home, experts_at_home=fewest)

    def counted(self, split: LayerSplit) -> dict[str, int]:
        """Return the bytes that filling has counted for each GPU of a split."""
        end = len(self._dense_up_to) - 1
        found: dict[str, int] = {}
        for device, count in reversed(list(zip(split.devices, split.layers, strict=True))):
            output = 0 if found or split.output_at_home else self.output
            found[device] = self.compute + output + self._size(end - count, end, split.experts_at_home)
            end -= count
        return found

    def _size(self, start: int, end: int, experts_at_home: int) -> int:
        first = min(max(start, experts_at_home), end)
        dense = self._dense_up_to[end] - self._dense_up_to[start]
        return dense + self._experts_up_to[end] - self._experts_up_to[first]


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
    budget = MemoryBudget(machine, reserve)
    shortages = budget.shortages(needs)
    if not shortages:
        return
    words = "; ".join(_words(shortage, budget) for shortage in shortages)
    ways = suggestions(models, _corrected(budget, machine, needs, models))
    hint = ", or ".join(ways) or "close other programs, or choose smaller models"
    raise UserError(f"there is not enough memory: {words}", hint)


def _corrected(
    budget: MemoryBudget, machine: Machine, needs: Iterable[DeviceNeed], models: Models
) -> MemoryBudget:
    """Return the free memory, reduced by the excess of `needs` over the formula for `models`."""
    reserve = dict(budget.reserve)
    for need in needs:
        reserve[need.device] += need.total
    for shape, request in models:
        for need in estimate(shape, request):
            reserve[need.device] -= need.total
    return MemoryBudget(machine, [(name, max(kept, budget.reserve[name])) for name, kept in reserve.items()])


def suggestions(models: Models, budget: MemoryBudget) -> tuple[str, ...]:
    """Return single changes that would make it fit: less context, fewer bits, fewer layers."""
    if not models:
        return ()
    ways = (_smaller_context(models, budget), _smaller_quant(models, budget), _fewer_layers(models, budget))
    return tuple(way for way in ways if way)


def _words(shortage: Shortage, budget: MemoryBudget) -> str:
    device = budget.devices[shortage.device]
    reserve = budget.reserve[shortage.device]
    return (
        f"{shortage.device} has {memory(device.memory_free, 0.1)} free, {memory(reserve, 0.1)} of it in "
        f"reserve, and {memory(shortage.needed, 0.1)} are needed"
    )


def _fits(models: Models, budget: MemoryBudget) -> bool:
    return not budget.shortages(need for shape, request in models for need in estimate(shape, request))


def _smaller_context(models: Models, budget: MemoryBudget) -> str:
    def lacks(context: int) -> bool:
        smaller = ((shape, replace(request, context=context)) for shape, request in models)
        return not _fits(tuple(smaller), budget)

    sizes = range(_SMALLEST, max(request.context for _, request in models), _STEP)
    fitting = sizes[: bisect_left(sizes, True, key=lacks)]
    return f"take a context of {fitting[-1]:,} tokens (-c {fitting[-1]})" if fitting else ""


def _smaller_quant(models: Models, budget: MemoryBudget) -> str:
    (shape, request), rest = models[0], models[1:]
    held = 8 * shape.weight_bytes / max(1, shape.parameters)
    for name, bits in _QUANT_BITS.items():
        smaller = _scaled(shape, bits / held)
        if bits < 0.97 * held and _fits(((smaller, request), *rest), budget):
            return f"choose {shape.name} as {name} (about {memory(smaller.weight_bytes, 0.1)})"
    return ""


def _fewer_layers(models: Models, budget: MemoryBudget) -> str:
    while models[0][1].split.on_cards:
        models = _one_less(models, budget)
        if _fits(models, budget):
            split = models[0][1].split
            count = split.on_cards + 1 if split.devices else 0  # what follows the layers counts as one more
            return f"put fewer layers on the GPU{'s' if len(split.devices) > 1 else ''} (-ngl {count})"
    return ""


def _one_less(models: Models, budget: MemoryBudget) -> Models:
    """Take a layer of the target from the GPU that lacks most."""
    (target, request), *rest = models
    if request.split.shares:
        kept = tuple(count - 1 for count in request.split.layers)
        return (target, replace(request, split=replace(request.split, layers=kept))), *rest
    left = budget.left(need for shape, asked in models for need in estimate(shape, asked))
    layers = Counter(dict(zip(request.split.devices, request.split.layers, strict=True)))
    layers[min(+layers, key=left.__getitem__)] -= 1
    split = replace(request.split, devices=tuple(+layers), layers=tuple((+layers).values()))
    return (target, replace(request, split=split)), *rest


def _scaled(shape: ModelShape, factor: float) -> ModelShape:
    return replace(
        shape,
        layers=tuple(replace(layer, weight_bytes=int(layer.weight_bytes * factor)) for layer in shape.layers),
        input_bytes=int(shape.input_bytes * factor),
        layer_table_bytes=int(shape.layer_table_bytes * factor),
        output_bytes=int(shape.output_bytes * factor),
    )


def parse_reserve(text: str) -> Reserve:
    """Return devices, as they are named in the text, with the bytes to leave free on each."""
    given: dict[str, int] = {}
    for part in text.split(","):
        device, equals, size = (word.strip() for word in part.partition("="))
        if not (device and equals):
            raise UserError(f"--reserve does not understand `{part.strip()}`", _EXAMPLE)
        if device in given:
            raise UserError(f"--reserve names {device} twice", "give one size for each device")
        given[device] = _bytes(size)
    return tuple(given.items())


def reserve_on(machine: Machine, given: Sequence[tuple[str, int]]) -> Reserve:
    """Return a reserve with ggml's names of the devices; a number counts the GPUs from 0."""
    cards = [device.id for device in machine.devices if device.kind != "cpu"]
    known = {device.id.lower(): device.id for device in machine.devices}
    known |= {str(number): name for number, name in enumerate(cards)}
    found: dict[str, int] = {}
    for name, size in given:
        device = known.get(name.lower())
        if device is None:
            there = ", ".join(f"{number} ({card})" for number, card in enumerate(cards))
            raise UserError(f"--reserve: there is no device {name}", f"devices: {there or 'no GPUs'}, cpu")
        if device in found:
            raise UserError(f"--reserve names {device} twice", "give one size for each device")
        found[device] = size
    return tuple(found.items())


def _bytes(text: str) -> int:
    size = parse_size(text)
    if size is None:
        raise UserError(f"--reserve: `{text}` is not a size", _EXAMPLE)
    return size
