from __future__ import annotations

import os
import sys
from dataclasses import astuple, replace
from types import SimpleNamespace

import pytest

from localspec.hardware import nvml
from localspec.hardware.device_info import DeviceUser
from localspec.hardware.nvml import look_through
from tests.hardware.cards import GTX_1060, RTX_3090, FakeLibrary


def test_a_gpu_is_described() -> None:
    library = FakeLibrary(RTX_3090)
    cards = look_through(library)
    (card,) = cards.cards
    assert (cards.driver, cards.trouble, library.shut_down) == ("580.95.05", "", True)
    assert (card.number, card.device.name, card.bus_id) == (0, "NVIDIA GeForce RTX 3090", "0000:c1:00.0")
    assert (card.device.pcie_generation, card.device.pcie_width, card.device.pcie_width_max) == (4, 16, 16)
    assert (card.device.power_limit_w, card.device.temperature_c, card.device.drives_display) == (
        350.0,
        41.0,
        True,
    )
    assert card.capability == 860


def test_the_possible_rate_is_that_of_the_data_sheet() -> None:
    (card,) = look_through(FakeLibrary(RTX_3090)).cards
    assert card.device.theoretical_rate == pytest.approx(936e9, rel=0.001)


def test_programs_on_the_gpu_are_named_and_the_hungriest_comes_first() -> None:
    (card,) = look_through(FakeLibrary(RTX_3090)).cards
    assert card.device.users == (
        DeviceUser(4_000_001, "ollama", 300 * 2**20),
        DeviceUser(4_000_002, "unknown program", None),
    )


def test_the_probe_itself_is_not_a_user() -> None:
    me = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=1)]
    (card,) = look_through(FakeLibrary(GTX_1060 | {"ComputeRunningProcesses": me})).cards
    assert card.device.users == ()


@pytest.mark.parametrize(
    ("answers", "field"),
    [
        *(
            ({"CurrPcieLinkGeneration": told}, "pcie_generation")
            for told in (0, 255, -1, 2**32 - 1, "4", True)
        ),
        *(({"CurrPcieLinkWidth": told}, "pcie_width") for told in (0, 255, 33, 2**32 - 1, None, 1.5)),
        *(({"MaxPcieLinkWidth": told}, "pcie_width_max") for told in (0, 255, 2**32 - 1)),
        *(({"EnforcedPowerLimit": told}, "power_limit_w") for told in (0, -1, 2**32 - 1, "350 W", None)),
        *(({"Temperature": told}, "temperature_c") for told in (-273, 255, 2**31 - 1, float("nan"), "41")),
        *(({"DisplayActive": told}, "drives_display") for told in (255, -1, 2**32 - 1, "yes")),
        *(({"MemoryBusWidth": told}, "theoretical_rate") for told in (0, -1, 2**32 - 1)),
        *(({"MaxClockInfo": told}, "theoretical_rate") for told in (0, -1, 2**32 - 1)),
    ],
)
def test_a_number_that_no_gpu_has_is_unknown(answers: dict[str, object], field: str) -> None:
    (card,) = look_through(FakeLibrary(RTX_3090 | answers)).cards
    (whole,) = look_through(FakeLibrary(RTX_3090)).cards
    assert getattr(card.device, field) is None
    assert getattr(whole.device, field) is not None
    assert replace(card.device, **{field: getattr(whole.device, field)}) == whole.device


@pytest.mark.parametrize("told", [(255, 255), (0, 0), (-1, 2), (2**31, 0), (8,), "86", None, ("8", "6")])
def test_a_capability_that_no_gpu_has_is_unknown(told: object) -> None:
    (card,) = look_through(FakeLibrary(RTX_3090 | {"CudaComputeCapability": told})).cards
    assert card.capability == 0


def test_memory_that_no_program_has_is_unknown() -> None:
    greedy = [SimpleNamespace(pid=4_000_001, usedGpuMemory=2**64 - 1)]
    (card,) = look_through(FakeLibrary(GTX_1060 | {"ComputeRunningProcesses": greedy})).cards
    assert card.device.users == (DeviceUser(4_000_001, "ollama", None),)


def test_text_may_come_as_bytes() -> None:
    (card,) = look_through(FakeLibrary(GTX_1060)).cards
    assert (card.device.name, card.bus_id) == ("NVIDIA GeForce GTX 1060", "0000:01:00.0")


@pytest.mark.parametrize("what", sorted(RTX_3090))
def test_one_answer_that_is_missing_leaves_the_others(what: str) -> None:
    (whole,) = look_through(FakeLibrary(RTX_3090)).cards
    (card,) = look_through(FakeLibrary({key: RTX_3090[key] for key in RTX_3090 if key != what})).cards
    found, known = ((each.bus_id, each.capability, *astuple(each.device)) for each in (card, whole))
    assert sum(one != other for one, other in zip(found, known, strict=True)) == 1


def test_a_driver_that_answers_nothing_leaves_nothing_known() -> None:
    (card,) = look_through(FakeLibrary({})).cards
    assert (card.device.name, card.device.users, card.device.theoretical_rate) == ("", (), None)


def test_a_lost_gpu_does_not_hide_the_others() -> None:
    lost, fine = look_through(FakeLibrary(GTX_1060, RTX_3090, broken=("card 0",))).cards
    assert lost.device == nvml.UNKNOWN
    assert fine.device.name == "NVIDIA GeForce RTX 3090"


def test_a_broken_driver_is_reported_in_its_own_words() -> None:
    cards = look_through(FakeLibrary(RTX_3090, broken=("nvmlInit",)))
    assert cards.cards == ()
    assert cards.trouble == "NVIDIA's driver does not answer (Driver/library version mismatch)"


def test_a_driver_that_cannot_count_is_broken() -> None:
    class Uncountable(FakeLibrary):
        def nvmlDeviceGetCount(self) -> int:  # noqa: N802
            raise OSError("no")

    assert look_through(Uncountable()).trouble == "NVIDIA's driver does not answer (no)"


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_is_installed", lambda: True)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py cannot be used" in nvml.look().trouble


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the binding looks for the library itself")
def test_without_a_driver_its_binding_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_LIBRARY", "libnvidia-ml-that-nobody-has.so.1")
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    assert nvml.look().trouble == "NVIDIA's driver does not answer (NVML Shared Library Not Found)"
    assert "pynvml" not in sys.modules
