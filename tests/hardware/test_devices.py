from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from localspec.errors import EngineDied, EngineError
from localspec.hardware import devices, nvml
from localspec.hardware.devices import BackendReport, describe, look, processor
from localspec.hardware.nvml import Cards, look_through
from localspec.llama import backends
from localspec.llama.backends import BackendDevice
from tests.hardware.cards import CPU, GIB, GTX_1060, PROCESSOR, RTX_3090, FakeLibrary, cuda, found

TWO = look_through(FakeLibrary(GTX_1060, RTX_3090))


def test_this_machine_has_a_cpu() -> None:
    sight = look()
    (cpu,) = [device for device in sight.machine.devices if device.kind == "cpu"]
    assert cpu.id == "CPU"
    assert cpu.backend == "CPU"
    assert cpu.cores >= 1
    assert 0 < cpu.memory_free <= cpu.memory_total <= psutil.virtual_memory().total
    assert sight.found.version == "0.3.36"
    assert "CPU" in sight.found.backends
    assert cpu.features


def test_gpus_are_matched_by_their_place_whatever_their_order() -> None:
    machine = describe(found(cuda(0, "0000:c1:00.0"), cuda(1, "0000:01:00.0"), CPU), TWO, PROCESSOR, {})
    first, second, cpu = machine.devices
    assert (first.id, first.name, first.drives_display) == ("CUDA0", "NVIDIA GeForce RTX 3090", True)
    assert (second.id, second.name, second.drives_display) == ("CUDA1", "NVIDIA GeForce GTX 1060", False)
    assert (first.memory_total, first.memory_free) == (24 * GIB, 20 * GIB)
    assert [user.name for user in first.users] == ["ollama", "unknown program"]
    assert (cpu.id, cpu.cores, cpu.memory_free) == ("CPU", 8, 48 * GIB)


def test_a_gpu_without_a_place_on_the_bus_is_known_by_its_own_name() -> None:
    machine = describe(found(cuda(0), cuda(1), CPU), TWO, PROCESSOR, {})
    assert [device.name for device in machine.devices[:2]] == ["a card", "a card"]


def test_another_numbering_than_that_of_nvidia_smi_is_reported() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "1"}
    machine = describe(found(cuda(0, "0000:c1:00.0"), CPU), TWO, PROCESSOR, environment)
    assert machine.notes == ("CUDA0 is number 1 of nvidia-smi, because CUDA_VISIBLE_DEVICES is 1",)
    plain = describe(found(cuda(0, "0000:01:00.0"), CPU), TWO, PROCESSOR, {})
    assert plain.notes == ()


def test_without_the_driver_a_gpu_is_what_llama_cpp_says() -> None:
    broken = Cards(trouble="NVIDIA's driver does not answer (mismatch)")
    machine = describe(found(cuda(0, "0000:01:00.0"), CPU), broken, PROCESSOR, {})
    card, _ = machine.devices
    assert (card.name, card.memory_free, card.theoretical_rate) == ("a card", 20 * GIB, None)
    (note,) = machine.notes
    assert "mismatch" in note


def test_a_gpu_of_another_maker_needs_no_driver_of_nvidia() -> None:
    radeon = BackendDevice("Vulkan0", "Radeon", "gpu", 8 * GIB, 8 * GIB, "0000:03:00.0", "Vulkan")
    machine = describe(found(radeon, CPU), Cards(trouble="no driver"), PROCESSOR, {})
    assert (machine.devices[0].name, machine.notes) == ("Radeon", ())


def test_one_gpu_by_two_names_counts_once_and_an_accelerator_not_at_all() -> None:
    same = replace(cuda(0, "0000:c1:00.0"), name="Vulkan0", backend="Vulkan")
    blas = replace(CPU, name="BLAS", kind="accel")
    machine = describe(found(cuda(0, "0000:c1:00.0"), same, blas, CPU), Cards(), PROCESSOR, {})
    assert [device.id for device in machine.devices] == ["CUDA0", "CPU"]


def test_apple_graphics_share_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    metal = BackendDevice("MTL0", "Apple M3", "gpu", 32 * GIB, 24 * GIB, "", "MTL")
    assert describe(found(metal, CPU), Cards(), PROCESSOR, {}).devices[0].kind == "integrated"


def test_a_gpu_that_the_build_cannot_use_is_a_note() -> None:
    (note,) = describe(found(CPU), TWO, PROCESSOR, {}).notes
    assert note.startswith("this build of llama.cpp does not use the NVIDIA GeForce GTX 1060")


def answers(*values: object, dies: bool) -> object:
    def values_of(_task: object, _timeout_s: float) -> Iterator[object]:
        yield from values
        if dies:
            raise EngineDied("the probing process ended: SIGSEGV")

    return values_of


def test_a_driver_that_dies_leaves_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "values_of", answers(dies=True))
    machine = look().machine
    assert [device.id for device in machine.devices] == ["CPU"]
    assert machine.devices[0].memory_total > 0
    (note,) = machine.notes
    assert note.startswith("llama.cpp could not be asked for its devices: ")
    assert "SIGSEGV" in note


def test_a_library_that_dies_after_the_devices_leaves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "values_of", answers(found(cuda(0), CPU), dies=True))
    machine = look().machine
    assert [device.id for device in machine.devices] == ["CUDA0", "CPU"]
    assert machine.notes[0].startswith("NVIDIA's driver could not be queried")
    assert "SIGSEGV" in machine.notes[0]


def test_a_llama_cpp_that_cannot_be_loaded_leaves_what_the_driver_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> tuple[BackendDevice, ...]:
        raise EngineError("libcudart.so.12 is missing")

    monkeypatch.setattr(backends, "devices", fail)
    monkeypatch.setattr(nvml, "look", lambda: TWO)
    asked = devices.ask()
    assert next(asked) == TWO
    with pytest.raises(EngineError, match="libcudart"):
        next(asked)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_system_knows_the_lanes_that_a_slot_lacks(tmp_path: Path) -> None:
    place = "sys/bus/pci/devices/0000:01:00.0"
    write(
        tmp_path,
        {
            f"{place}/max_link_width": "16\n",
            f"{place}/current_link_width": "1\n",
            f"{place}/current_link_speed": "8.0 GT/s PCIe\n",
        },
    )
    card = describe(found(cuda(0), CPU), Cards(), PROCESSOR, {}).devices[0]
    linked = devices._with_bus(card, "0000:01:00.0", tmp_path)
    assert (linked.pcie_generation, linked.pcie_width, linked.pcie_width_max) == (3, 1, 16)
    told = devices._with_bus(replace(card, pcie_width=4, pcie_width_max=4), "0000:01:00.0", tmp_path)
    assert (told.pcie_width, told.pcie_width_max) == (4, 16)
    write(tmp_path, {f"{place}/max_link_width": "255\n", f"{place}/current_link_width": "0\n"})
    unknown = devices._with_bus(card, "0000:01:00.0", tmp_path)
    assert (unknown.pcie_width, unknown.pcie_width_max) == (None, None)


@pytest.mark.parametrize("kind", ["second", "first"])
def test_a_container_limits_memory_and_cores(tmp_path: Path, kind: str) -> None:
    mib = 2**20
    if kind == "second":
        write(
            tmp_path,
            {
                "proc/self/cgroup": "0::/box/inner\n",
                "sys/fs/cgroup/box/memory.max": f"{512 * mib}\n",
                "sys/fs/cgroup/box/memory.current": f"{300 * mib}\n",
                "sys/fs/cgroup/box/memory.stat": f"anon 1\ninactive_file {100 * mib}\n",
                "sys/fs/cgroup/box/inner/memory.max": "max\n",
                "sys/fs/cgroup/box/inner/cpu.max": "150000 100000\n",
            },
        )
    else:
        write(
            tmp_path,
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/box\n4:memory:/box\n",
                "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{512 * mib}\n",
                "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{300 * mib}\n",
                "sys/fs/cgroup/memory/box/memory.stat": f"total_inactive_file {100 * mib}\n",
                "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "150000\n",
                "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n",
            },
        )
    seen = processor(16, tmp_path)
    device = seen.devices[0]
    assert (device.cores, device.memory_total, device.memory_free) == (2, 512 * mib, 312 * mib)
    assert "may use 0.5 of" in seen.notes[0]
    assert seen.notes[1] == "this program may use 1.5 of 16 cores: the limit of its container"


MIB = 2**20
LIMIT = 320  # MiB
HELD = [  # use and figures of a control group in MiB, and what its programs hold
    pytest.param(
        150, {"anon": 20, "active_file": 100, "inactive_file": 5}, 45, id="files that were read twice"
    ),
    pytest.param(150, {"anon": 20, "inactive_file": 100}, 50, id="files that were read once"),
    pytest.param(150, {"anon": 20, "slab_reclaimable": 30}, 120, id="idle objects of the kernel"),
    pytest.param(
        150, {"anon": 60, "shmem": 50, "active_file": 140}, 110, id="memory that programs share stays"
    ),
    pytest.param(150, {"anon": 5, "unevictable": 120, "active_file": 145}, 125, id="locked pages stay"),
    pytest.param(150, {"anon": 90, "unevictable": 90}, 150, id="pages that count twice"),
    pytest.param(150, {"active_file": 2**30}, 0, id="figures that contradict the use"),
    pytest.param(150, {}, 150, id="no figures"),
]


@pytest.mark.parametrize(("used", "figures", "held"), HELD)
@pytest.mark.parametrize("kind", ["second", "first"])
def test_the_cache_of_files_gives_way(
    tmp_path: Path, kind: str, used: int, figures: dict[str, int], held: int
) -> None:
    if kind == "second":
        place, names = "sys/fs/cgroup/box", ("memory.max", "memory.current")
        lines = [f"{name} {size * MIB}" for name, size in figures.items()]
    else:  # whose own figures stand beside those of all groups in it
        place, names = "sys/fs/cgroup/memory/box", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        figures = {{"anon": "rss"}.get(name, name): size for name, size in figures.items()}
        lines = [f"{name} 0" for name in figures]
        lines += [f"total_{name} {size * MIB}" for name, size in figures.items()]
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/box\n" if kind == "second" else "4:memory:/box\n",
            f"{place}/{names[0]}": f"{LIMIT * MIB}\n",
            f"{place}/{names[1]}": f"{used * MIB}\n",
            f"{place}/memory.stat": "\n".join(["broken", "anon many", *lines]),
        },
    )
    device = processor(16, tmp_path).devices[0]
    assert device.memory_free == (LIMIT - held) * MIB


@pytest.mark.parametrize(("inner", "outer", "free"), [(200, 400, 150), (400, 200, 100), (None, 200, 100)])
def test_of_nested_groups_the_one_with_least_to_give_counts(
    tmp_path: Path, inner: int | None, outer: int, free: int
) -> None:
    for place, limit, used in (("box/inner", inner, 250), ("box", outer, 300)):
        most = "max" if limit is None else limit * MIB
        folder = f"sys/fs/cgroup/{place}"
        write(tmp_path, {f"{folder}/memory.max": f"{most}\n", f"{folder}/memory.current": f"{used * MIB}\n"})
        write(tmp_path, {f"{folder}/memory.stat": f"active_file {200 * MIB}\n"})
    write(tmp_path, {"proc/self/cgroup": "0::/box/inner\n"})
    device = processor(16, tmp_path).devices[0]
    assert (device.memory_total, device.memory_free) == (200 * MIB, free * MIB)


def test_without_limits_everything_may_be_used(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/\n"})
    write(tmp_path, {"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/cpu.max": "max 100000\n"})
    seen = processor(16, tmp_path)
    assert (seen.devices[0].cores, seen.notes) == (16, ())
    assert seen.devices[0].memory_total == psutil.virtual_memory().total


def test_nothing_found_is_a_cpu_still() -> None:
    assert [device.id for device in describe(BackendReport(), Cards(), PROCESSOR, {}).devices] == ["CPU"]
