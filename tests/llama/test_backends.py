"""Devices as ggml's registry reports them, on machines that are not here."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from localspec.errors import UserError
from localspec.llama import backends
from localspec.llama.backends import BackendDevice, DeviceKind, devices


def device(name: str, kind: DeviceKind) -> BackendDevice:
    return BackendDevice(name, "a device", kind, memory_total=100, memory_free=90)


@pytest.mark.parametrize(
    ("there", "used"),
    [
        (("cpu",), []),
        (("cpu", "igpu", "igpu"), ["1"]),
        (("igpu", "gpu", "gpu", "cpu"), ["1", "2"]),
        (("accel", "cpu"), []),
    ],
)
def test_gpus_go_before_integrated_graphics(
    monkeypatch: pytest.MonkeyPatch, there: tuple[DeviceKind, ...], used: list[str]
) -> None:
    found = tuple(device(str(number), kind) for number, kind in enumerate(there))
    monkeypatch.setattr(backends, "devices", lambda: found)
    assert [each.name for each in backends.graphics()] == used


def test_a_device_named_twice_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "devices", lambda: (device("CUDA0", "gpu"), device("CPU", "cpu")))
    with pytest.raises(UserError, match="named twice: CUDA0, CUDA0"):
        backends.device_array(("CUDA0", "CUDA0"))


def test_free_memory_of_the_cpu_is_what_programs_may_still_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=123))
    assert [each.memory_free for each in devices() if each.kind == "cpu"] == [123]
