"""A machine that a file describes, so that models can be planned for a machine that is not here.

The file is TOML: `memory` is all that it needs, and a table [[gpu]] for each GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from localspec.hardware.bandwidth import PROCESSOR
from localspec.hardware.device_info import DescribedMachine, DeviceInfo, MemoryRate
from localspec.storage.toml_file import TomlTable, read_table
from localspec.units import parse_size
from localspec.values import Range, shown

MACHINE_KEYS = ("name", "memory", "free", "cores", "rate", "measured", "gpu")
GPU_KEYS = ("id", "name", "memory", "free", "rate", "measured", "pcie", "unified", "display")
MAX_GPUS = 16  # of llama.cpp
_MEMORY_EXAMPLE = 'write its size and unit: memory = "64 GB"'
_RATE_EXAMPLE = 'write bytes per second, as makers state them: rate = "360 GB/s"'
_LEAST_MEMORY = 2**28
_MOST_MEMORY = 2**46
# bytes per second
_LEAST_RATE = 10**8
_MOST_RATE = 10**14
_LONGEST_NAME = 60
_USUAL_CORES = 8
_SYSTEM = 4 * 2**30  # that the system and other programs take of the memory, but at most half of it
_DRIVER_SHARE = 1 / 40  # of a GPU's memory, which its driver takes before any program
_UNIFIED_SHARE = 3 / 4  # of the memory, which a GPU without its own may use: the usual limit of macOS
_PROCESSOR_SHARE = 1 / 2  # of the rate of unified memory, which the CPU of such a chip can use
_ID = re.compile(r"[A-Za-z][\w-]{0,15}", re.ASCII)
_TAKEN = ("cpu", "none")  # what `-dev` and `--reserve` call the CPU
_PCIE = re.compile(r"(?:PCIe\s*)?([1-6])(?:\.0)?\s*x\s*(1|2|4|8|16)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _DescribedDevice:
    """A device, and the measured rate of its memory."""

    device: DeviceInfo
    measured: float | None


def read_machine(path: Path) -> DescribedMachine:
    """Read the description of a machine; raises UserError with the line that is wrong."""
    table = read_table(path)
    table.allow(MACHINE_KEYS)
    memory = _required_memory(table)
    cards = _cards(table, memory)
    devices = (*cards, _processor(table, memory, cards))
    return DescribedMachine(
        devices=tuple(each.device for each in devices),
        rates=tuple(MemoryRate(each.device.id, each.measured) for each in devices if each.measured),
    )


def _processor(table: TomlTable, memory: int, cards: tuple[_DescribedDevice, ...]) -> _DescribedDevice:
    rate = _rate(table, "rate")
    unified = [each.device.theoretical_rate for each in cards if each.device.kind == "integrated"]
    if unified and unified[0] is not None:
        rate = _PROCESSOR_SHARE * unified[0]
    device = DeviceInfo(
        id=PROCESSOR,
        kind="cpu",
        backend="CPU",
        name=_name(table),
        memory_total=memory,
        memory_free=_free(table, memory, memory - min(_SYSTEM, memory // 2)),
        cores=table.value("cores", Annotated[int, Range(1, 1024)], _USUAL_CORES),
        theoretical_rate=rate,
    )
    return _DescribedDevice(device, _rate(table, "measured"))


def _cards(table: TomlTable, memory: int) -> tuple[_DescribedDevice, ...]:
    tables = table.tables("gpu")
    if len(tables) > MAX_GPUS:
        table.complain("gpu", f"there are {len(tables):,} GPUs, and llama.cpp uses at most {MAX_GPUS}")
    shared_rate = _rate(table, "rate")
    taken = set(_TAKEN)
    cards: list[_DescribedDevice] = []
    for number, each in enumerate(tables):
        each.allow(GPU_KEYS)
        card_id = _id(each, number, taken)
        taken.add(card_id.lower())
        cards.append(_card(each, card_id, memory, shared_rate))
    return tuple(cards)


def _card(table: TomlTable, card_id: str, memory: int, shared_rate: float | None) -> _DescribedDevice:
    """Return a GPU; `memory` and its rate are the machine's, which a unified GPU shares."""
    is_unified = table.value("unified", bool, False)
    generation, lanes = _pcie(table)
    rate = _rate(table, "rate")
    if is_unified:
        own = _memory(table, "memory") or int(_UNIFIED_SHARE * memory)
        if own > memory:
            table.complain("memory", "a unified GPU has no more memory than the machine")
        rate = rate or shared_rate
    else:
        own = _required_memory(table)
    device = DeviceInfo(
        id=card_id,
        kind="integrated" if is_unified else "gpu",
        backend="",  # whichever it will be
        name=_name(table),
        memory_total=own,
        memory_free=_free(table, own, own - int(_DRIVER_SHARE * own)),
        drives_display=table.value("display", bool, None),
        pcie_generation=generation,
        pcie_width=lanes,
        pcie_width_max=lanes,
        theoretical_rate=rate,
    )
    return _DescribedDevice(device, _rate(table, "measured"))


def _id(table: TomlTable, number: int, taken: set[str]) -> str:
    found = table.line("id", f"GPU{number}")
    if not _ID.fullmatch(found):
        table.complain("id", f"`id` cannot be {shown(found)}", "use at most 16 letters, digits, - and _")
    if found.lower() in taken:
        table.complain("id", f"`id` cannot be {shown(found)}: another device has this name")
    return found


def _name(table: TomlTable) -> str:
    name = table.line("name").strip()
    if len(name) > _LONGEST_NAME:
        table.complain("name", f"`name` can have at most {_LONGEST_NAME} characters, not {len(name):,}")
    return name


def _pcie(table: TomlTable) -> tuple[int | None, int | None]:
    """Return the generation of PCIe and the number of lanes."""
    if "pcie" not in table:
        return None, None
    text = table.line("pcie")
    found = _PCIE.fullmatch(text.strip())
    if found is None:
        hint = 'write generation and lanes: pcie = "4 x16"'
        table.complain("pcie", f"`pcie` has to be a link such as 4 x16, not {shown(text)}", hint)
    return int(found[1]), int(found[2])


def _required_memory(table: TomlTable) -> int:
    table.require("memory", _MEMORY_EXAMPLE)
    memory = _memory(table, "memory")
    assert memory is not None  # it is required
    return memory


def _memory(table: TomlTable, key: str) -> int | None:
    if key not in table:
        return None
    text = table.line(key)
    size = parse_size(text, of_memory=True)
    if size is None or not _LEAST_MEMORY <= size <= _MOST_MEMORY:
        problem = f"`{key}` has to be a size from 256 MB to 64 TB, not {shown(text)}"
        table.complain(key, problem, _MEMORY_EXAMPLE)
    return size


def _free(table: TomlTable, memory: int, usual: int) -> int:
    if "free" not in table:
        return usual
    text = table.line("free")
    size = parse_size(text, of_memory=True)
    if size is None or size > memory:
        problem = f"`free` has to be a size, at most all of the memory, not {shown(text)}"
        table.complain("free", problem, 'write the part of it that is free: free = "10 GB"')
    return size


def _rate(table: TomlTable, key: str) -> float | None:
    if key not in table:
        return None
    text = table.line(key)
    rate = parse_size(text.strip().removesuffix("/s"))
    if rate is None or not _LEAST_RATE <= rate <= _MOST_RATE:
        problem = f"`{key}` has to be a rate from 0.1 GB/s to 100 TB/s, not {shown(text)}"
        table.complain(key, problem, _RATE_EXAMPLE)
    return float(rate)
