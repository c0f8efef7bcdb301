"""Detects code for the matrix tiles of Intel's AMX that the compiler of llama.cpp broke.

GCC before 11.5, 12.4 and 13.3 does not see that loading a configuration of tiles reads it, and moves the
writes after the load (GCC's bug 114098). The CPU then rejects the configuration, and the process dies.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_COMPILER = re.compile(rb"GCC: \([^)]*\) (\d+)\.(\d+)")
_FUNCTION = b"ggml_backend_amx_mul_mat"
_MENDED = {11: 5, 12: 4, 13: 3}  # the first sound release of each series


@cache
def is_broken() -> bool:
    """Return whether weights laid out for matrix tiles end the process here."""
    package = find_spec("llama_cpp")
    if package is None or package.origin is None or not has_tiles():
        return False
    return any(map(holds_broken_tiles, (Path(package.origin).parent / "lib").glob("*.so")))


def has_tiles(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether the CPU has AMX; outside Linux llama.cpp does not use it."""
    try:
        return b" amx_int8" in cpuinfo.read_bytes()
    except OSError:
        return False


def holds_broken_tiles(library: Path) -> bool:
    """Return whether a library has code for matrix tiles from a compiler that spoils it."""
    code = library.read_bytes()
    if _FUNCTION not in code:
        return False
    compilers = ((int(major), int(minor)) for major, minor in _COMPILER.findall(code))
    return any(minor < _MENDED.get(major, 0 if major > 13 else 99) for major, minor in compilers)
