from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from localspec.errors import EngineError
from localspec.llama import library


def run_fresh(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter that has imported nothing yet."""
    root = Path(library.__file__).parents[2]
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(root), "HOME": os.environ["HOME"], **environment},
        check=False,
    )


@pytest.mark.slow
def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, localspec.llama; print({'numpy', 'llama_cpp', 'jinja2', 'psutil'} & {*sys.modules})"
    assert run_fresh(code).stdout.strip() == "set()"
    code = "import sys, localspec.llama.context; print({'llama_cpp', 'jinja2'} & {*sys.modules})"
    assert run_fresh(code).stdout.strip() == "set()"


def test_the_environment_is_set_before_the_library_is_loaded() -> None:
    code = (
        "from os import environ as e; from localspec.llama.backends import devices; devices();"
        "print(e['GOMP_SPINCOUNT'], e['CUDA_DEVICE_ORDER'], e['GGML_NO_BACKTRACE'],"
        "e['GGML_OP_OFFLOAD_MIN_BATCH'], e.get('OMP_WAIT_POLICY'))"
    )
    is_gcc = b"libgomp" in _cpu_library().read_bytes()
    usual = ["1000", "PCI_BUS_ID", "1", "65", "active" if is_gcc else "None"]
    assert run_fresh(code).stdout.split() == usual
    own = {
        "GOMP_SPINCOUNT": "7",
        "CUDA_DEVICE_ORDER": "FASTEST_FIRST",
        "GGML_OP_OFFLOAD_MIN_BATCH": "32",
        "OMP_WAIT_POLICY": "passive",
    }
    assert run_fresh(code, **own).stdout.split() == ["7", "FASTEST_FIRST", "1", "32", "passive"]


def _cpu_library() -> Path:
    (package,) = import_module("llama_cpp").__path__
    return next((Path(package) / "lib").glob("*ggml-cpu*"))


@pytest.mark.slow
def test_the_package_is_loaded_without_what_lies_on_top_of_the_binding() -> None:
    code = (
        "import sys; from localspec.llama.backends import devices; devices();"
        "print('llama_cpp.llama' in sys.modules, 'jinja2' in sys.modules);"
        "from llama_cpp.llama import Llama; print(Llama.__name__)"
    )
    assert run_fresh(code).stdout.split() == ["False", "False", "Llama"]


@pytest.mark.slow
def test_a_process_that_forgets_to_close_ends_quietly(tiny_llama: Path) -> None:
    code = (
        "from pathlib import Path; from localspec.llama.context import Context;"
        "from localspec.llama.model import Model;"
        "from localspec.types.models import ModelOptions;"
        f"model = Model.open(ModelOptions(path=Path({str(tiny_llama)!r})));"
        "context = Context(model, model.options); context.evaluate([1])"
    )
    done = run_fresh(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_library_of_another_shape_is_rejected() -> None:
    foreign = SimpleNamespace(
        llama_model_params=SimpleNamespace(_fields_=[("use_mmap", bool)]),
        llama_context_params=SimpleNamespace(_fields_=[]),
    )
    with pytest.raises(EngineError, match=r"llama-cpp-python 0\.2\.1 does not fit: LocalSpec needs 0\.3\.36"):
        library._check(foreign, "0.2.1")


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="localspec.llama.cpp")
    return caplog


def test_levels_are_those_of_ggml(heard: pytest.LogCaptureFixture) -> None:
    for level in (1, 2, 3, 4):
        library.receive(level, b"text\n")
    assert [record.levelno for record in heard.records] == [10, 20, 30, 40]


def test_continued_lines_are_put_together(heard: pytest.LogCaptureFixture) -> None:
    library.receive(3, b"loading ")
    library.receive(5, b"half of")
    library.receive(5, b" it\nnext")
    library.receive(2, b"other: %s 100%\n")
    assert [(record.levelno, record.getMessage()) for record in heard.records] == [
        (30, "loading half of it"),
        (30, "next"),
        (20, "other: %s 100%"),
    ]


def test_bytes_that_are_not_text_do_no_harm(heard: pytest.LogCaptureFixture) -> None:
    library.receive(4, b"bad \xff\n")
    library.receive(4, None)
    assert [record.getMessage() for record in heard.records] == ["bad \ufffd"]


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("graph_compute: ggml_backend_sched_graph_compute_async failed with error 1", logging.DEBUG),
        ("process_ubatch: failed to compute graph, compute status: 1", logging.DEBUG),
        ("llama_decode: failed to decode, ret = 2", logging.DEBUG),
        ("graph_compute: ggml_backend_sched_graph_compute_async failed with error -1", logging.ERROR),
        ("llama_decode: failed to decode, ret = -3", logging.ERROR),
    ],
)
def test_a_call_that_was_stopped_is_not_a_problem(
    line: str, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "localspec.llama.cpp")
    with library.problems_of_this_thread() as problems:
        library.receive(4, f"{line}\n".encode())
    assert [(record.levelno, record.message) for record in caplog.records] == [(level, line)]
    assert problems == [line] * (level > logging.DEBUG)


def test_problems_are_collected_for_their_own_thread() -> None:
    with library.problems_of_this_thread() as outer, library.problems_of_this_thread() as inner:
        library.receive(2, b"fine\n")
        library.receive(4, b"error: broken\n")
        other = threading.Thread(target=library.receive, args=(4, b"error: elsewhere\n"))
        other.start()
        other.join()
    library.receive(4, b"later\n")
    assert inner == outer == ["error: broken"]


def test_the_telling_problem_is_chosen() -> None:
    lines = ["a warning", "error loading model: no such tensor", "llama: failed to load model 'x'"]
    assert library.last_problem(lines) == "error loading model: no such tensor"
    assert library.last_problem(["failed to load model 'x'"]) == "failed to load model 'x'"
    assert library.last_problem(["only this"]) == "only this"
    assert library.last_problem([]) == "llama.cpp gives no reason"
