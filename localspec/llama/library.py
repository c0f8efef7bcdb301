"""llama.cpp itself: loaded on first use, in one place: environment, log, version check, added backend."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from localspec.errors import LibraryError, UserError
from localspec.llama import rpc
from localspec.storage.config import read_config
from localspec.storage.paths import config_dir, expanded

VERSION = "0.3.36"
LLAMA_BUILD = 11312
"""llama.cpp's, inside that version."""
MAX_SEQUENCES = 256  # llama-cparams.h, LLAMA_MAX_SEQ
ADDED_BACKEND = "GGML_BACKEND_PATH"  # ggml-backend-reg.cpp
# Rows of a batch from which GPUs compute with weights in RAM. A norm of 32 to 64 heads has as many rows
# for one token: at 32, the default, each such norm of a layer in RAM went to the GPU and back
# (ggml-cuda.cu, ggml_backend_cuda_device_offload_op). Prompts are longer than this. It is not tuned:
# llama.cpp reads it with its devices, which are looked at before it is known which models will open.
OFFLOADED_ROWS = 65

Native: TypeAlias = Any
"""Something that only ctypes knows the type of."""

_lock = threading.Lock()
_api: Native = None
_kept_alive: list[object] = []  # callbacks that native code refers to


def native() -> Native:
    """Return llama-cpp-python's low-level binding, initialised.

    Raises `LibraryError` where it cannot serve, `UserError` where an added backend cannot be loaded.
    """
    global _api  # noqa: PLW0603 - the library can be started only once in a process
    if _api is None:
        with _lock:
            if _api is None:
                _api = _start()
    return _api


def _start() -> Native:
    _set_environment()
    logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL + 1)
    try:
        with _nothing_on_top():
            import llama_cpp
            import llama_cpp.llama_cpp as api
    except (ImportError, OSError, RuntimeError) as error:
        raise LibraryError(f"llama-cpp-python cannot be loaded: {error}") from error
    _check(api, llama_cpp.__version__)
    _redirect_log(api)
    api.llama_backend_init()
    if (addition := added_backend()) is not None:
        _load_backend(api, *addition)
    for endpoint in rpc.named():
        _add_server(api, endpoint)
    return api


def added_backend() -> tuple[str, Path] | None:
    """Return the source and file of an additional backend; raises `UserError`.

    `GGML_BACKEND_PATH` overrides config.toml, even if it is empty.
    """
    if (named := os.environ.get(ADDED_BACKEND)) is not None:
        return (ADDED_BACKEND, expanded(named).absolute()) if named else None
    backend = read_config(path := config_dir() / "config.toml").backend
    return None if backend is None else (f"`backend` in {path}", backend)


def _load_backend(api: Native, named_by: str, path: Path) -> None:
    """Load a GPU's backend: llama.cpp does so only in a build without one (ggml-backend-reg.cpp)."""
    if not path.is_file():
        raise UserError(f"{named_by} names no file: {path}", "correct the path, or leave it out")
    load = exported(api, "ggml_backend_load", ctypes.c_void_p, ctypes.c_char_p)
    with problems_of_this_thread() as problems:
        loaded = load(os.fsencode(path))
    if not loaded:
        reason = last_problem(problems, "it does not suit this system").rpartition(f"{path}: ")[2]
        hint = f"build it from the llama.cpp within llama-cpp-python {VERSION} (README), or leave it out"
        raise UserError(f"the backend that {named_by} names cannot be loaded: {path}: {reason}", hint)


def _add_server(api: Native, endpoint: rpc.Endpoint) -> None:
    """Add the devices of another machine to llama.cpp, as RPC0 and so on; raises `UserError`."""
    connect = rpc_function(api, "ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)
    rpc.looks[str(endpoint)] = rpc.probe_server(endpoint)
    if not (registry := connect(str(endpoint).encode())):
        raise UserError(f"{endpoint} offers no devices", "see what it prints there")
    exported(api, "ggml_backend_register", None, ctypes.c_void_p)(registry)


def rpc_function(api: Native, name: str, result: Native, *arguments: Native) -> Native:
    """Return a function of the RPC backend, built in or loaded; raises `UserError` where there is none."""
    by_name = exported(api, "ggml_backend_reg_by_name", ctypes.c_void_p, ctypes.c_char_p)
    types = (ctypes.c_void_p, ctypes.c_char_p)
    find = exported(api, "ggml_backend_reg_get_proc_address", ctypes.c_void_p, *types)
    registry = by_name(b"RPC")
    if not registry or not (address := find(registry, name.encode())):
        raise rpc.missing_backend_error()
    return ctypes.CFUNCTYPE(result, *arguments)(address)


def exported(api: Native, name: str, result: Native, *arguments: Native) -> Native:
    """Return a function of ggml with its types declared."""
    # POSIX looks a symbol up through dependencies, Windows only in the very library
    for library in (api._lib, *_ggml_libraries(Path(api._base_path))):  # noqa: SLF001
        if hasattr(library, name):
            found = library[name]  # a fresh object: declaring its types changes no one else's
            found.restype = result
            found.argtypes = list(arguments)
            return found
    raise UserError(f"this build of llama.cpp lacks {name}", "install llama-cpp-python as LocalSpec pins it")


def _ggml_libraries(folder: Path) -> list[ctypes.CDLL]:
    if os.name != "nt":
        return []
    paths = (folder / f"{name}.dll" for name in ("ggml", "ggml-base", "ggml-cpu"))
    return [ctypes.CDLL(str(path)) for path in paths if path.exists()]


@contextmanager
def _nothing_on_top() -> Iterator[None]:
    """Make the package import only its binding: its chat classes would cost 20 ms at every start.

    They can be imported afterwards.
    """
    name = "llama_cpp.llama"
    if "llama_cpp" in sys.modules or name in sys.modules:
        yield
        return
    sys.modules[name] = ModuleType(name)
    try:
        yield
    finally:
        del sys.modules[name]


def _set_environment() -> None:
    # How long libgomp's threads spin before they sleep. While another process wants a core, a pass of two
    # threads took 40 ms at 1000 and 340 ms at 20000 (350 MB model, 2 cores); alone 13 to 16 at both.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # Answers that share models call from a thread each, and libgomp keeps a team for each of them. Once teams
    # have more threads than there are cores, its threads spin 100 times only, unless they are to be active
    # (libgomp/env.c): a pass of four rows took 3.0 ms instead of 1.8 (bundled target, 2 cores).
    if _is_built_with_libgomp():
        os.environ.setdefault("OMP_WAIT_POLICY", "active")
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    os.environ.setdefault("GGML_OP_OFFLOAD_MIN_BATCH", str(OFFLOADED_ROWS))
    os.environ["GGML_NO_BACKTRACE"] = "1"


def _is_built_with_libgomp() -> bool:
    """Return whether GCC's OpenMP runs the threads: LLVM's would never let active ones sleep."""
    package = find_spec("llama_cpp")
    if sys.platform != "linux" or package is None or package.origin is None:
        return False
    libraries = (Path(package.origin).parent / "lib").glob("libggml-cpu*.so")
    return any(b"libgomp.so" in library.read_bytes() for library in libraries)


def _check(api: Native, version: str) -> None:
    """Reject a library with other struct layouts: it would read garbage."""
    model_fields = {name for name, *_ in api.llama_model_params._fields_}
    context_fields = {name for name, *_ in api.llama_context_params._fields_}
    known = {"load_mode", "no_alloc"} <= model_fields and {"kv_unified", "n_outputs_max"} <= context_fields
    if known:
        model = api.llama_model_default_params()
        context = api.llama_context_default_params()
        defaults = (model.load_mode, context.n_batch, context.n_seq_max, context.swa_full, context.kv_unified)
        known = defaults == (-1, 2048, 1, True, False)
    if not known:
        raise LibraryError(
            f"llama-cpp-python {version} does not fit: LocalSpec needs {VERSION} with its own llama.cpp"
        )


def _redirect_log(api: Native) -> None:
    callback = api.llama_log_callback(receive)
    # a call into a Python that has ended would crash; C's abs() takes the same call and does nothing
    silence = ctypes.cast(_c_library().abs, api.llama_log_callback)
    _kept_alive.extend((callback, silence))
    api.llama_log_set(callback, None)
    atexit.register(api.llama_log_set, silence, None)


def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL("msvcrt" if os.name == "nt" else None)


def abort_flag(api: Native) -> tuple[Native, Native]:
    """Return a 2-byte flag, and a native abort callback that reads it without taking the GIL.

    The callback is C's strlen: non-zero as soon as the flag's first byte is.
    """
    flag = ctypes.create_string_buffer(2)
    return flag, ctypes.cast(_c_library().strlen, api.ggml_abort_callback)


logger = logging.getLogger("localspec.llama.cpp")
logger.addHandler(logging.NullHandler())

# ggml.h, enum ggml_log_level; the table in llama-cpp-python's own logger is out of date.
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUE = 5
PINNED = "pinned memory"  # in a message without a level of its own: CUDA says at debug level that it failed
# the result of GGML_STATUS_ABORTED, which only our abort callback causes
_STOPPED = re.compile(r"(?:failed with error|compute status:) 1$|failed to decode, ret = 2$")


class _Stream(threading.local):
    """The log state of one thread: the unfinished line, and the collectors of problems."""

    def __init__(self) -> None:
        self.level = logging.INFO
        self.pending = ""
        self.listeners: list[list[str]] = []


_stream = _Stream()


def receive(level: int, text: bytes | None, _user_data: object = None) -> None:
    """Take one fragment from `llama_log_set`; lines are logged when their newline arrives."""
    if level != _CONTINUE:
        _flush()
        _stream.level = _LEVELS.get(level, logging.INFO)
    *lines, _stream.pending = (_stream.pending + (text or b"").decode("utf-8", "replace")).split("\n")
    for line in lines:
        _emit(line)


def _flush() -> None:
    line = _stream.pending
    _stream.pending = ""
    _emit(line)


def _emit(line: str) -> None:
    line = line.rstrip()
    if not line:
        return
    level = logging.DEBUG if _STOPPED.search(line) else _stream.level
    if level >= logging.WARNING or PINNED in line:
        for problems in _stream.listeners:
            problems.append(line)
    logger.log(level, "%s", line)


@contextmanager
def problems_of_this_thread() -> Iterator[list[str]]:
    """Collect the warnings and errors that llama.cpp logs on this thread meanwhile."""
    problems: list[str] = []
    _stream.listeners.append(problems)
    try:
        yield problems
    finally:
        _flush()
        # list.remove() would take the first list that compares equal
        _stream.listeners[:] = [other for other in _stream.listeners if other is not problems]


_SAID_BY = re.compile(r"\w+: (?:error loading model: )?")


def load_problem(problems: list[str]) -> str:
    """Return the reason why a model was not loaded, from llama.cpp's log lines.

    The header reader logs the cause first; the loader logs it last.
    """
    of_header = any(line.startswith("gguf_") for line in problems)
    return _SAID_BY.sub("", problems[0] if of_header else last_problem(problems), count=1)


def last_problem(problems: list[str], otherwise: str = "llama.cpp gives no reason") -> str:
    """Return the most useful of the collected lines: the last one about an error."""
    errors = [line for line in problems if "error" in line.lower() or "failed" in line.lower()]
    # llama.cpp repeats a failed load as "failed to load model"; the line before has the reason
    telling = [line for line in errors if "failed to load model" not in line] or errors or problems
    return telling[-1] if telling else otherwise
