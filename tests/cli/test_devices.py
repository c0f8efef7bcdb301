from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module

import pytest

from localspec.cli.devices import main, table
from localspec.cli.shared.console import exit_code
from localspec.hardware import machine as machine_module
from localspec.hardware.device_info import DeviceInfo, DeviceUser, Machine, MemoryRate, SumCost
from localspec.hardware.machine import Progress

GIB = 2**30
CARD = DeviceInfo(
    id="CUDA0",
    kind="gpu",
    backend="CUDA",
    name="NVIDIA GeForce RTX 3090",
    memory_total=24 * GIB,
    memory_free=20 * GIB,
    features=("ARCHS = 860",),
    drives_display=True,
    pcie_generation=4,
    pcie_width=8,
    pcie_width_max=16,
    power_limit_w=350.0,
    temperature_c=41.0,
    theoretical_rate=936e9,
    users=(DeviceUser(12, "firefox", 300 * 2**20), DeviceUser(13, "game", None)),
)
CPU = DeviceInfo("CPU", "cpu", "CPU", "a processor", 64 * GIB, 48 * GIB, cores=32, features=("AVX2",))
MACHINE = Machine(
    devices=(CARD, CPU),
    rates=(MemoryRate("CUDA0", 800e9), MemoryRate("CPU", 30e9)),
    notes=("CUDA0 is linked by 8 of its 16 PCIe lanes",),
)


class Asked:
    """Stands in for `known_machine` and remembers what it was asked."""

    def __init__(self) -> None:
        self.fresh: bool | None = None
        self.may_measure: bool | None = None
        self.interrupted = False

    def __call__(self, fresh: bool, on_progress: Progress, *, may_measure: bool) -> Machine:
        self.fresh, self.may_measure = fresh, may_measure
        assert on_progress(0.5)
        if self.interrupted:
            raise KeyboardInterrupt
        return MACHINE


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    result = Asked()
    monkeypatch.setattr(machine_module, "known_machine", result)
    return result


@pytest.mark.usefixtures("asked")
def test_everything_known_is_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "CUDA0: NVIDIA GeForce RTX 3090",
        "  memory    20.0 GiB free of 24.0 GiB",
        "  speed     reads 800 GB/s, 936 GB/s possible (85% reached)",
        "  link      PCIe 4 now, 8 of 16 lanes",
        "  state     41 °C, at most 350 W, drives a display",
        "  used by   firefox (process 12, 300 MiB), game (process 13)",
        "  built for ARCHS = 860",
        "CPU: a processor",
        "  memory    48.0 GiB free of 64.0 GiB",
        "  speed     reads 30 GB/s",
        "  cores     32",
        "  built for AVX2",
    ]
    assert err == "note: CUDA0 is linked by 8 of its 16 PCIe lanes\n"


@pytest.mark.usefixtures("asked")
def test_json_has_a_schema_and_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"]) == 0
    out, err = capsys.readouterr()
    value = json.loads(out)
    assert err == ""
    assert value["schema"] == 1
    assert value["devices"][0]["users"][0] == {"pid": 12, "name": "firefox", "memory": 300 * 2**20}
    unmeasured = {"link": None, "weights": None, "further": None}
    assert value["rates"][1] == {"device": "CPU", "read": 30e9, **unmeasured}
    assert value["notes"] == list(MACHINE.notes)


@pytest.mark.parametrize(
    ("flags", "fresh", "may_measure"),
    [([], False, True), (["--measure"], True, True), (["--no-measure"], False, False)],
)
def test_measuring_is_asked_for_or_forbidden(
    asked: Asked, flags: list[str], fresh: bool, may_measure: bool
) -> None:
    main(flags)
    assert (asked.fresh, asked.may_measure) == (fresh, may_measure)


def test_the_cost_of_sums_stands_at_the_first_device() -> None:
    second = replace(CARD, id="CUDA1")
    sums = (SumCost(("CUDA0", "CUDA1"), 2.4e-5, 20e9),)
    lines = table(replace(MACHINE, devices=(CARD, second, CPU), sums=sums))
    assert [line for line in lines if "sums" in line] == [
        "  sums      with CUDA1: 24 µs each, 20 GB/s (-sm tensor)"
    ]
    assert lines.index("CUDA1: NVIDIA GeForce RTX 3090") > lines.index(
        "  sums      with CUDA1: 24 µs each, 20 GB/s (-sm tensor)"
    )


def test_a_gpu_of_which_little_is_known_is_short() -> None:
    unknown = DeviceInfo("Vulkan0", "integrated", "Vulkan", "graphics", 8 * GIB, 8 * GIB)
    assert table(Machine((unknown,))) == [
        "Vulkan0: graphics",
        "  memory    8.0 GiB free of 8.0 GiB",
        "  state     shares the CPU's memory",
    ]


def test_slow_rates_have_their_decimals() -> None:
    slow = replace(MACHINE, rates=(MemoryRate("CUDA0", 0.4e9), MemoryRate("CPU", 2e7)))
    lines = [line for line in table(slow) if "reads" in line]
    assert "reads 0.4 GB/s, 936 GB/s possible" in lines[0]
    assert "reads 20 MB/s" in lines[1]


def test_ctrl_c_leaves_with_its_own_code(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    asked.interrupted = True
    assert exit_code(lambda: main([]), []) == 130
    assert capsys.readouterr().out == ""


def test_a_real_look_at_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert import_module("localspec.cli.devices").main(["--no-measure", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert "CPU" in [device["id"] for device in value["devices"]]
    assert value["rates"] == []
