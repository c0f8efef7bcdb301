"""The devices of this machine: ggml's devices, with details from NVML and the system."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from localspec.child_process import ValuesOf, values_of
from localspec.errors import LocalSpecError, UserError
from localspec.hardware import nvml
from localspec.hardware.device_info import DeviceInfo, DeviceKind, Machine, possible_count
from localspec.llama.cores import allowed_cores, core_limits, number_in, text_in
from localspec.llama.memory import free_memory, memory_limits

if TYPE_CHECKING:
    from localspec.llama.backends import BackendDevice


TIMEOUT_S = 60.0
"""The first start of a driver may take long: it may have to compile for the GPU."""
_KINDS: dict[str, DeviceKind] = {"cpu": "cpu", "gpu": "gpu", "igpu": "integrated"}
_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}  # PCIe, by GT/s per lane


@dataclass(frozen=True, slots=True)
class BackendReport:
    """llama.cpp's report: its devices, and the build features of each backend."""

    devices: tuple[BackendDevice, ...] = ()
    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    version: str = ""
    backends: tuple[str, ...] = ()  # also those that found no device


Answer = BackendReport | nvml.Cards


@dataclass(frozen=True, slots=True)
class DetectedMachine:
    """The machine, and what it depends on."""

    machine: Machine
    found: BackendReport = field(default_factory=BackendReport)
    cards: nvml.Cards = field(default_factory=nvml.Cards)
    trouble: LocalSpecError | None = None  # that made the report incomplete


def look(timeout_s: float = TIMEOUT_S, *, via: ValuesOf | None = None) -> DetectedMachine:
    """Look at this machine without measuring; a driver that dies or hangs is a note.

    Raises `UserError` where a backend is to be loaded that cannot be.
    `via` asks in a process that is there already, such as `Worker.values_of`.
    """
    found = BackendReport()
    cards = nvml.Cards()
    trouble = None
    try:
        for answer in values_of(ask, timeout_s) if via is None else via(ask):
            if isinstance(answer, BackendReport):
                found = answer
            else:
                cards = answer
    except UserError:
        raise
    except LocalSpecError as error:
        trouble = error
    seen = describe(found, cards, processor(allowed_cores()), os.environ, str(trouble or ""))
    return DetectedMachine(seen, found, cards, trouble)


def ask() -> Iterator[Answer]:
    """ValuesOf the native libraries in a child process, which may crash; earlier results stay."""
    from localspec.llama import backends

    try:
        yield BackendReport(backends.devices(), backends.features(), backends.version(), backends.names())
    finally:
        yield nvml.look()


def describe(
    found: BackendReport, cards: nvml.Cards, cpu: Machine, environment: Mapping[str, str], trouble: str = ""
) -> Machine:
    """Combine the results; `trouble` is the error that made them incomplete."""
    every: list[DeviceInfo] = []
    notes = list(cpu.notes)
    processor = replace(cpu.devices[0], features=found.features.get("CPU", ()))
    places: set[str] = set()
    cards_by_place = {card.bus_id: card for card in cards.cards}
    for device in found.devices:
        if device.kind not in _KINDS or (device.bus_id and device.bus_id in places):
            continue  # no memory of its own, or one GPU by two names: llama.cpp takes the first
        places.add(device.bus_id)
        if device.kind == "cpu":
            every.append(replace(processor, id=device.name, name=device.description))
            continue
        card = cards_by_place.get(device.bus_id) if device.bus_id else None
        every.append(_with_bus(_graphics(device, found, card), device.bus_id))
        if card is not None and device.backend == "CUDA" and device.name != f"CUDA{card.number}":
            notes.append(_renumbered(device.name, card.number, environment))
    if cards.cards and found.devices and all(device.kind == "cpu" for device in every):
        notes.append(
            f"this build of llama.cpp does not use the {cards.cards[0].device.name or 'NVIDIA GPU'}: "
            "`localspec doctor` says how to change that"
        )
    if not trouble and any(device.backend == "CUDA" for device in found.devices):
        trouble = cards.trouble
    if trouble and not found.devices:
        notes.append(f"llama.cpp could not be asked for its devices: {trouble}")
    elif trouble:
        notes.append(f"NVIDIA's driver could not be queried: {trouble}")
    if all(device.kind != "cpu" for device in every):
        every.append(replace(processor, name=platform.processor() or platform.machine()))
    return Machine(devices=tuple(every), notes=tuple(notes))


def _graphics(device: BackendDevice, found: BackendReport, card: nvml.Card | None) -> DeviceInfo:
    is_apple = device.backend == "MTL" and platform.machine() == "arm64"  # ggml calls it a discrete GPU
    seen = card.device if card else nvml.UNKNOWN
    return replace(
        seen,
        id=device.name,
        kind="remote" if device.round_trip_s else "integrated" if is_apple else _KINDS[device.kind],
        backend=device.backend,
        name=seen.name or device.description,
        memory_total=device.memory_total,
        memory_free=device.memory_free,
        features=found.features.get(device.backend, ()),
        splits_rows=device.splits_rows,
        round_trip_s=device.round_trip_s,
    )


def _with_bus(device: DeviceInfo, bus_id: str, root: Path = Path("/")) -> DeviceInfo:
    """Add what Linux knows of a GPU's link: NVML leaves out the lanes that the slot lacks."""
    if not bus_id:
        return device
    place = root / "sys/bus/pci/devices" / bus_id
    speed = text_in(place / "current_link_speed").partition(" ")[0]
    most = max(device.pcie_width_max or 0, _lanes(place / "max_link_width") or 0)
    return replace(
        device,
        pcie_generation=device.pcie_generation or _GENERATIONS.get(speed),
        pcie_width=device.pcie_width or _lanes(place / "current_link_width"),
        pcie_width_max=most or None,
    )


def _lanes(path: Path) -> int | None:
    return possible_count("pcie_width", number_in(path))  # 255 means unknown


def _renumbered(name: str, number: int, environment: Mapping[str, str]) -> str:
    variables = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    because = [f"{key} is {environment[key]}" for key in variables if environment.get(key)]
    why = f", because {' and '.join(because)}" if because else ""
    return f"{name} is number {number} of nvidia-smi{why}"


def processor(cores: int, root: Path = Path("/")) -> Machine:
    """Describe the CPU with `cores` physical cores for this process; `root` contains /proc and /sys.

    Notes mention the limits of a container.
    """
    whole = psutil.virtual_memory().total
    limits = []
    total = min((whole, *(limit for limit, _ in memory_limits(root))))
    if total < whole:
        limits.append(
            f"this program may use {total / 2**30:.1f} of {whole / 2**30:.1f} GiB memory: "
            "the limit of its container"
        )
    share = min(core_limits(root), default=float(cores))
    if share < cores:
        limits.append(f"this program may use {share:g} of {cores} cores: the limit of its container")
        cores = max(1, ceil(share))
    device = DeviceInfo("CPU", "cpu", "CPU", "", total, free_memory(root), cores)
    return Machine((device,), notes=tuple(limits))
