"""The program on real GPUs, as a user runs it: every command comes to its end, the screen shows both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu.conftest import COLD_S, Row
from tests.tui import terminal
from tests.tui.terminal import ROOT, Terminal

pytestmark = pytest.mark.gpu

Localspec = Callable[..., str]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home that these tests share, as rates and costs are measured once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def localspec(home: Path, table: list[Row]) -> Localspec:
    """Run the real command line."""

    def run(*arguments: str | Path) -> str:
        folders = {f"LOCALSPEC_{kind}_DIR": str(home / kind.lower()) for kind in ("CONFIG", "DATA", "STATE")}
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "localspec", *map(str, arguments)],
            env=os.environ | folders | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tui'}"},
            capture_output=True,
            text=True,
            timeout=COLD_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stderr
        words = [str(word) for word in arguments if not isinstance(word, Path) and word not in {"-m", "-md"}]
        table.append(Row(words[0], " ".join(words[1:])[:32], f"{time.monotonic() - began:.0f} s"))
        return done.stdout

    return run


@pytest.fixture
def pair(demo_target: Path, demo_draft: Path, cards: tuple[str, ...]) -> tuple[str | Path, ...]:
    return ("-m", demo_target, "-md", demo_draft, "-dev", cards[0], "-devd", cards[-1], "-c", "2048")


def test_devices_measures_every_gpu(localspec: Localspec, cards: tuple[str, ...]) -> None:
    told = json.loads(localspec("devices", "--json"))
    assert set(cards) <= {device["id"] for device in told["devices"]}


def test_plan_puts_the_pair_somewhere(localspec: Localspec, demo_target: Path, demo_draft: Path) -> None:
    assert "plan:" in localspec("plan", "-m", demo_target, "-md", demo_draft)


def test_doctor_names_the_backend(localspec: Localspec) -> None:
    assert "computes with" in localspec("doctor", "--json")


def test_verify_finds_every_mode_exact(localspec: Localspec, pair: tuple[str | Path, ...]) -> None:
    localspec("verify", "--quick", *pair)


def test_bench_compares_the_modes(localspec: Localspec, pair: tuple[str | Path, ...]) -> None:
    told = localspec(
        "bench", "--modes", "off,sd,ssd", "--prompts", "demo", "--per-task", "1", "-n", "32", *pair
    )
    assert "tokens/s" in told


def test_tune_keeps_settings(localspec: Localspec, pair: tuple[str | Path, ...]) -> None:
    localspec("tune", "--quick", "--task", "coding", *pair)


@pytest.mark.usefixtures("second")
def test_the_status_line_shows_both_gpus(
    tmp_path: Path,
    pair: tuple[str | Path, ...],
    cards: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(terminal, "TIMEOUT_S", COLD_S)
    folders = {f"LOCALSPEC_{kind}_DIR": str(tmp_path / kind.lower()) for kind in ("CONFIG", "DATA", "STATE")}
    variables = {**os.environ, **folders, "TERM": "xterm-256color"}
    with Terminal([*map(str, pair), "--mode", "ssd"], variables=variables, size=(160, 40)) as run:
        run.shows(*cards, "GiB")
        run.send("Hello\r")
        run.shows("SSD", "tokens/s")
        run.send("\x11")
        assert run.leave() == 0
