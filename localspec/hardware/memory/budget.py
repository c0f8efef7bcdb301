"""How much of each device's memory may be taken, and how many layers go into it; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from localspec.errors import UserError
from localspec.hardware.bandwidth import PROCESSOR
from localspec.hardware.device_info import DeviceInfo, Machine
from localspec.hardware.memory.needs import DeviceNeed, LayerSplit, MemoryRequest, estimate
from localspec.models.shape import ModelShape

GIB = 2**30
CARD_RESERVE = GIB // 2
DISPLAY_RESERVE = GIB  # windows and browsers take card memory too; also where nobody knows
PROCESSOR_SHARE, PROCESSOR_RESERVE = 0.1, 2 * GIB  # of all memory, at most so much


@dataclass(frozen=True, slots=True)
class Shortage:
    """What does not fit: more is needed of a device than it has to give."""

    device: str
    needed: int
    available: int

    @property
    def missing(self) -> int:
        """Return the bytes that are too many."""
        return self.needed - self.available


class MemoryBudget:
    """What the devices of a machine have to give."""

    def __init__(self, machine: Machine, reserve: Sequence[tuple[str, int]] = ()) -> None:
        self.devices = {device.id: device for device in machine.devices}
        if PROCESSOR not in self.devices:
            raise UserError("no processor was seen among the devices", "run `localspec doctor`")
        given = dict(reserve)
        self.reserve = {name: given.get(name, usual_reserve(device)) for name, device in self.devices.items()}
        self.free = {
            name: max(0, device.memory_free - self.reserve[name]) for name, device in self.devices.items()
        }
        self.cards = tuple(name for name, device in self.devices.items() if device.kind != "cpu")

    def left(self, needs: Iterable[DeviceNeed]) -> dict[str, int]:
        """Return what is left on each device once `needs` are met; less than nothing where they are not."""
        left = dict(self.free)
        for need in needs:
            left[need.device] -= need.total
            if need.device != PROCESSOR and self.devices[need.device].kind != "gpu":
                left[PROCESSOR] -= need.total  # one memory, counted twice: by the driver and by the system
        for name in self.cards:
            if self.devices[name].kind != "gpu":
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


def usual_reserve(device: DeviceInfo) -> int:
    """Return what is kept free on a device if nobody says otherwise."""
    if device.kind == "cpu":
        return min(int(PROCESSOR_SHARE * device.memory_total), PROCESSOR_RESERVE)
    if device.kind == "integrated":
        return CARD_RESERVE  # the processor's own is kept free as well
    return CARD_RESERVE if device.drives_display is False else DISPLAY_RESERVE


class LayerSizes:
    """What layers take of a card, so that as many as fit can be counted without asking again."""

    def __init__(self, shape: ModelShape, whole: MemoryRequest, card: str) -> None:
        layers = shape.layers
        on_card = next(found for found in estimate(shape, whole) if found.device == card)
        self.compute = on_card.compute
        self.output = max(0, on_card.weights - sum(layer.weight_bytes for layer in layers))
        kept = [
            (layer.key_values + layer.value_values) * whole.context * 2 + layer.state_bytes
            for layer in layers
        ]
        per_kept = on_card.cache / max(1, sum(kept))
        self._up_to = list(
            accumulate(
                (layer.weight_bytes + per_kept * size for layer, size in zip(layers, kept, strict=True)),
                initial=0.0,
            )
        )

    def fill(self, devices: Sequence[str], left: dict[str, int], most: int) -> LayerSplit:
        """Give the last device as many of the last layers as fit, then the one before it, `most` in all."""
        end = len(self._up_to) - 1
        lowest = end - most
        taken: list[str] = []
        counts: list[int] = []
        for device in reversed(devices):
            free = left[device] - self.compute - (0 if taken else self.output)
            start = end
            while start > lowest and self._up_to[end] - self._up_to[start - 1] <= free:
                start -= 1
            if start < end:
                taken.append(device)
                counts.append(end - start)
            end = start
        return LayerSplit(tuple(reversed(taken)), tuple(reversed(counts)))


def by_shares(devices: tuple[str, ...], shares: Sequence[float], gpu_layers: int, layers: int) -> LayerSplit:
    """Divide layers as llama.cpp does; `gpu_layers` counts the weights after the last layer as one more."""
    taken = min(gpu_layers, layers + 1)
    if taken == 0 or not devices:
        return LayerSplit()
    ends = list(accumulate(shares))
    counts = [0] * len(devices)
    for index in range(taken):
        at = next(i for i, end in enumerate(ends) if end * taken > index * ends[-1])
        counts[at] += 1
    counts[at] -= 1  # the last is not a layer
    used = [i for i, count in enumerate(counts) if count or i == at]
    return LayerSplit(tuple(devices[i] for i in used), tuple(counts[i] for i in used))


Reserve = tuple[tuple[str, int], ...]

_SIZE = re.compile(r"(\d{1,18}(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_UNITS = {
    "": 1, "b": 1, "k": 2**10, "kib": 2**10, "m": 2**20, "mib": 2**20, "g": 2**30, "gib": 2**30, "t": 2**40,
    "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_EXAMPLE = "for instance --reserve 0=1GiB,1=2GiB,cpu=4GiB"


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
    """Return a reserve with ggml's names of the devices; a number counts the cards from 0."""
    cards = [device.id for device in machine.devices if device.kind != "cpu"]
    known = {device.id.lower(): device.id for device in machine.devices}
    known |= {str(number): name for number, name in enumerate(cards)}
    found: dict[str, int] = {}
    for name, size in given:
        device = known.get(name.lower())
        if device is None:
            there = ", ".join(f"{number} ({card})" for number, card in enumerate(cards))
            raise UserError(f"--reserve: there is no device {name}", f"devices: {there or 'no cards'}, cpu")
        if device in found:
            raise UserError(f"--reserve names {device} twice", "give one size for each device")
        found[device] = size
    return tuple(found.items())


def _bytes(text: str) -> int:
    found = _SIZE.fullmatch(text)
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise UserError(f"--reserve: `{text}` is no size", _EXAMPLE)
    return int(float(found[1]) * unit)
