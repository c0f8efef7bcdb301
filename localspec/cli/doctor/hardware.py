"""What `localspec doctor` looks for in the machine: llama.cpp's build, cards, drivers, threads and links."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from localspec.llama.library import VERSION

if TYPE_CHECKING:
    from localspec.hardware.device_info import Machine
    from localspec.hardware.devices import Sight

Verdict = Literal["pass", "warn", "fail"]

# Linux's name of an instruction set, and ggml's; those that matter most for speed
_INSTRUCTIONS = {
    "avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "avx512f": "AVX512", "avx512_vnni": "AVX512_VNNI",
    "asimddp": "DOTPROD", "i8mm": "MATMUL_INT8",
}  # fmt: skip
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_USABLE_BY = {"NVIDIA": {"CUDA", "Vulkan"}, "AMD": {"ROCm", "Vulkan"}}
_BUILD_FLAGS = {"NVIDIA": "-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native", "AMD": "-DGGML_VULKAN=ON"}
_WATCH_S = 0.3
_BUSY = 0.5  # of all cores, taken by other programs


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: its verdict, what was seen, and the command that mends it."""

    name: str
    verdict: Verdict
    text: str
    mend: str = ""


def machine_checks(sight: Sight, rated: Machine, environment: Mapping[str, str]) -> Iterator[Check]:
    """Look at everything about the machine; `rated` has its rates where they are known."""
    vendors = card_vendors(sight)
    yield _build(sight, vendors)
    yield _instructions(sight, vendors)
    yield from _cards(sight, vendors, environment)
    yield _order(sight, environment)
    cores = max(device.cores for device in rated.devices)
    yield _threads(environment, cores)
    yield _load(*busy_cores(), cores)
    yield from _rates(rated)


def card_vendors(sight: Sight, root: Path = Path("/")) -> tuple[str, ...]:
    """Return who made the cards of this machine, whether or not anything can use them."""
    found = {"NVIDIA"} if sight.cards.cards or (root / "proc/driver/nvidia").exists() else set()
    if any((root / "dev").glob("nvidia[0-9]*")):
        found.add("NVIDIA")
    for path in (root / "sys/class/drm").glob("card*/device/vendor"):
        vendor = _VENDORS.get(_text(path).strip())
        found |= {vendor} if vendor else set()
    return tuple(sorted(found, reverse=True))


def rebuild_command(vendors: Sequence[str]) -> str:
    """Return the command that builds the pinned llama.cpp for this very machine."""
    flags = " ".join([*(_BUILD_FLAGS[vendor] for vendor in vendors[:1]), "-DGGML_NATIVE=ON"])
    python = shlex.quote(sys.executable)
    pip = f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
    again = "--force-reinstall --no-deps --no-cache-dir"
    if not find_spec("pip"):
        again = "--reinstall-package llama-cpp-python --no-deps --no-cache"
    variable = f'set "CMAKE_ARGS={flags}" &&' if os.name == "nt" else f'CMAKE_ARGS="{flags}"'
    return f"{variable} {pip} {again} --no-binary llama-cpp-python llama-cpp-python=={VERSION}"


def _build(sight: Sight, vendors: Sequence[str]) -> Check:
    found = sight.found
    if not found.devices:
        why = "; ".join(sight.machine.notes) or "it lists no device"
        return Check("llama.cpp", "fail", f"it does not work here: {why}", rebuild_command(vendors))
    backends = dict.fromkeys(device.backend for device in found.devices)
    text = f"llama-cpp-python {found.version} computes with {', '.join(backends)}"
    if found.version != VERSION:
        return Check(
            "llama.cpp", "warn", f"{text}; LocalSpec is tested with {VERSION}", rebuild_command(vendors)
        )
    return Check("llama.cpp", "pass", text)


def _instructions(sight: Sight, vendors: Sequence[str], root: Path = Path("/")) -> Check:
    """Compare what the processor can do with what the build uses."""
    name, built = "processor", set(sight.found.features.get("CPU", ()))
    if not built:
        return Check(name, "pass", "what the build uses is not known")
    lines = _text(root / "proc/cpuinfo").splitlines()
    flags = {
        flag
        for line in lines
        if line.startswith(("flags", "Features"))
        for flag in line.split(":")[1].split()
    }
    unused = [ours for theirs, ours in _INSTRUCTIONS.items() if theirs in flags and ours not in built]
    uses = [backend for backend in vendors if _used(sight, backend)]
    if unused:
        text = f"this build of llama.cpp leaves {', '.join(unused)} unused: models compute slower"
        return Check(name, "warn", text, rebuild_command(uses))
    if sys.platform.startswith("linux") and "OPENMP" not in built:
        text = "this build starts its threads anew for every token (no OpenMP): a model on the CPU is slower"
        return Check(name, "warn", text, rebuild_command(uses))
    return Check(name, "pass", "the build uses what the processor can do")


def _used(sight: Sight, vendor: str) -> bool:
    return bool(_USABLE_BY[vendor] & {device.backend for device in sight.found.devices})


def _cards(sight: Sight, vendors: Sequence[str], environment: Mapping[str, str]) -> Iterator[Check]:
    if not vendors:
        yield Check("cards", "pass", "no NVIDIA or AMD card in this machine")
        return
    built = {*sight.found.backends}
    # beside another card, AMD's is the small one within the processor
    for vendor in vendors[:1]:
        if vendor == "NVIDIA" and not sight.cards.cards:
            yield _driver(sight.cards.trouble)
        elif not sight.found.devices:
            yield Check("cards", "warn", f"the {vendor} card is of no use until llama.cpp works")
        elif not _used(sight, vendor) and not built & _USABLE_BY[vendor]:
            verdict: Verdict = "fail" if vendor == "NVIDIA" else "warn"
            text = f"this build of llama.cpp cannot use the {vendor} card: models compute on the processor"
            yield Check("cards", verdict, text, rebuild_command((vendor,)))
        elif not _used(sight, vendor):
            yield _hidden(vendor, environment)
        else:
            yield Check("cards", "pass", f"the {vendor} card is used")


def _driver(trouble: str) -> Check:
    text = f"there is an NVIDIA card, but {trouble or 'its driver lists none'}"
    if "mismatch" in trouble.lower():
        return Check("driver", "fail", f"{text}: the driver was updated", "sudo reboot")
    return Check("driver", "fail", text, "nvidia-smi   # says why; then install your system's NVIDIA driver")


def _hidden(vendor: str, environment: Mapping[str, str]) -> Check:
    text = f"this build of llama.cpp is made for the {vendor} card, but finds none"
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        if variable in environment:
            shown = environment[variable]
            return Check("cards", "fail", f"{text}: {variable} is `{shown}`", f"unset {variable}")
    return Check(
        "cards", "fail", f"{text}: its driver may be older than the build", rebuild_command((vendor,))
    )


def _order(sight: Sight, environment: Mapping[str, str]) -> Check:
    order = environment.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if order != "PCI_BUS_ID" and len(sight.cards.cards) > 1:
        text = f"CUDA_DEVICE_ORDER is {order}: cards have other numbers than in nvidia-smi"
        return Check("order of cards", "warn", text, "export CUDA_DEVICE_ORDER=PCI_BUS_ID")
    if shown := environment.get("CUDA_VISIBLE_DEVICES"):
        return Check("order of cards", "pass", f"CUDA_VISIBLE_DEVICES={shown} chooses and numbers the cards")
    return Check("order of cards", "pass", "cards have the numbers of nvidia-smi")


def _threads(environment: Mapping[str, str], cores: int) -> Check:
    for variable in ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT"):
        wanted = environment.get(variable, "")
        if wanted.isdigit() and int(wanted) > cores:
            text = f"{variable} is {wanted} on {cores} physical cores: threads take turns, which is slow"
            return Check("threads", "warn", text, f"unset {variable}")
        if variable == "OMP_THREAD_LIMIT" and wanted.isdigit() and int(wanted) < cores:
            text = f"{variable} is {wanted}: models cannot use all {cores} cores"
            return Check("threads", "warn", text, f"unset {variable}")
    if environment.get("OMP_WAIT_POLICY", "").lower() == "active":
        text = "OMP_WAIT_POLICY is active: two models, or another program, slow each other down many times"
        return Check("threads", "warn", text, "unset OMP_WAIT_POLICY")
    return Check("threads", "pass", f"models use up to {cores} threads, one for each physical core")


def busy_cores() -> tuple[float, str]:
    """Return how many cores other programs take right now, and the name of the greediest."""
    import psutil

    others = [process for process in psutil.process_iter() if process.pid != psutil.Process().pid]
    before = {process.pid: _cpu_s(process) for process in others}
    time.sleep(_WATCH_S)
    taken = {process: _cpu_s(process) - before[process.pid] for process in others}
    if not taken:
        return 0.0, ""
    most = max(taken, key=lambda process: taken[process])
    try:
        name = most.name()
    except psutil.Error:
        name = "a program"
    return sum(max(0.0, seconds) for seconds in taken.values()) / _WATCH_S, f"{name} (process {most.pid})"


def _cpu_s(process: object) -> float:
    import psutil

    try:
        times = process.cpu_times()  # type: ignore[attr-defined]
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _load(busy: float, greediest: str, cores: int) -> Check:
    if busy > _BUSY * cores:
        text = f"other programs take {busy:.1f} of {cores} cores, {greediest} the most: models have to wait"
        return Check("other programs", "warn", text, "top   # shows them; end what you do not need")
    return Check("other programs", "pass", f"the processor is free: others take {busy:.1f} of {cores} cores")


def _rates(rated: Machine) -> Iterator[Check]:
    from localspec.hardware.bandwidth import judge

    notes = judge(rated)
    for note in notes:
        yield Check("speed", "warn", note, "localspec devices --measure   # shows whether it got better")
    if not notes:
        known = (
            "as fast as they should be" if rated.rates else "not measured yet; `localspec devices` does it"
        )
        yield Check("speed", "pass", f"memory and links: {known}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
