"""`localspec doctor`: look at everything that commonly goes wrong, and say what mends it."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shutil import disk_usage, which
from typing import Literal

from localspec import units
from localspec.app.opening import with_moved
from localspec.child_process import values_of
from localspec.cli.shared.arguments import Parser, verb_parser
from localspec.cli.shared.console import FAILURE, SUCCESS, Styled, colours_unwanted, is_terminal, print_result
from localspec.errors import LocalSpecError, UserError
from localspec.gguf import check_model_file
from localspec.hardware import devices, machine
from localspec.hardware.bandwidth import judge
from localspec.hardware.device_info import Machine
from localspec.hardware.devices import Sight
from localspec.hardware.load import busy_cores
from localspec.llama import rpc, tile_code
from localspec.llama.library import VERSION, added_backend
from localspec.llama.template.template_file import usable_template
from localspec.safe_text import safe_line
from localspec.storage import paths
from localspec.storage.config import Config, check_models, read_config

Verdict = Literal["pass", "warn", "fail"]

_WORDS = {"pass": "ok  ", "warn": "warn", "fail": "FAIL"}
_STYLES = {"pass": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[31m"}
_RESET = "\x1b[0m"
# Linux's name of an instruction set, and ggml's; those that matter most for speed
_INSTRUCTIONS = {
    "avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "avx512f": "AVX512", "avx512_vnni": "AVX512_VNNI",
    "asimddp": "DOTPROD", "i8mm": "MATMUL_INT8",
}  # fmt: skip
COMMON_OPTIONS = "-DLLAVA_BUILD=OFF -DLLAMA_OPENSSL=OFF -DGGML_RPC=ON -DGGML_RPC_RDMA=OFF"
"""Of every build of llama.cpp: CMake leaves out what LocalSpec does not use."""
BACKENDS = {
    "CPU": ("", "c++", "a C++ compiler"),
    "CUDA": ("-DGGML_CUDA=ON", "nvcc", "NVIDIA's CUDA toolkit"),
    "ROCm": ("-DGGML_HIP=ON", "hipconfig", "AMD's ROCm"),
    "SYCL": ("-DGGML_SYCL=ON -DCMAKE_C_COMPILER=icx -DCMAKE_CXX_COMPILER=icpx", "icpx", "Intel's oneAPI"),
    "Vulkan": ("-DGGML_VULKAN=ON", "glslc", "Vulkan's headers and glslc"),
}
"""By ggml's name of a backend: CMake's options that build it, the tool that must be there, who brings it."""
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}  # the likeliest to be a card first
_USABLE_BY = {"NVIDIA": ("CUDA", "Vulkan"), "AMD": ("ROCm", "Vulkan"), "Intel": ("SYCL", "Vulkan")}
_INTEL_INTEGRATED = "0000:00:02.0"  # always there; it reads the processor's own memory, and no faster
_BUSY = 0.5  # of all cores, taken by other programs
_SCARCE, _TOO_LITTLE = 2**30, 2**26
_PRIVATE = 0o077


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: its verdict, what was seen, and the command that mends it."""

    name: str
    verdict: Verdict
    text: str
    mend: str = ""


def parser() -> Parser:
    """Return the parser of `localspec doctor`."""
    return verb_parser(
        "doctor",
        "Check for common problems and print the command that fixes each. The exit code is 1 if a check "
        "fails; warnings do not change it.",
    ).with_output()


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    args = parser().read(argv)
    checks = tuple(examine())
    wrong = any(check.verdict == "fail" for check in checks)
    lines = page(checks, colours=is_terminal(sys.stdout) and not colours_unwanted())
    print_result({"ok": not wrong, "checks": list(map(asdict, checks))}, lines, as_json=args.json)
    return FAILURE if wrong else SUCCESS


def examine() -> Iterator[Check]:
    """Look at the machine, then at files."""
    try:
        read_config(paths.config_dir() / "config.toml")
        sight = devices.look()
    except UserError as error:
        checks = tuple(file_checks())
        if all(error.message != check.text for check in checks):
            yield Check("llama.cpp", "fail", error.message, error.hint)
        yield from checks
        return
    yield from machine_checks(sight, machine.recall(sight) or sight.machine, os.environ)
    if sight.found.devices:
        yield _engine()
    yield from file_checks()


def _engine() -> Check:
    """Look whether all that models are opened with can be imported, in a process as they have one."""
    try:
        list(values_of(_imported, devices.PATIENCE_S))
    except LocalSpecError as error:
        mend = f"{shlex.quote(sys.executable)} -m pip check   # or unset PYTHONPATH, which may hide a package"
        return Check("engine", "fail", f"models cannot be opened: {error}", mend)
    return Check("engine", "pass", "all that opens models can be imported")


def _imported() -> Iterator[str]:
    """Import what a process that opens models imports; yields the names."""
    for name in ("localspec.inference.runtime", "localspec.llama.grammar"):
        import_module(name)
        yield name


def page(checks: Sequence[Check], *, colours: bool) -> Iterator[str]:
    """Yield the lines of the report: a line for each check, below it the command that mends it."""
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        word, what = _WORDS[check.verdict], f"  {check.name:<{width}}  {check.text}"
        style = _STYLES[check.verdict]
        yield Styled(f"{style}{word}{_RESET}{safe_line(what)}") if colours else f"{word}{what}"
        if check.mend:
            yield f"{'':>{width + 8}}mend: {check.mend}"
    tally = Counter(check.verdict for check in checks)
    wrong = (("failure", tally["fail"]), ("warning", tally["warn"]))
    parts = [units.counted(number, what) for what, number in wrong if number]
    yield f"{' and '.join(parts)}." if parts else "All is well."


def machine_checks(sight: Sight, rated: Machine, environment: Mapping[str, str]) -> Iterator[Check]:
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


def _server(endpoint: rpc.Endpoint) -> Check:
    """Look at another machine's server; the devices above would lack it if it had not answered then."""
    try:
        trip_ms = rpc.peek(endpoint).round_trip_s * 1e3
    except UserError as error:
        return Check("server", "fail", error.message, error.hint)
    is_open = not endpoint.host.startswith("127.") and endpoint.host != "localhost"
    text = f"{endpoint} answers within {trip_ms:.1f} ms"
    if is_open:
        mend = f"ssh -N -L {endpoint.port}:127.0.0.1:{endpoint.port} USER@{endpoint.host}"
        return Check("server", "warn", f"{text}, without encryption or a password", mend)
    return Check("server", "pass", text)


def card_vendors(sight: Sight, root: Path = Path("/")) -> tuple[str, ...]:
    """Return who made the cards of this machine, whether or not anything can use them."""
    files = (root / "sys/class/drm").glob("card*/device/vendor")
    cards = (path for path in files if path.parent.resolve().name != _INTEL_INTEGRATED)
    found = {_VENDORS.get(_text(path).strip()) for path in cards}
    driver = (root / "proc/driver/nvidia").exists() or any((root / "dev").glob("nvidia[0-9]*"))
    if sight.cards.cards or driver:
        found.add("NVIDIA")
    return tuple(vendor for vendor in _VENDORS.values() if vendor in found)


def rebuild_command(vendors: Sequence[str]) -> str:
    """Return the command that builds the pinned llama.cpp for this very machine, as README has it."""
    own, general = _USABLE_BY[vendors[0]] if vendors else ("CPU", "CPU")
    is_own = own == "CUDA" or which(BACKENDS[own][1])  # Vulkan needs far less to be installed than the others
    options, tool, source = BACKENDS[own if is_own else general]
    flags = f"{COMMON_OPTIONS} {options}".rstrip()
    comment = "& rem" if os.name == "nt" else "  #"
    first = "" if which(tool) else f" {comment} install {source} before (README, Install)"
    python = shlex.quote(sys.executable)
    if find_spec("pip"):
        install = f"{python} -m pip install --force-reinstall --no-deps --no-cache-dir"
    else:
        again = "--reinstall-package llama-cpp-python --no-deps --no-cache"
        install = f"uv pip install --python {python} {again}"
    variable = f'set "CMAKE_ARGS={flags}" &&' if os.name == "nt" else f'CMAKE_ARGS="{flags}"'
    return f"{variable} {install} --no-binary llama-cpp-python llama-cpp-python=={VERSION}{first}"


def _build(sight: Sight, vendors: Sequence[str]) -> Check:
    found = sight.found
    if not found.devices:
        why = "; ".join(sight.machine.notes) or "it lists no device"
        return Check("llama.cpp", "fail", f"it does not work here: {why}", rebuild_command(vendors))
    backends = dict.fromkeys(device.backend for device in found.devices)
    text = f"llama-cpp-python {found.version} computes with {', '.join(backends)}"
    if (added := added_backend()) is not None:
        text += f"; `{added[1]}` is loaded beside it"
        if all(device.kind == "cpu" for device in found.devices):
            mend = "localspec --list-devices   # again, once the driver of the card is installed"
            return Check("llama.cpp", "warn", f"{text}, but finds no card", mend)
    if found.version != VERSION:
        text += f"; LocalSpec is tested with {VERSION}"
        return Check("llama.cpp", "warn", text, rebuild_command(vendors))
    return Check("llama.cpp", "pass", text)


def _instructions(sight: Sight, vendors: Sequence[str], root: Path = Path("/")) -> Check:
    """Compare what the processor can do with what the build uses."""
    name, built = "processor", set(sight.found.features.get("CPU", ()))
    if not built:
        return Check(name, "pass", "what the build uses is not known")
    lines = re.findall(r"^(?:flags|Features).*?:(.*)", _text(root / "proc/cpuinfo"), re.MULTILINE)
    flags = set(" ".join(lines).split())
    unused = [ours for theirs, ours in _INSTRUCTIONS.items() if theirs in flags and ours not in built]
    uses = [backend for backend in vendors if _used(sight, backend)]
    if unused:
        text = f"this build of llama.cpp leaves {', '.join(unused)} unused: models compute slower"
        return Check(name, "warn", text, rebuild_command(uses))
    if sys.platform.startswith("linux") and "OPENMP" not in built:
        text = "this build starts its threads anew for every token (no OpenMP): a model on the CPU is slower"
        return Check(name, "warn", text, rebuild_command(uses))
    if tile_code.is_broken():
        text = "an old GCC spoilt llama.cpp's code for AMX, which is left unused: prompts are read slower"
        mend = f"CC=gcc-14 CXX=g++-14 {rebuild_command(uses)}   # or 11.5, 12.4 or 13.3"
        return Check(name, "warn", text, mend)
    return Check(name, "pass", "the build uses what the processor can do")


def _used(sight: Sight, vendor: str) -> bool:
    return any(device.backend in _USABLE_BY[vendor] for device in sight.found.devices)


def _cards(sight: Sight, vendors: Sequence[str], environment: Mapping[str, str]) -> Check:
    if not vendors:
        return Check("cards", "pass", "no NVIDIA, AMD or Intel card in this machine")
    vendor = vendors[0]  # beside another card, AMD's is the small one within the processor
    if vendor == "NVIDIA" and not sight.cards.cards:
        return _driver(sight.cards.trouble)
    if not sight.found.devices:
        return Check("cards", "warn", f"the {vendor} card is of no use until llama.cpp works")
    if _used(sight, vendor):
        return _foreign_code(sight) or Check("cards", "pass", f"the {vendor} card is used")
    if not set(_USABLE_BY[vendor]).isdisjoint(sight.found.backends):
        return _hidden(vendor, environment)
    text = f"this build of llama.cpp cannot use the {vendor} card: models compute on the processor; build it "
    text += "anew, or load a card's backend beside it (README, Install)"
    return Check("cards", "fail" if vendor == "NVIDIA" else "warn", text, rebuild_command((vendor,)))


def _foreign_code(sight: Sight) -> Check | None:
    """Find a card whose generation a build of CUDA holds no code for: it was made for another machine."""
    archs = next((each for each in sight.found.features.get("CUDA", ()) if each.startswith("ARCHS")), "")
    built = [int(number) for number in re.findall(r"\d+", archs)]  # 860 is 8.6, whose code 8.9 runs, too
    for card in sight.cards.cards if built else ():
        own = card.capability
        if own and not any(each <= own and each // 100 == own // 100 for each in built):
            text = f"this build of llama.cpp holds no code for the {card.device.name or 'card'}, which has "
            text += f"compute capability {own / 100:.1f} ({archs})"
            verdict: Verdict = "fail" if own < min(built) else "warn"  # drivers may translate older code
            return Check("cards", verdict, text, rebuild_command(("NVIDIA",)))
    return None


def _driver(trouble: str) -> Check:
    text = f"there is an NVIDIA card, but {trouble or 'its driver lists none'}"
    if "mismatch" in trouble.lower():
        return Check("driver", "fail", f"{text}: the driver was updated", "sudo reboot")
    if which("nvidia-smi") is None:
        return Check("driver", "fail", text, "install your system's NVIDIA driver")
    return Check("driver", "fail", text, "nvidia-smi   # says why; then install your system's NVIDIA driver")


def _hidden(vendor: str, environment: Mapping[str, str]) -> Check:
    text = f"this build of llama.cpp is made for the {vendor} card, but finds none"
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        if variable in environment:
            text += f": {variable} is `{environment[variable]}`"
            return Check("cards", "fail", text, f"unset {variable}")
    text += ": its driver may be older than the build"
    return Check("cards", "fail", text, rebuild_command((vendor,)))


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


def _load(busy: float, greediest: str, cores: int) -> Check:
    if busy > _BUSY * cores:
        text = f"other programs take {busy:.1f} of {cores} cores, {greediest} the most: models have to wait"
        return Check("other programs", "warn", text, "top   # shows them; end what you do not need")
    return Check("other programs", "pass", f"the processor is free: others take {busy:.1f} of {cores} cores")


def _rates(rated: Machine) -> Iterator[Check]:
    notes = judge(rated)
    for note in notes:
        yield Check("speed", "warn", note, "localspec devices --measure   # shows whether it got better")
    if not notes:
        text = "as fast as they should be" if rated.rates else "not measured yet; `localspec devices` does it"
        yield Check("speed", "pass", f"memory and links: {text}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def file_checks() -> Iterator[Check]:
    """Look at everything about files."""
    yield _kept("config folder", paths.config_dir, folder)
    yield _kept("data folder", paths.data_dir, folder)
    yield _kept("state folder", paths.state_dir, folder)
    yield _kept("chats", paths.chats_file, chats)
    yield from models()


def _kept(name: str, find: Callable[[], Path], look: Callable[[str, Path], Check]) -> Check:
    try:
        return look(name, find())
    except UserError as error:
        return Check(name, "fail", error.message, error.hint)


def _missing_folder(name: str, path: Path) -> Check:
    """Look whether a folder that is not there can be made."""
    above = next(each for each in path.parents if each.exists())
    if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
        return Check(name, "pass", f"`{path}` is made when there is something to keep")
    mend = f"export LOCALSPEC_{name.partition(' ')[0].upper()}_DIR=...   # a folder that you can write to"
    return Check(name, "fail", f"`{path}` cannot be made: `{above}` cannot be written", mend)


def folder(name: str, path: Path) -> Check:
    """Look whether a folder of ours can be written, has room, and is private."""
    if not path.exists():
        return _missing_folder(name, path)
    quoted = shlex.quote(str(path))
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return Check(name, "fail", f"`{path}` cannot be written", f"sudo chown -R $(id -u) {quoted}")
    free = disk_usage(path).free
    room = f"{units.memory(free, 0)} free on its disk"
    if free < _TOO_LITTLE:
        text = f"`{path}`: {room}: chats cannot be kept"
        return Check(name, "fail", text, f"df -h {quoted}   # free some space")
    if free < _SCARCE:
        return Check(name, "warn", f"`{path}`: {room}", f"df -h {quoted}   # free some space")
    if os.name == "posix" and path.stat().st_mode & _PRIVATE:
        return Check(name, "warn", f"`{path}` can be looked into by others", f"chmod 700 {quoted}")
    return Check(name, "pass", f"`{path}`, {room}")


def chats(name: str, path: Path) -> Check:
    """Look whether the chats can be read, and whether their file is whole."""
    quoted = shlex.quote(str(path))
    if not path.exists() and (os.access(path.parent, os.X_OK) or not path.parent.exists()):
        return Check(name, "pass", "none kept yet")
    mend = f"sqlite3 {quoted} .recover | sqlite3 {quoted}.new   # then put the new file in its place"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        return Check(name, "fail", f"`{path}` cannot be read: {error}", f"ls -l {quoted}")
    except sqlite3.DatabaseError as error:
        return Check(name, "fail", f"`{path}` is damaged: {error}", mend)
    if verdict != "ok":
        return Check(name, "fail", f"`{path}` is damaged: {verdict}", mend)
    return Check(name, "pass", f"`{path}` is whole, {path.stat().st_size / 2**20:.1f} MiB")


def _nearly(path: Path) -> Path | None:
    """Return the file beside a missing one whose name is nearly its own, if there is one."""
    with suppress(OSError):
        files = (each for each in path.parent.iterdir() if each.is_file())
        names = {each.name.lower(): each for each in files if each.suffix not in (".yaml", ".yml", ".json")}
        near = get_close_matches(path.name, names, n=1, cutoff=0.8)
        return names[near[0]] if near else None
    return None


def models() -> Iterator[Check]:
    """Look at the configured models, if the configuration names any."""
    try:
        path = paths.config_dir() / "config.toml"
        config = with_moved(read_config(path))
        check_models(path, config)
    except UserError as error:
        yield Check("configuration", "fail", error.message, error.hint)
        return
    if path.exists():
        yield Check("configuration", "pass", f"`{path}` is in order")
    elif (other := _nearly(path)) is not None:
        mend = f"mv {shlex.quote(str(other))} {shlex.quote(str(path))}"
        yield Check("configuration", "warn", f"`{other}` is not read: its name is not `{path.name}`", mend)
    else:
        yield Check("configuration", "pass", "none; nothing needs one")
    for name, file in (("target model", config.target), ("draft model", config.draft)):
        if file is not None:
            yield _model(name, file)
    for template in dict.fromkeys(file for _, file in config.templates if file is not None):
        yield _template(template, config)


def _template(path: Path, config: Config) -> Check:
    try:
        usable_template(path)
    except UserError as error:
        return Check("chat template", "fail", error.message, error.hint)
    text = f"`{path}` is in order"
    if config.target is not None and config.template_of(config.target) == path:
        text += f", and is used instead of that of `{config.target.name}`"
    return Check("chat template", "pass", text)


def _model(name: str, path: Path) -> Check:
    try:
        header = check_model_file(path)
    except UserError as error:
        return Check(name, "fail", error.message, f"{error.hint}, or: localspec setup")
    return Check(name, "pass", f"`{path.name}` ({header.architecture}) is in order")
