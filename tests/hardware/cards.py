"""A stand-in for the module `pynvml`, and machines that do not exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from localspec.hardware.device_info import DeviceInfo, Machine
from localspec.hardware.devices import BackendReport
from localspec.llama.backends import BackendDevice

GIB = 2**30
RTX_3090 = {
    "Name": "NVIDIA GeForce RTX 3090",
    "PciInfo": SimpleNamespace(busId="00000000:C1:00.0"),
    "CurrPcieLinkGeneration": 4,
    "CurrPcieLinkWidth": 16,
    "MaxPcieLinkWidth": 16,
    "EnforcedPowerLimit": 350_000,
    "Temperature": 41,
    "MemoryBusWidth": 384,
    "MaxClockInfo": 9751,
    "DisplayActive": 1,
    "CudaComputeCapability": (8, 6),
    "ComputeRunningProcesses": [SimpleNamespace(pid=4_000_001, usedGpuMemory=300 * 2**20)],
    "GraphicsRunningProcesses": [SimpleNamespace(pid=4_000_002, usedGpuMemory=None)],
}
GTX_1060 = RTX_3090 | {
    "Name": b"NVIDIA GeForce GTX 1060",
    "PciInfo": SimpleNamespace(busId=b"00000000:01:00.0"),
    "DisplayActive": 0,
    "ComputeRunningProcesses": [],
    "GraphicsRunningProcesses": [],
}


class NVMLError(Exception):
    """As the binding raises it."""


class FakeLibrary:
    """Answers for GPUs given as tables; what a table lacks is an error, as real drivers do it."""

    NVML_TEMPERATURE_GPU, NVML_CLOCK_MEM = 0, 2

    def __init__(self, *cards: Mapping[str, object], broken: tuple[str, ...] = ()) -> None:
        self._cards, self._broken = cards, broken
        self.shut_down = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in self._broken:
            return self._fail
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)
        return lambda card, *more: self._answer(card, name.removeprefix("nvmlDeviceGet"))

    def nvmlInit(self) -> None:  # noqa: N802
        if "nvmlInit" in self._broken:
            raise NVMLError("Driver/library version mismatch")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shut_down = True

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"580.95.05"

    def nvmlSystemGetProcessName(self, pid: int) -> str:  # noqa: N802
        if pid == 4_000_001:
            return "/usr/bin/ollama"
        raise NVMLError("Not Found")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self._cards)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> Mapping[str, object]:  # noqa: N802
        if f"card {number}" in self._broken:
            raise NVMLError("GPU is lost")
        return self._cards[number]

    def _answer(self, card: Mapping[str, object], what: str) -> object:
        if what not in card:
            raise NVMLError("Not Supported")
        return card[what]

    def _fail(self, *_arguments: object) -> object:
        raise NVMLError("Unknown Error")


def cuda(number: int, bus_id: str = "", name: str = "a card") -> BackendDevice:
    return BackendDevice(f"CUDA{number}", name, "gpu", 24 * GIB, 20 * GIB, bus_id, "CUDA")


PROCESSOR = Machine((DeviceInfo("CPU", "cpu", "CPU", "", 64 * GIB, 48 * GIB, cores=8),))
CPU = BackendDevice("CPU", "a processor", "cpu", 64 * GIB, 60 * GIB, "", "CPU")


def found(*devices: BackendDevice) -> BackendReport:
    backends = tuple(dict.fromkeys(device.backend for device in devices))
    return BackendReport(devices, {"CPU": ("AVX2", "OPENMP"), "CUDA": ("ARCHS = 860",)}, "0.3.36", backends)
