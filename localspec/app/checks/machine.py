"""Checks of the machine: llama.cpp's build, GPUs, drivers, threads and speed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shutil import which

from localspec.app.checks.build import USABLE_BY, card_vendors, rebuild_command, text_of
from localspec.app.checks.check import Check, Verdict
from localspec.errors import UserError
from localspec.hardware.bandwidth import equal_pairs, judge
from localspec.hardware.device_info import Machine
from localspec.hardware.devices import DetectedMachine
from localspec.hardware.load import busy_cores
from localspec.llama import rpc, tile_code
from localspec.llama.library import VERSION, added_backend

# Linux's name of an instruction set, and ggml's; those that matter most for speed
_INSTRUCTIONS = {
    "avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "avx512f": "AVX512", "avx512_vnni": "AVX512_VNNI",
    "asimddp": "DOTPROD", "i8mm": "MATMUL_INT8",
}  # fmt: skip
_BUSY = 0.5  # of all cores, taken by other programs


def machine_checks(sight: DetectedMachine, rated: Machine, environment: Mapping[str, str]) -> Iterator[Check]:
    """Look at everything about the machine; `rated` has its rates where they are known."""
    vendors = card_vendors(sight)
    yield _build(sight, vendors)
    yield _instructions(sight, vendors)
    yield _cards(sight, vendors, environment)
    if sight.found.devices:
        names = [f"{device.name} ({device.description})" for device in sight.found.devices]
        yield Check("devices", "pass", ", ".join(names))
    for endpoint in rpc.named():
        yield _server(endpoint)
    if sight.cards.cards:
        yield _order(sight, environment)
    cores = max(device.cores for device in rated.devices)
    yield _threads(environment, cores)
    yield _load(*busy_cores(), cores)
    yield from _rates(rated)
    yield from _sums(rated)


def _server(endpoint: rpc.Endpoint) -> Check:
    """Look at another machine's server; the devices above would lack it if it had not answered then."""
    try:
        trip_ms = rpc.probe_server(endpoint).round_trip_s * 1e3
    except UserError as error:
        return Check("server", "fail", error.message, error.hint)
    is_open = not endpoint.host.startswith("127.") and endpoint.host != "localhost"
    text = f"{endpoint} answers within {trip_ms:.1f} ms"
    if is_open:
        mend = f"ssh -N -L {endpoint.port}:127.0.0.1:{endpoint.port} USER@{endpoint.host}"
        return Check("server", "warn", f"{text}, without encryption or a password", mend)
    return Check("server", "pass", text)


def _build(sight: DetectedMachine, vendors: Sequence[str]) -> Check:
    found = sight.found
    if not found.devices:
        why = "; ".join(sight.machine.notes) or "it lists no device"
        return Check("llama.cpp", "fail", f"it does not work here: {why}", rebuild_command(vendors))
    backends = dict.fromkeys(device.backend for device in found.devices)
    text = f"llama-cpp-python {found.version} computes with {', '.join(backends)}"
    if (added := added_backend()) is not None:
        text += f"; `{added[1]}` is loaded as well"
        if all(device.kind == "cpu" for device in found.devices):
            mend = "localspec --list-devices   # again, once the GPU's driver is installed"
            return Check("llama.cpp", "warn", f"{text}, but finds no GPU", mend)
    if found.version != VERSION:
        text += f"; LocalSpec is tested with {VERSION}"
        return Check("llama.cpp", "warn", text, rebuild_command(vendors))
    return Check("llama.cpp", "pass", text)


def _instructions(sight: DetectedMachine, vendors: Sequence[str], root: Path = Path("/")) -> Check:
    """Compare what the CPU can do with what the build uses."""
    name = "processor"
    built = set(sight.found.features.get("CPU", ()))
    if not built:
        return Check(name, "pass", "the build's instruction sets are unknown")
    lines = re.findall(r"^(?:flags|Features).*?:(.*)", text_of(root / "proc/cpuinfo"), re.MULTILINE)
    flags = set(" ".join(lines).split())
    unused = [ours for theirs, ours in _INSTRUCTIONS.items() if theirs in flags and ours not in built]
    uses = [backend for backend in vendors if _used(sight, backend)]
    if unused:
        text = f"this build of llama.cpp leaves {', '.join(unused)} unused: models compute slower"
        return Check(name, "warn", text, rebuild_command(uses))
    if sys.platform.startswith("linux") and "OPENMP" not in built:
        text = "this build restarts its threads for every token (no OpenMP): models on the CPU are slower"
        return Check(name, "warn", text, rebuild_command(uses))
    if tile_code.is_broken():
        text = (
            "an old GCC broke llama.cpp's code for AMX, so AMX is not used: prompts are processed more slowly"
        )
        mend = f"CC=gcc-14 CXX=g++-14 {rebuild_command(uses)}   # or 11.5, 12.4 or 13.3"
        return Check(name, "warn", text, mend)
    return Check(name, "pass", "the build uses all instruction sets of the CPU")


def _used(sight: DetectedMachine, vendor: str) -> bool:
    return any(device.backend in USABLE_BY[vendor] for device in sight.found.devices)


def _cards(sight: DetectedMachine, vendors: Sequence[str], environment: Mapping[str, str]) -> Check:
    if not vendors:
        return Check("cards", "pass", "no NVIDIA, AMD or Intel GPU in this machine")
    vendor = vendors[0]  # beside another GPU, AMD's is the small one within the CPU
    if vendor == "NVIDIA" and not sight.cards.cards:
        return _driver(sight.cards.trouble)
    if not sight.found.devices:
        return Check("cards", "warn", f"the {vendor} GPU cannot be used until llama.cpp works")
    if _used(sight, vendor):
        return _foreign_code(sight) or Check("cards", "pass", f"the {vendor} GPU is used")
    if not set(USABLE_BY[vendor]).isdisjoint(sight.found.backends):
        return _hidden(vendor, environment)
    text = f"this build of llama.cpp cannot use the {vendor} GPU: models run on the CPU; rebuild it "
    text += "for the GPU, or load a GPU backend with it (README, Install)"
    return Check("cards", "fail" if vendor == "NVIDIA" else "warn", text, rebuild_command((vendor,)))


def _foreign_code(sight: DetectedMachine) -> Check | None:
    """Find a GPU whose generation a build of CUDA holds no code for: it was made for another machine."""
    archs = next((each for each in sight.found.features.get("CUDA", ()) if each.startswith("ARCHS")), "")
    built = [int(number) for number in re.findall(r"\d+", archs)]  # 860 is 8.6, whose code 8.9 runs, too
    for card in sight.cards.cards if built else ():
        own = card.capability
        if own and not any(each <= own and each // 100 == own // 100 for each in built):
            text = f"this build of llama.cpp has no code for the {card.device.name or 'GPU'}, which has "
            text += f"compute capability {own / 100:.1f} ({archs})"
            verdict: Verdict = "fail" if own < min(built) else "warn"  # drivers may translate older code
            return Check("cards", verdict, text, rebuild_command(("NVIDIA",)))
    return None


def _driver(trouble: str) -> Check:
    text = f"there is an NVIDIA GPU, but {trouble or 'its driver lists none'}"
    if "mismatch" in trouble.lower():
        return Check("driver", "fail", f"{text}: the driver was updated", "sudo reboot")
    if which("nvidia-smi") is None:
        return Check("driver", "fail", text, "install your system's NVIDIA driver")
    return Check("driver", "fail", text, "nvidia-smi   # says why; then install your system's NVIDIA driver")


def _hidden(vendor: str, environment: Mapping[str, str]) -> Check:
    text = f"this build of llama.cpp is made for the {vendor} GPU, but finds none"
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        if variable in environment:
            text += f": {variable} is `{environment[variable]}`"
            return Check("cards", "fail", text, f"unset {variable}")
    text += ": its driver may be older than the build"
    return Check("cards", "fail", text, rebuild_command((vendor,)))


def _order(sight: DetectedMachine, environment: Mapping[str, str]) -> Check:
    order = environment.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if order != "PCI_BUS_ID" and len(sight.cards.cards) > 1:
        text = f"CUDA_DEVICE_ORDER is {order}: GPU numbers differ from nvidia-smi"
        return Check("order of cards", "warn", text, "export CUDA_DEVICE_ORDER=PCI_BUS_ID")
    if shown := environment.get("CUDA_VISIBLE_DEVICES"):
        return Check("order of cards", "pass", f"CUDA_VISIBLE_DEVICES={shown} selects and numbers the GPUs")
    return Check("order of cards", "pass", "GPU numbers are those of nvidia-smi")


def _threads(environment: Mapping[str, str], cores: int) -> Check:
    for variable in ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT"):
        wanted = environment.get(variable, "")
        if wanted.isdigit() and int(wanted) > cores:
            text = f"{variable} is {wanted} on {cores} physical cores: threads share cores, which is slow"
            return Check("threads", "warn", text, f"unset {variable}")
        if variable == "OMP_THREAD_LIMIT" and wanted.isdigit() and int(wanted) < cores:
            text = f"{variable} is {wanted}: models cannot use all {cores} cores"
            return Check("threads", "warn", text, f"unset {variable}")
    if environment.get("OMP_WAIT_POLICY", "").lower() == "active":
        text = "OMP_WAIT_POLICY is active: two models, or another program, slow each other down many times"
        return Check("threads", "warn", text, "unset OMP_WAIT_POLICY")
    return Check("threads", "pass", f"models use up to {cores} threads, one for each physical core")


def _load(busy: float, greediest: str, cores: int) -> Check:
    if busy > _BUSY * cores:
        text = f"other programs use {busy:.1f} of {cores} cores, {greediest} the most: models have to wait"
        return Check("other programs", "warn", text, "top   # shows them; end what you do not need")
    return Check("other programs", "pass", f"the CPU is free: other programs use {busy:.1f} of {cores} cores")


def _rates(rated: Machine) -> Iterator[Check]:
    notes = judge(rated)
    for note in notes:
        yield Check("speed", "warn", note, "localspec devices --measure   # shows whether it got better")
    if not notes:
        text = "as fast as they should be" if rated.rates else "not measured yet; `localspec devices` does it"
        yield Check("speed", "pass", f"memory and links: {text}")


def _sums(rated: Machine) -> Iterator[Check]:
    """Yield how fast GPUs of one model add up partial results, where there are two."""
    if not equal_pairs(rated.devices):
        return
    found = [f"{' and '.join(cost.devices)} in {cost.delay_s * 1e6:.0f} µs" for cost in rated.sums or ()]
    text = ", ".join(found) or "not measured; `localspec devices --measure` does it"
    yield Check("sums", "pass", f"partial results of -sm tensor: {text}")
