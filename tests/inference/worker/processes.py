"""Other processes, as tests see them; a process is awaited through its descriptor, without polling."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from localspec.types.request import EngineSettings, Request, Sampling

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 20.0  # bounds a failing test, and is never spent by a passing one
END_TOKENS = (0, 1, 2)  # those of the bundled vocabulary
ENDLESS = Request(
    "the sea",
    Sampling(temperature=50.0, top_k=0, top_p=1.0, min_p=0.0),
    EngineSettings(mode="off"),
    max_tokens=None,
    seed=1,
    logit_bias=tuple((token, -100.0) for token in END_TOKENS),
)
PRELUDE = """
import os, resource, signal, sys
from localspec.types.request import *
from localspec.types.events import *
from localspec.types.models import *
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.worker.client import Worker
from tests.inference.runtimes import greedy
from tests.inference.worker.processes import ENDLESS
options = ModelOptions(Path(sys.argv[1]), context=8192, threads=1)
"""


def start_script(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a program of its own that may open workers, in a session of its own."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tui")])}
    return subprocess.Popen(
        [sys.executable, "-P", "-W", "error", "-c", PRELUDE + code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def run_script(code: str, *arguments: object) -> str:
    """Run such a program to its end, and return what it prints."""
    with start_script(code, *arguments) as script:
        try:
            printed, complaints = script.communicate(timeout=TIMEOUT_S)
        finally:
            script.kill()
    assert (script.returncode, complaints) == (0, "")
    return printed


def ends(pid: int) -> bool:
    """Return whether a process has ended, or does so soon; one that no one has waited for has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(TIMEOUT_S * 1000))
    finally:
        os.close(descriptor)


def patience(asks: int = 400) -> Callable[[float], bool]:
    """Return an `on_progress` that waits for 20 s at most."""
    left = iter(range(asks))
    return lambda _fraction: next(left, None) is not None


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def kill_children_except(known: set[int]) -> None:
    for pid in children() - known:
        os.kill(pid, signal.SIGKILL)
