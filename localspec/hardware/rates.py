"""How fast devices read their memory and reach each other: measured, else derived, else assumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from localspec.hardware.device_info import DeviceInfo, Machine

PROCESSOR = "CPU"
EFFECTIVE = 0.7  # of a theoretical rate is what decoding reaches
_ASSUMED = {"cpu": 25e9, "integrated": 50e9, "gpu": 250e9}
_APPLE = {"Ultra": 800e9, "Max": 400e9, "Pro": 200e9}  # theoretical, of the generations M1 to M4 at least
_APPLE_BASE = 100e9
_APPLE_CORES = 0.5  # of the memory's rate is what the processor's part of the chip can use
_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.88e9}  # of PCIe, each way
_ASSUMED_LINK = 6e9


@dataclass(frozen=True, slots=True)
class Rate:
    """Bytes per second that a device reads, and where the figure comes from."""

    read: float
    origin: Literal["measured", "theoretical", "name", "kind"]


class Rates:
    """The rates of one machine."""

    def __init__(self, machine: Machine) -> None:
        self._devices = {device.id: device for device in machine.devices}
        self._measured = {rate.device: rate.read for rate in machine.rates if rate.read > 0}
        self._links = {(link.source, link.target): link.rate for link in machine.links if link.rate > 0}
        self.of = {device.id: self._rate(device) for device in machine.devices}
        self.processor = self.of[PROCESSOR].read

    def _rate(self, device: DeviceInfo) -> Rate:
        measured = self._measured.get(device.id)
        if measured is not None:
            return Rate(measured, "measured")
        if device.theoretical_rate:
            return Rate(EFFECTIVE * device.theoretical_rate, "theoretical")
        if "Apple M" in device.name:
            known = next((rate for word, rate in _APPLE.items() if word in device.name), _APPLE_BASE)
            share = _APPLE_CORES if device.kind == "cpu" else EFFECTIVE
            return Rate(share * known, "name")
        return Rate(_ASSUMED[device.kind], "kind")

    def shares_memory(self, device: str) -> bool:
        """Tell whether a device's memory is the processor's."""
        return self._devices[device].kind != "gpu"

    def link(self, source: str, target: str) -> float | None:
        """Return bytes per second from one device to another, None where nothing has to move."""
        if source == target or (self.shares_memory(source) and self.shares_memory(target)):
            return None
        known = self._links.get((source, target)) or self._links.get((target, source))
        if known is not None:
            return known
        hops = [self._slot(end) for end in (source, target) if not self.shares_memory(end)]
        return 1.0 / sum(1.0 / hop for hop in hops)

    def _slot(self, card: str) -> float:
        """Return the rate between a card and the processor's memory."""
        known = self._links.get((PROCESSOR, card)) or self._links.get((card, PROCESSOR))
        if known is not None:
            return known
        device = self._devices[card]
        if device.pcie_generation in _LANE and device.pcie_width:
            return EFFECTIVE * _LANE[device.pcie_generation] * device.pcie_width
        return _ASSUMED_LINK
