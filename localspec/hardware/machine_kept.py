"""The measured rates of this machine on disk, until its devices, its driver or llama.cpp change."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from localspec.errors import LocalSpecError
from localspec.hardware.device_info import LinkRate, Machine, MemoryRate
from localspec.hardware.devices import Sight
from localspec.storage import paths

SCHEMA = 1


def kept_file() -> Path:
    """Return where the rates are kept; the file itself may be missing."""
    return paths.data_dir() / "machine.json"


def keep(sight: Sight, measured: Machine) -> None:
    """Write down what was measured on the machine as it was seen; raises StoreError or UserError."""
    value = {
        "schema": SCHEMA,
        "seen": _seen(sight),
        "rates": [asdict(rate) for rate in measured.rates],
        "links": [asdict(link) for link in measured.links],
    }
    paths.write_atomically(kept_file(), json.dumps(value, indent=1) + "\n")


def recall(sight: Sight) -> Machine | None:
    """Return the machine with the rates that were kept for it; None if they are another's or damaged."""
    try:
        value = json.loads(kept_file().read_text(encoding="utf-8"))
        if value["schema"] != SCHEMA or value["seen"] != _seen(sight):
            return None
        rates = tuple(
            MemoryRate(str(rate["device"]), _positive(rate["read"]), _positive(rate["copy"]))
            for rate in value["rates"]
        )
        links = tuple(
            LinkRate(str(link["source"]), str(link["target"]), _positive(link["rate"]))
            for link in value["links"]
        )
    except (LocalSpecError, OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return replace(sight.machine, rates=rates, links=links) if rates else None


def _seen(sight: Sight) -> dict[str, object]:
    """Return everything that rates depend on, as JSON gives it back."""
    return {
        "devices": [
            [device.id, device.backend, device.name, device.cores, device.pcie_width, device.pcie_width_max]
            for device in sight.machine.devices
        ],
        "driver": sight.cards.driver,
        "llama_cpp_python": sight.found.version,
    }


def _positive(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"not a rate: {value!r}")
    return float(value)
