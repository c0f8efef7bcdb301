"""The command that builds llama.cpp for this machine."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from localspec.hardware.devices import DetectedMachine
from localspec.llama.library import VERSION

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
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}  # the likeliest to be a GPU first
USABLE_BY = {"NVIDIA": ("CUDA", "Vulkan"), "AMD": ("ROCm", "Vulkan"), "Intel": ("SYCL", "Vulkan")}
_INTEL_INTEGRATED = "0000:00:02.0"  # always there; it reads the CPU's own memory, and no faster


def card_vendors(sight: DetectedMachine, root: Path = Path("/")) -> tuple[str, ...]:
    """Return the vendors of this machine's GPUs, usable or not."""
    files = (root / "sys/class/drm").glob("card*/device/vendor")
    cards = (path for path in files if path.parent.resolve().name != _INTEL_INTEGRATED)
    found = {_VENDORS.get(text_of(path).strip()) for path in cards}
    driver = (root / "proc/driver/nvidia").exists() or any((root / "dev").glob("nvidia[0-9]*"))
    if sight.cards.cards or driver:
        found.add("NVIDIA")
    return tuple(vendor for vendor in _VENDORS.values() if vendor in found)


def rebuild_command(vendors: Sequence[str]) -> str:
    """Return the command that builds the pinned llama.cpp for this very machine, as README has it."""
    own, general = USABLE_BY[vendors[0]] if vendors else ("CPU", "CPU")
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


def text_of(path: Path) -> str:
    """Read a file of the system; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
