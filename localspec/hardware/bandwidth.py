"""Measure how fast devices read their memory, with ggml's own buffers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Literal

from localspec.errors import LocalSpecError
from localspec.hardware.device_info import (
    DeviceInfo,
    Machine,
    MemoryRate,
    RateFailure,
    SumCost,
    SumFailure,
)
from localspec.units import bandwidth

PROCESSOR = "CPU"
EFFECTIVE = 0.7  # of a theoretical rate is what decoding reaches
_ASSUMED = {"cpu": 25e9, "integrated": 50e9, "gpu": 250e9, "remote": 25e9}
_CORE = 7e9  # of quantised weights that a core gets through, measured on Zen 5 and Sapphire Rapids
_APPLE = {"Ultra": 800e9, "Max": 400e9, "Pro": 200e9}  # theoretical, of the generations M1 to M4 at least
_APPLE_BASE = 100e9
_APPLE_CORES = 0.5  # share of the memory's rate that the CPU part of the chip can use
_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.88e9}  # of PCIe, each way
_ASSUMED_LINK = 6e9
_WIRE = 117e6  # of Ethernet at 1 Gbit/s
_HAND_OVER_S = 3e-5  # from one device of this machine to another
_UNEVEN = 0.1  # share by which the rates of equal GPUs may differ


@dataclass(frozen=True, slots=True)
class Rate:
    """Bytes per second that a device reads, and where the figure comes from."""

    read: float
    origin: Literal["measured", "theoretical", "name", "kind", "failure"]


class Rates:
    """The rates of one machine."""

    def __init__(self, machine: Machine) -> None:
        self._devices = {device.id: device for device in machine.devices}
        unknown = {device: MemoryRate(device, 0.0) for device in self._devices}
        self.measured = unknown | {rate.device: rate for rate in machine.rates}
        self.failures = {each.device: each.reason for each in machine.failures}
        self.of = {device.id: self._rate(device) for device in machine.devices}
        self.processor = self.of[PROCESSOR].read
        self._sums = {frozenset(cost.devices): cost for cost in machine.sums or ()}

    def _rate(self, device: DeviceInfo) -> Rate:
        measured = self.measured[device.id].read
        if measured > 0:
            return Rate(measured, "measured")
        if device.theoretical_rate:
            return Rate(EFFECTIVE * device.theoretical_rate, "theoretical")
        if "Apple M" in device.name:
            known = next((rate for word, rate in _APPLE.items() if word in device.name), _APPLE_BASE)
            share = _APPLE_CORES if device.kind == "cpu" else EFFECTIVE
            return Rate(share * known, "name")
        if device.id in self.failures:  # too slow, or broken
            here = self.measured[PROCESSOR].read
            return Rate(min(_ASSUMED[device.kind], here or _ASSUMED["cpu"]), "failure")
        if device.kind == "cpu" and device.cores:
            return Rate(min(_ASSUMED["cpu"], device.cores * _CORE), "kind")
        return Rate(_ASSUMED[device.kind], "kind")

    def shares_memory(self, device: str) -> bool:
        """Return whether a device's memory is the CPU's."""
        return self._devices[device].kind in ("cpu", "integrated")

    def link(self, source: str, target: str) -> float | None:
        """Return bytes per second from one device to another, None where nothing has to move."""
        if source == target or (self.shares_memory(source) and self.shares_memory(target)):
            return None
        hops = [self._slot(end) for end in (source, target) if not self.shares_memory(end)]
        return 1.0 / sum(1.0 / hop for hop in hops)

    def hand_over_s(self, source: str, target: str) -> float:
        """Return the seconds that handing over takes, whatever is handed over."""
        trips = (self._devices[end].round_trip_s or 0.0 for end in (source, target))
        return sum(trips) / 2 or _HAND_OVER_S

    def sum_s(self, devices: Sequence[str], size: int) -> float:
        """Return the seconds until each device has the sum of what all of them computed, of `size` bytes.

        Pairs exchange their parts, then pairs of pairs (ggml-backend-meta.cpp).
        """
        rounds = (len(devices) - 1).bit_length()
        exchanges = (self._exchange_s(*pair, size) for pair in combinations(devices, 2))
        return rounds * max(exchanges, default=0.0)

    def equal_groups(self, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Yield the GPUs of one model that read their memory about equally fast, two or more at a time."""
        pairs = equal_pairs([self._devices[name] for name in names])
        alike = [pair for pair in pairs if self._read_alike(*pair)]
        for first in dict.fromkeys(pair[0] for pair in alike):
            yield (first, *(second for one, second in alike if one == first))

    def _read_alike(self, first: str, second: str) -> bool:
        slower, faster = sorted((self.of[first].read, self.of[second].read))
        return slower >= (1 - _UNEVEN) * faster

    def knows_sums(self, devices: Sequence[str]) -> bool:
        """Return whether sums over these devices were measured."""
        return all(frozenset(pair) in self._sums for pair in combinations(devices, 2))

    def _exchange_s(self, first: str, second: str, size: int) -> float:
        if measured := self._sums.get(frozenset((first, second))):
            return measured.delay_s + size / measured.rate
        rate = self.link(first, second)
        return self.hand_over_s(first, second) + (size / rate if rate else 0.0)

    def _slot(self, card: str) -> float:
        """Return the rate between a GPU and the CPU's memory."""
        device = self._devices[card]
        if device.kind == "remote":
            return self.measured[card].link or _WIRE
        if device.pcie_generation in _LANE and device.pcie_width:
            return EFFECTIVE * _LANE[device.pcie_generation] * device.pcie_width
        return _ASSUMED_LINK


Measured = MemoryRate | RateFailure | SumCost | SumFailure
_FEWEST = 3
_MOST = 25
"""How often one thing is timed: the median of three is not moved by a single hiccup."""
# larger than any cache
_CARD_BYTES = 2**30
_CPU_BYTES = 2**29
_MIN_BYTES = 2**26  # what fits a cache says nothing about memory
_WIRE_BYTES = 2**21
_SUM_BYTES = 2**14, 2**21  # of one token, and of many
_CARD_PASSES = 4  # in one go: a GPU that reads a block in 0.2 ms takes a tenth of that to start
_FAR_BELOW = 0.6  # of the rate that a GPU could reach; healthy ones reach 0.8 and more


@dataclass(frozen=True, slots=True)
class BandwidthJob:
    """Measure the memory of a device, with blocks of `size` bytes."""

    device: str
    size: int
    passes: int = 1
    is_remote: bool = False

    def failed(self, reason: str) -> RateFailure:
        """Return the key of its rate."""
        return RateFailure(self.device, reason)


@dataclass(frozen=True, slots=True)
class SumJob:
    """Measure how long two devices take to add up what each of them computed."""

    devices: tuple[str, str]

    def failed(self, reason: str) -> SumFailure:
        """Return why there is no result."""
        return SumFailure(self.devices, reason)


Job = BandwidthJob | SumJob


def jobs(devices: Sequence[DeviceInfo]) -> tuple[BandwidthJob, ...]:
    """Return the measurements of memory, the CPU's first, with blocks that fit the free memory."""
    return tuple(map(_job, sorted(devices, key=lambda device: device.kind != "cpu")))


def equal_pairs(devices: Sequence[DeviceInfo]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of GPUs of one model in this machine, between which a split by tensor may be fast."""
    cards = [device for device in devices if device.kind == "gpu"]
    return tuple(
        (first.id, second.id)
        for first, second in combinations(cards, 2)
        if (first.backend, first.name) == (second.backend, second.name)
    )


def _job(device: DeviceInfo) -> BandwidthJob:
    if device.kind == "cpu":
        return BandwidthJob(device.id, min(_CPU_BYTES, device.memory_free // 8))
    size = min(_CARD_BYTES, device.memory_free // 4)
    return BandwidthJob(device.id, size, _CARD_PASSES, is_remote=device.kind == "remote")


def measure(work: Sequence[Job], seconds: float) -> Iterator[Measured]:
    """Yield the result of each job in order, within about `seconds`. Native: for a child process."""
    for job in work:
        try:
            share_s = seconds / len(work)
            yield _sum_cost(job, share_s) if isinstance(job, SumJob) else _memory_rate(job, share_s)
        except LocalSpecError as error:
            yield job.failed(str(error))


def _memory_rate(job: BandwidthJob, share_s: float) -> Measured:
    from localspec.llama.buffers import SEVERAL, Buffers

    if job.size < _MIN_BYTES:
        return job.failed("too little memory is free")
    with Buffers(job.device, _MIN_BYTES) as block:
        block.read_s()  # as below: the first time is another
        fits = int(block.bytes / block.read_s() * share_s) // (1 + _FEWEST)
    passes = max(1, min(job.passes, fits // job.size))
    size = min(job.size, max(_MIN_BYTES, fits))
    with Buffers(job.device, size, passes) as block:
        trip_s = typical_s(partial(block.fetch_s, 4), share_s / 4) if job.is_remote else 0.0
        read = block.bytes / _above(typical_s(block.read_s, share_s), trip_s / passes)
        rate = MemoryRate(job.device, read)
        if job.is_remote:
            whole_s = typical_s(partial(block.fetch_s, _WIRE_BYTES), share_s / 4)
            rate = replace(rate, link=_WIRE_BYTES / _above(whole_s, trip_s))
    if not job.is_remote and job.device != PROCESSOR:
        return rate
    with Buffers(job.device, size, passes, quantised=True) as block:
        timed = (typical_s(partial(block.read_s, tokens), share_s / 4) for tokens in (1, SEVERAL))
        one, several = (_above(seconds, trip_s / passes) for seconds in timed)
        return replace(rate, weights=block.bytes / one, further=max(0.0, several / one - 1) / (SEVERAL - 1))


def _sum_cost(job: SumJob, share_s: float) -> SumCost:
    from localspec.llama.buffers import PartialSums

    times = []
    for size in _SUM_BYTES:
        with PartialSums(*job.devices, size) as parts:
            times.append(typical_s(parts.sum_s, share_s / len(_SUM_BYTES)))
    small, large = _SUM_BYTES
    rate = (large - small) / _above(times[1], times[0])
    return SumCost(job.devices, max(0.0, times[0] - small / rate), rate)


def _above(seconds: float, trip_s: float) -> float:
    """Return the time of a call without the round trip to another machine."""
    return max(seconds - trip_s, 1e-9)


def typical_s(timed: Callable[[], float], share_s: float) -> float:
    """Return the median of what something takes, called again and again for `share_s` seconds."""
    from statistics import median  # 3 ms

    started = time.perf_counter()
    timed()  # memory is touched, clocks rise, kernels are loaded
    taken: list[float] = []
    while len(taken) < _FEWEST or (len(taken) < _MOST and time.perf_counter() - started < share_s):
        taken.append(timed())
    return median(taken)


def judge(machine: Machine) -> tuple[str, ...]:
    """Return problems of the measured rates and the slots, in words."""
    notes = list(map(str, machine.failures))
    rates = {rate.device: rate for rate in machine.rates}
    for device in machine.devices:
        rate = rates.get(device.id)
        possible = device.theoretical_rate
        if rate is not None and possible and rate.read < _FAR_BELOW * possible:
            notes.append(
                f"{device.id} reads its memory at {bandwidth(rate.read)}, {rate.read / possible:.0%} of "
                f"the {bandwidth(possible)} that a {device.name} can reach: it may be hot, held back by "
                "its power limit, or busy with another program"
            )
        if note := _lanes_note(device):
            notes.append(note)
    return tuple(notes)


def _lanes_note(device: DeviceInfo) -> str:
    width = device.pcie_width
    most = device.pcie_width_max
    if width is None or most is None or width >= most:
        return ""
    lanes = "1 of its" if width == 1 else f"{width} of its"
    return (
        f"{device.id} ({device.name}) is linked by {lanes} {most} PCIe lanes: models load and split slower; "
        "another slot may give it more"
    )
