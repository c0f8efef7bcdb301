"""The rules that the code base keeps: style, types, layers, sizes, start-up."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for folder in ("localspec", "tui", "tests") for path in (ROOT / folder).rglob("*.py"))
LONG_FILE_LINES = 600
LONG_FILES: dict[str, str] = {}  # over that, each with the reason why it holds one thing
MAX_FUNCTION_LINES = 60
USUAL_FUNCTION_LINES = 30
HELP_SECONDS = 0.15
BARE_PYTHON_SECONDS = 0.03  # on a machine that is fast enough for HELP_SECONDS to mean something


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tui")])}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["-m", "ruff", "check", "--no-fix", "."], id="ruff check"),
        pytest.param(["-m", "ruff", "format", "--check", "."], id="ruff format"),
        pytest.param(["-m", "mypy"], id="mypy"),
        pytest.param(
            ["-c", "from importlinter.cli import lint_imports_command as main; main()"], id="import-linter"
        ),
    ],
)
def test_tool_has_no_complaint(arguments: list[str]) -> None:
    result = python(*arguments)
    assert result.returncode == 0, result.stdout + result.stderr


def test_files_hold_one_thing() -> None:
    sizes = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in SOURCES}
    assert {name for name, lines in sizes.items() if lines > LONG_FILE_LINES} == set(LONG_FILES)


def test_functions_are_short() -> None:
    sizes = [item for path in SOURCES for item in functions(path)]
    assert [(name, n) for name, n in sizes if n > MAX_FUNCTION_LINES] == []
    long = [(name, n) for name, n in sizes if n >= USUAL_FUNCTION_LINES]
    assert len(long) <= len(sizes) / 10, long


def test_only_the_command_line_prints() -> None:
    cli, scripts = ROOT / "localspec" / "cli", ROOT / "tests" / "benchmarks"
    allowed = (cli, ROOT / "localspec" / "__main__.py", scripts, ROOT / "tests" / "campaign" / "__main__.py")
    printing = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        if not any(path.is_relative_to(place) for place in allowed)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert printing == []


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("localspec.cli", {"textual", "rich", "optuna", "plotly", "llama_cpp", "numpy"}),
        ("localspec.types.drafts", {"numpy"}),
        ("localspec.decoding.model", {"textual", "optuna", "llama_cpp"}),
        ("localspec.llama", {"textual", "optuna"}),
    ],
)
def test_import_leaves_out(module: str, unwanted: set[str]) -> None:
    result = python("-c", f"import sys, {module}; print('\\n'.join(sys.modules))")
    assert result.returncode == 0, result.stderr
    assert unwanted & set(result.stdout.split()) == set()


def cpu_seconds(*arguments: str) -> float:
    """Return the processor time of a Python process: unlike the clock, it does not see other programs."""
    code = (
        "import resource, subprocess, sys\n"
        "subprocess.run([sys.executable, *sys.argv[1:]], check=True, stdout=subprocess.DEVNULL)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(used.ru_utime + used.ru_stime)\n"
    )
    result = python("-c", code, *arguments)
    assert result.returncode == 0, result.stderr
    return float(result.stdout)


@pytest.mark.skipif(sys.platform == "win32", reason="the processor time of a child is not at hand")
def test_help_is_fast() -> None:
    bare = min(cpu_seconds("-c", "pass") for _ in range(5))
    limit = HELP_SECONDS * max(1.0, bare / BARE_PYTHON_SECONDS)
    measured = [cpu_seconds("-m", "localspec", "--help") for _ in range(5)]
    assert min(measured) < limit, (measured, bare)
