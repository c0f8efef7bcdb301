"""Rules of the code base: who prints, what an import loads, how fast `--help` is."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for folder in ("localspec", "tui", "tests") for path in (ROOT / folder).rglob("*.py"))
HELP_SECONDS = 0.15
BARE_PYTHON_SECONDS = 0.03  # on a machine that is fast enough for HELP_SECONDS to mean something


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tui")])}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
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


def test_no_coroutine_waits_for_its_worker() -> None:
    """Look for workers that are not started by `start_worker` and are no threads."""
    others = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        if path.name != "workers.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr == "run_worker" and "thread" not in [keyword.arg for keyword in node.keywords]
    ]
    assert others == []


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
    """Return the CPU time of a Python process: unlike the clock, it does not see other programs."""
    code = (
        "import resource, subprocess, sys\n"
        "subprocess.run([sys.executable, *sys.argv[1:]], check=True, stdout=subprocess.DEVNULL)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(used.ru_utime + used.ru_stime)\n"
    )
    result = python("-c", code, *arguments)
    assert result.returncode == 0, result.stderr
    return float(result.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the processor time of a child is not at hand")
def test_help_is_fast() -> None:
    bare = min(cpu_seconds("-c", "pass") for _ in range(5))
    limit = HELP_SECONDS * max(1.0, bare / BARE_PYTHON_SECONDS)
    measured = [cpu_seconds("-m", "localspec", "--help") for _ in range(5)]
    assert min(measured) < limit, (measured, bare)
