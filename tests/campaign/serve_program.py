"""The program `localspec serve` with pairs of the bundled models, of which two come and go."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx2
import psutil

from localspec.demo import bundled_pair
from tests.campaign.kills import environment, gone, program
from tests.campaign.log import allowed_s, require
from tests.conftest import QUANTIZE

CLIENTS, IDLE_S = 8, 3
EXACT = "exact"  # the pair that stays open; its target gives the same bits at every batch width
COMES_AND_GOES = ("other", "vectors")
_FLAGS = (
    "serve",
    "--models",
    "--port",
    "0",
    "--parallel",
    f"{CLIENTS}",
    "--idle",
    "4s",
    "-t",
    "1",
    "--cache-ram",
    "32",
)
_STARTED_S, _ENDED_S = 60.0, 20.0


class ServeProgram:
    """The server, and what it prints."""

    def __init__(self, folder: Path) -> None:
        exact = folder / "exact.gguf"
        target, draft = bundled_pair()
        command = [sys.executable, "-c", QUANTIZE, str(target), str(exact)]
        subprocess.run(command, check=True, capture_output=True)
        pairs = {
            EXACT: f'{{ target = "{exact}", draft = "{draft}", context = 16384 }}',
            "other": f'{{ target = "{target}", context = 8192 }}',
            "vectors": f'{{ embeddings = "{target}" }}',
        }
        (folder / "config").mkdir(exist_ok=True)
        lines = "".join(f"{name} = {pair}\n" for name, pair in pairs.items())
        (folder / "config" / "config.toml").write_text(f"[pairs]\n{lines}", encoding="utf-8")
        self.process = program(_FLAGS, environment(folder))
        self.lines: deque[str] = deque(maxlen=200)
        self.troubles: list[str] = []
        self.url = ""
        self._starts = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._starts.wait(allowed_s(_STARTED_S))
        if not self.url:
            self._kill()
        require(self.url, f"it does not start: {[*self.lines]}")
        self.client = httpx2.Client(base_url=self.url, verify=False, timeout=60)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            self.lines.append(line)
            if "Traceback" in line or "unexpected" in line:
                self.troubles.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                self.url = found[0]
                self._starts.set()
        self._starts.set()

    def _kill(self) -> None:
        self.process.kill()
        self._reader.join(5)
        with self.process:  # closes its output
            pass

    @property
    def own(self) -> psutil.Process:
        """Return the server's process."""
        return psutil.Process(self.process.pid)

    def worker(self, name: str = EXACT) -> psutil.Process:
        """Return the process that has the pair with that file open."""
        for child in self.own.children(recursive=True):
            with suppress(psutil.Error):
                if any(each.path.endswith(f"{name}.gguf") for each in child.memory_maps()):
                    return child
        raise AssertionError(f"no process has {name} open: {[*self.lines][-5:]}")

    def figures(self) -> dict[str, float]:
        """Return the figures of `/metrics`."""
        lines = self.client.get("/metrics").text.splitlines()
        found = [line.split() for line in lines if line.startswith("localspec_")]
        return {name.removeprefix("localspec_"): float(value) for name, value in found}

    def status(self, name: str) -> str:
        """Return whether a model is open."""
        return str(self.client.get(f"/v1/models/{name}").json()["status"]["value"])

    def _is_closed(self, name: str) -> bool:
        return self.status(name) == "unloaded"

    def rests(self) -> None:
        """Wait until nothing is done any more, and only the first pair is open."""
        until(lambda: _is_idle(self.figures()), "a request goes on that nobody waits for")
        for name in COMES_AND_GOES:
            if not self._is_closed(name):
                self.client.post("/models/unload", json={"model": name})
            until(partial(self._is_closed, name), f"{name} is not closed")

    def end(self) -> None:
        """End it, and require that nothing is left."""
        children = self.own.children(recursive=True)
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(allowed_s(_ENDED_S))
        finally:
            self._kill()
        gone(children)
        require(code == 0, f"it ended with {code}: {[*self.lines][-5:]}")
        require(not self.troubles, f"it printed {self.troubles[:3]}")


def _is_idle(figures: dict[str, float]) -> bool:
    return figures["answering"] + figures["waiting"] == 0


def until(holds: Callable[[], bool], else_: str, within_s: float = 15.0) -> None:
    ends = time.monotonic() + allowed_s(within_s)
    while not holds():
        require(time.monotonic() < ends, else_)
        time.sleep(0.02)
