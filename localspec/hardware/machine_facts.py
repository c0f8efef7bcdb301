"""What of this machine tuned settings depend on, from what is known of it anyway."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from localspec.hardware import nvml
from localspec.hardware.device_info import Machine
from localspec.storage.tuned import MachineFacts


def facts_of(machine: Machine) -> MachineFacts:
    """Return the facts of a machine that was looked at; asks NVIDIA's driver alone, where it has cards."""
    processor = next((device for device in machine.devices if device.kind == "cpu"), None)
    has_cuda = any(device.backend == "CUDA" for device in machine.devices)
    llama_cpp = ""
    with suppress(PackageNotFoundError):
        llama_cpp = version("llama-cpp-python")
    return MachineFacts(
        processor="" if processor is None else processor.name,
        cores=0 if processor is None else processor.cores,
        devices=tuple(f"{each.id}: {each.name}" for each in machine.devices if each.kind != "cpu"),
        driver=nvml.look().driver if has_cuda else "",
        llama_cpp=llama_cpp,
    )
