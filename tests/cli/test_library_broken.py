"""If llama.cpp's library or a package next to it cannot be loaded, every command names the first reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.demo import bundled_pair

ROOT = Path(__file__).parents[2]
REASON = "libcudart.so.12: cannot open shared object file"
BROKEN = {
    "as the package says it": f'raise RuntimeError("Failed to load shared library libllama.so: {REASON}")',
    "as Python says it": f'raise ImportError("{REASON}")',
    "as the system says it": f'raise OSError("{REASON}")',
}
TARGET, DRAFT = map(str, bundled_pair())
VERBS = (
    ("run", "Hi", "--no-stdin"),
    ("run", "Hi", "--no-stdin", "--no-fit"),
    ("run", "Hi", "--no-stdin", "--json"),
    ("chat",),
    ("verify",),
    ("serve", "--port", "0"),
    ("share",),
    ("bench", "-n", "4"),
    ("plan",),
    ("devices",),
    ("doctor",),
)


def ran(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")))
    return subprocess.run(
        [sys.executable, "-m", "localspec", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
@pytest.mark.parametrize("code", BROKEN.values(), ids=BROKEN)
def test_every_verb_reports_the_first_reason(tmp_path: Path, code: str, verb: tuple[str, ...]) -> None:
    if code != next(iter(BROKEN.values())) and verb[0] not in ("run", "share"):
        pytest.skip("one way of failing is enough for those")
    (tmp_path / "llama_cpp.py").write_text(code, encoding="utf-8")
    models = () if verb[0] in ("share", "devices", "doctor") else ("-m", TARGET, "-md", DRAFT)
    result = ran(tmp_path, *verb, *models)
    said = result.stdout + result.stderr
    assert REASON in said, said
    assert "doctor" in said or verb[0] in ("doctor", "devices")
    assert "the models are closed" not in said
    assert "lacks the RPC backend" not in said
    assert result.returncode == (0 if verb[0] in ("devices", "plan") else 1)


@pytest.mark.slow
def test_doctor_finds_what_run_finds(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text('raise ImportError("numpy is broken")', encoding="utf-8")
    run = ran(tmp_path, "run", "Hi", "--no-stdin", "-m", TARGET)
    assert (run.returncode, "numpy is broken" in run.stderr) == (1, True)
    doctor = ran(tmp_path, "doctor")
    assert doctor.returncode == 1
    assert "numpy is broken" in doctor.stdout
