from __future__ import annotations

import os
import shlex
import sqlite3
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from localspec.app.checks import build, files, machine
from localspec.app.checks.build import card_vendors, rebuild_command
from localspec.app.checks.check import Check
from localspec.app.checks.machine import machine_checks
from localspec.chat.store import Store
from localspec.hardware.device_info import DeviceInfo, Machine, MemoryRate, SumCost
from localspec.hardware.devices import DetectedMachine
from localspec.hardware.nvml import Cards, look_through
from localspec.llama import tile_code
from localspec.llama.backends import BackendDevice
from localspec.storage import paths
from tests.hardware.cards import CPU, GIB, GTX_1060, RTX_3090, FakeLibrary, cuda, found
from tests.llama import tiny

PROCESSOR = DeviceInfo("CPU", "cpu", "CPU", "a processor", 64 * GIB, 48 * GIB, cores=8)
CARD = DeviceInfo("CUDA0", "gpu", "CUDA", "RTX 3090", 24 * GIB, 20 * GIB, theoretical_rate=936e9)
PLAIN = DetectedMachine(Machine((PROCESSOR,)), found(CPU))
ONE = look_through(FakeLibrary(RTX_3090))
WITH_CARD = DetectedMachine(Machine((CARD, PROCESSOR)), found(cuda(0), CPU), ONE)


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no other program and no real GPU of this machine into the tests."""
    monkeypatch.setattr(machine, "busy_cores", lambda: (0.5, "somebody (process 1)"))
    monkeypatch.setattr(
        machine,
        "card_vendors",
        lambda sight: ("NVIDIA",) if sight.cards.cards or sight.cards.trouble else (),
    )
    monkeypatch.setattr(machine, "_INSTRUCTIONS", {})
    monkeypatch.setattr(tile_code, "is_broken", lambda: False)
    for module in (build, machine):
        monkeypatch.setattr(module, "which", lambda name: f"/usr/bin/{name}")


def check(
    name: str,
    sight: DetectedMachine = PLAIN,
    rated: Machine | None = None,
    environment: Mapping[str, str] | None = None,
) -> Check:
    checks = machine_checks(sight, rated or sight.machine, environment or {})
    return next(check for check in checks if check.name == name)


@pytest.mark.parametrize("sight", [PLAIN, WITH_CARD], ids=["processor", "card"])
def test_a_machine_in_order_passes(sight: DetectedMachine) -> None:
    assert {check.verdict for check in machine_checks(sight, sight.machine, {})} == {"pass"}


def test_a_build_for_the_cpu_alone_next_to_a_gpu_fails_with_the_command() -> None:
    seen = check("cards", replace(PLAIN, cards=ONE))
    assert seen.verdict == "fail"
    assert "GGML_CUDA=ON" in seen.mend
    assert "llama-cpp-python==0.3.36" in seen.mend


def test_the_small_gpu_within_the_cpu_does_not_matter_next_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "card_vendors", lambda sight: ("NVIDIA", "AMD"))
    texts = [seen.text for seen in machine_checks(WITH_CARD, WITH_CARD.machine, {}) if seen.name == "cards"]
    assert texts == ["the NVIDIA GPU is used"]


@pytest.mark.parametrize(
    ("capability", "verdict"), [(0, "pass"), (860, "pass"), (890, "pass"), (750, "fail"), (900, "warn")]
)
def test_a_build_for_another_generation_of_gpus_is_reported_with_the_command(
    capability: int, verdict: str
) -> None:
    built_for_860 = replace(WITH_CARD, cards=Cards((replace(ONE.cards[0], capability=capability),)))
    seen = check("cards", built_for_860)
    assert seen.verdict == verdict
    assert ("compute capability" in seen.text, "GGML_CUDA=ON" in seen.mend) == (verdict != "pass",) * 2


def test_a_driver_that_does_not_answer_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    updated = Cards(trouble="NVIDIA's driver does not answer (Driver/library version mismatch)")
    seen = check("driver", replace(PLAIN, cards=updated))
    assert (seen.verdict, seen.mend) == ("fail", "sudo reboot")
    gone = replace(PLAIN, cards=Cards(trouble="NVIDIA's driver does not answer (gone)"))
    assert "(gone)" in check("driver", gone).text
    assert check("driver", gone).mend.startswith("nvidia-smi")
    for module in (build, machine):
        monkeypatch.setattr(module, "which", lambda name: None)
    assert "nvidia-smi" not in check("driver", gone).mend


def test_devices_are_those_of_ggml_and_nvidia_smi_is_named_only_where_it_has_gpus() -> None:
    vulkan = BackendDevice("Vulkan0", "llvmpipe (LLVM)", "gpu", 8 * GIB, 8 * GIB, backend="Vulkan")
    seen = replace(PLAIN, found=found(CPU, vulkan, replace(vulkan, name="Vulkan1")))
    names = "CPU (a processor), Vulkan0 (llvmpipe (LLVM)), Vulkan1 (llvmpipe (LLVM))"
    assert check("devices", seen).text == names
    for sight in (PLAIN, seen):
        assert not [each for each in machine_checks(sight, sight.machine, {}) if "nvidia-smi" in each.text]
    assert "nvidia-smi" in check("order of cards", WITH_CARD).text


def test_a_gpu_that_a_variable_hides_fails() -> None:
    hidden = replace(WITH_CARD, found=replace(found(CPU), backends=("CUDA", "CPU")))
    seen = check("cards", hidden, environment={"CUDA_VISIBLE_DEVICES": ""})
    assert (seen.verdict, seen.mend) == ("fail", "unset CUDA_VISIBLE_DEVICES")
    assert "older than the build" in check("cards", hidden).text


def test_a_llama_cpp_that_does_not_start_fails() -> None:
    dead = DetectedMachine(Machine((PROCESSOR,), notes=("llama.cpp could not be asked: SIGILL",)))
    seen = check("llama.cpp", dead)
    assert seen.verdict == "fail"
    assert "SIGILL" in seen.text
    assert "llama-cpp-python==0.3.36" in seen.mend


def test_another_version_of_llama_cpp_is_a_warning() -> None:
    assert check("llama.cpp", replace(PLAIN, found=replace(PLAIN.found, version="0.3.37"))).verdict == "warn"


def test_code_that_a_compiler_spoilt_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_code, "is_broken", lambda: True)
    seen = check("processor", PLAIN)
    assert (seen.verdict, "AMX" in seen.text) == ("warn", True)
    assert seen.mend.startswith("CC=gcc-14 CXX=g++-14 ")


def test_unused_instructions_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_INSTRUCTIONS", {"avx2": "AVX2", "avx512f": "AVX512"})
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("flags\t\t: fpu avx2 avx512f\n")
    seen = machine._instructions(PLAIN, (), tmp_path)
    assert seen.verdict == "warn"
    assert "AVX512 unused" in seen.text
    assert "AVX2" not in seen.text
    (tmp_path / "proc/cpuinfo").write_text("flags\t\t: fpu avx2\n")
    assert machine._instructions(PLAIN, (), tmp_path).verdict == "pass"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have other threads")
def test_a_build_without_openmp_is_a_warning(tmp_path: Path) -> None:
    without = replace(PLAIN.found, features={"CPU": ("AVX2",)})
    seen = machine._instructions(replace(PLAIN, found=without), (), tmp_path)
    assert "OpenMP" in seen.text


def test_another_order_of_gpus_matters_with_two_gpus() -> None:
    order = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    two = replace(WITH_CARD, cards=look_through(FakeLibrary(GTX_1060, RTX_3090)))
    seen = check("order of cards", two, environment=order)
    assert (seen.verdict, seen.mend) == ("warn", "export CUDA_DEVICE_ORDER=PCI_BUS_ID")
    assert check("order of cards", WITH_CARD, environment=order).verdict == "pass"
    assert "CUDA_VISIBLE_DEVICES=1" in check("order of cards", two, None, {"CUDA_VISIBLE_DEVICES": "1"}).text


@pytest.mark.parametrize(
    ("variable", "value", "verdict"),
    [
        ("OMP_NUM_THREADS", "16", "warn"),
        ("OMP_NUM_THREADS", "8", "pass"),
        ("OMP_NUM_THREADS", "many", "pass"),
        ("OMP_THREAD_LIMIT", "2", "warn"),
        ("OMP_WAIT_POLICY", "ACTIVE", "warn"),
        ("OMP_WAIT_POLICY", "passive", "pass"),
    ],
)
def test_threads_beyond_the_cores_are_a_warning(variable: str, value: str, verdict: str) -> None:
    seen = check("threads", environment={variable: value})
    assert seen.verdict == verdict
    assert seen.mend == (f"unset {variable}" if verdict == "warn" else "")


def test_a_busy_cpu_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "busy_cores", lambda: (6.2, "blender (process 7)"))
    seen = check("other programs")
    assert seen.verdict == "warn"
    assert "6.2 of 8 cores, blender (process 7) the most" in seen.text


def test_a_slow_gpu_and_a_slow_link_are_warnings() -> None:
    slow = replace(CARD, pcie_width=1, pcie_width_max=16)
    rated = Machine((slow, PROCESSOR), (MemoryRate("CUDA0", 100e9),))
    texts = [seen.text for seen in machine_checks(WITH_CARD, rated, {}) if seen.name == "speed"]
    assert len(texts) == 2
    assert "11% of" in texts[0]
    assert "1 of its 16 PCIe lanes" in texts[1]


def test_sums_over_equal_gpus_are_reported() -> None:
    two = Machine((CARD, replace(CARD, id="CUDA1"), PROCESSOR), (MemoryRate("CUDA0", 800e9),))
    measured = replace(two, sums=(SumCost(("CUDA0", "CUDA1"), 2.4e-5, 20e9),))
    for rated, told in ((two, "not measured; `localspec devices"), (measured, "CUDA0 and CUDA1 in 24 µs")):
        [seen] = [seen for seen in machine_checks(WITH_CARD, rated, {}) if seen.name == "sums"]
        assert seen.text.startswith(f"partial results of -sm tensor: {told}")
    one = replace(two, devices=two.devices[1:])
    assert "sums" not in [seen.name for seen in machine_checks(WITH_CARD, one, {})]


def test_makers_of_gpus_are_found_without_any_driver(tmp_path: Path) -> None:
    assert card_vendors(PLAIN, tmp_path) == ()
    for number, vendor in enumerate(("0x8086", "0x1002", "0x1234", "0x10de")):
        folder = tmp_path / f"sys/class/drm/card{number}/device"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
    assert card_vendors(PLAIN, tmp_path) == ("NVIDIA", "AMD", "Intel")
    (tmp_path / "sys/class/drm/card0/device").rename(tmp_path / "0000:00:02.0")
    (tmp_path / "sys/class/drm/card0/device").symlink_to(tmp_path / "0000:00:02.0")
    assert card_vendors(PLAIN, tmp_path) == ("NVIDIA", "AMD")  # Intel's is within the CPU
    (tmp_path / "bare/dev").mkdir(parents=True)
    (tmp_path / "bare/dev/nvidia0").touch()
    assert card_vendors(PLAIN, tmp_path / "bare") == ("NVIDIA",)
    assert card_vendors(WITH_CARD, tmp_path / "empty") == ("NVIDIA",)


def test_the_mending_command_suits_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_spec", lambda name: object())
    assert f"{sys.executable} -m pip install --force-reinstall" in rebuild_command(())
    monkeypatch.setattr(build, "find_spec", lambda name: None)
    assert f"uv pip install --python {sys.executable}" in rebuild_command(("AMD",))


@pytest.mark.parametrize(
    ("vendors", "installed", "option", "first"),
    [
        ((), "c++", "-DGGML_RPC_RDMA=OFF", ""),
        (("NVIDIA", "AMD"), "nvcc", "-DGGML_CUDA=ON", ""),
        (("NVIDIA",), "glslc", "-DGGML_CUDA=ON", "CUDA toolkit"),
        (("AMD",), "hipconfig", "-DGGML_HIP=ON", ""),
        (("AMD",), "glslc", "-DGGML_VULKAN=ON", ""),
        (("Intel",), "icpx", "-DCMAKE_CXX_COMPILER=icpx", ""),
        (("Intel",), "", "-DGGML_VULKAN=ON", "glslc"),
    ],
)
def test_the_mending_command_builds_what_can_be_built_here(
    vendors: tuple[str, ...], installed: str, option: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (build, machine):
        monkeypatch.setattr(module, "which", lambda name: name if name == installed else None)
    command, _, comment = rebuild_command(vendors).partition("0.3.36")
    assert f'{option}"' in command
    assert first in comment
    assert bool(first) == bool(comment)


def test_folders_must_be_writable_private_and_have_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    assert files.folder("data folder", tmp_path).verdict == "pass"
    for free, verdict in ((2**29, "warn"), (2**20, "fail")):
        with monkeypatch.context() as patch:
            patch.setattr(files, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
            assert files.folder("data folder", tmp_path).verdict == verdict
    if os.name == "posix":
        for mode in (0o755, 0o710):
            tmp_path.chmod(mode)
            seen = files.folder("data folder", tmp_path)
            assert (seen.verdict, seen.mend) == ("warn", f"chmod 700 {tmp_path}")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert files.folder("data folder", tmp_path).verdict == "fail"
    assert chats().verdict == "fail"


def chats() -> Check:
    return files.chats("chats", paths.chats_file())


def test_chats_are_read_and_left_as_they_are() -> None:
    assert chats().text == "none saved yet"
    assert not paths.chats_file().exists()
    with Store(paths.chats_file()) as store:
        store.new_chat("hello")
    before = paths.chats_file().read_bytes()
    assert chats().verdict == "pass"
    assert paths.chats_file().read_bytes() == before


def test_damaged_chats_fail_with_a_way_to_rescue_them() -> None:
    paths.chats_file().write_bytes(b"this is no database" * 100)
    seen = chats()
    assert seen.verdict == "fail"
    assert ".recover" in seen.mend


def test_damage_inside_the_chats_is_found() -> None:
    path = paths.chats_file()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (x)")
    connection.executemany("INSERT INTO t VALUES (?)", [("x" * 500,)] * 200)
    connection.commit()
    connection.close()
    data = bytearray(path.read_bytes())
    data[8192:8292] = b"\xff" * 100
    path.write_bytes(data)
    assert chats().verdict == "fail"


def test_configured_models_are_looked_at(demo_target: Path, tmp_path: Path) -> None:
    (nothing,) = files.models()
    assert nothing.verdict == "pass"
    config = paths.config_dir() / "config.toml"
    hybrid = tiny.recurrent(tmp_path / "hybrid.gguf")
    config.write_text(f"[models]\ntarget = '{demo_target}'\ndraft = '{hybrid}'\n")
    settled, target, draft = files.models()
    assert [settled.verdict, target.verdict, draft.verdict] == ["pass", "pass", "pass"]
    config.write_text("[models]\ntarget = 'missing.gguf'\n")
    (missing,) = files.models()
    assert missing.verdict == "fail"
    assert missing.text.startswith(f"{config}, line 2: `target` names no file: ")
    config.write_text("theme = 3\n")
    (broken,) = files.models()
    assert broken.verdict == "fail"


@pytest.mark.parametrize("name", ["config.tml", "Config.toml.txt", "config.toml~", "configs.toml"])
def test_a_configuration_by_nearly_its_name_is_not_passed_over_in_silence(name: str) -> None:
    folder = paths.config_dir()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("theme = 'nord'\n")
    (folder / "keys.json").write_text("{}")
    (check,) = files.models()
    assert check.verdict == "warn"
    assert check.text == f"`{folder / name}` is not read: its name is not `config.toml`"
    assert shlex.split(check.mend) == ["mv", str(folder / name), str(folder / "config.toml")]
    (folder / "config.toml").write_text("")
    check, *_ = files.models()
    assert check.verdict == "pass"


@pytest.mark.parametrize("name", ["config.json", "profiles.toml", "settings.yaml"])
@pytest.mark.parametrize("has_config", [True, False])
def test_doctor_warns_of_settings_that_are_never_read(name: str, has_config: bool) -> None:
    folder = paths.config_dir()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("{}")
    (folder / "notes.txt").write_text("my own")
    if has_config:
        (folder / "config.toml").write_text("")
    *_, check = files.models()
    assert check.verdict == "warn"
    assert check.text.startswith(f"`{folder / name}` is not read: settings are in `config.toml`")
