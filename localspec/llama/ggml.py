"""ggml's own functions, which llama-cpp-python does not declare: found by name, typed by the caller."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from localspec.errors import UserError
from localspec.llama.library import Native, native


def function(name: str, result: Native, *arguments: Native) -> Native:
    """Return a function of ggml with its types declared."""
    api = native()
    # POSIX looks a symbol up through dependencies, Windows only in the very library
    for library in (api._lib, *_ggml_libraries(Path(api._base_path))):  # noqa: SLF001
        if hasattr(library, name):
            found = library[name]  # a fresh object: declaring its types changes nobody else's
            found.restype, found.argtypes = result, list(arguments)
            return found
    raise UserError(f"this build of llama.cpp lacks {name}", "install llama-cpp-python as LocalSpec pins it")


def device_handles() -> list[int]:
    """Return ggml's handle of every device, in its order."""
    count = function("ggml_backend_dev_count", ctypes.c_size_t)()
    get = function("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    return [get(index) for index in range(count)]


def device_name(handle: int) -> str:
    """Return the name that flags take."""
    return text(function("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)(handle))


def device_backend(handle: int) -> str:
    """Return the name of the backend that a device belongs to."""
    return backend_name(function("ggml_backend_dev_backend_reg", ctypes.c_void_p, ctypes.c_void_p)(handle))


def backend_name(registry: int) -> str:
    """Return the name of a backend: "CPU", "CUDA", "Vulkan"."""
    return text(function("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)(registry))


def text(raw: bytes | None) -> str:
    """Return C's text as Python's."""
    return (raw or b"").decode("utf-8", "replace")


def _ggml_libraries(folder: Path) -> list[ctypes.CDLL]:
    if os.name != "nt":
        return []
    paths = (folder / f"{name}.dll" for name in ("ggml", "ggml-base", "ggml-cpu"))
    return [ctypes.CDLL(str(path)) for path in paths if path.exists()]
