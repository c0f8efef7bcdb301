"""Models on another machine's devices: tokens per second by line, beside what a plan expects.

python -m tests.benchmarks.line [-m TARGET -md DRAFT] [--lines "0.3:117,3:30"] [-n 60] [--turns 3]

The other machine is a `localspec share` on this one with one thread, and the line a proxy that holds every
byte for the delay (milliseconds there and back) and the rate (MB/s); the target is there, the draft here.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from statistics import median

from localspec.demo import bundled_pair, prompts
from localspec.hardware.machine import known_machine
from localspec.hardware.placement.candidates import PlacementConstraints
from localspec.hardware.placement.place import place
from localspec.inference.worker.client import Worker
from localspec.llama import rpc
from localspec.models.shape import read_shape
from localspec.types import EngineSettings, Finished, Message, Mode, ModelOptions, Request, Sampling, Summary

MODES: tuple[Mode, ...] = ("off", "sd", "ssd")
QUESTIONS = 3


@dataclass(slots=True)
class Line:
    """A proxy that forwards one client at a time, `one_way_s` later and not above `rate` bytes per second."""

    server: int
    one_way_s: float
    rate: float
    port: int = 0
    carried: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})

    def start(self) -> None:
        """Listen, in threads of its own."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            near = listener.accept()[0]
            far = socket.create_connection(("127.0.0.1", self.server))
            for source, target, way in ((near, far, "up"), (far, near, "down")):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                parts: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
                threading.Thread(target=self._read, args=(source, parts, way), daemon=True).start()
                threading.Thread(target=self._write, args=(target, parts), daemon=True).start()

    def _read(self, source: socket.socket, parts: SimpleQueue[tuple[float, bytes]], way: str) -> None:
        data = b"-"
        while data:
            data = b""
            with suppress(OSError):
                data = source.recv(2**18)
            self.carried[way] += len(data)
            parts.put((time.perf_counter(), data))

    def _write(self, target: socket.socket, parts: SimpleQueue[tuple[float, bytes]]) -> None:
        free = 0.0
        while True:
            came, data = parts.get()
            free = max(free, came) + (len(data) / self.rate if self.rate else 0.0)
            while (left := free + self.one_way_s - time.perf_counter()) > 0:
                time.sleep(left if left > 0.002 else 0)
            with suppress(OSError):
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(data)


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", type=Path, default=bundled_pair()[0])
    parser.add_argument("-md", "--model-draft", type=Path, default=bundled_pair()[1])
    parser.add_argument(
        "--lines", default="0:0,0.3:117,3:30", help="MS:MB/S with commas between; 0 is no limit"
    )
    parser.add_argument("-n", "--tokens", type=int, default=60)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    with sharing() as port:
        for text in args.lines.split(","):
            trip_ms, rate = map(float, text.split(":"))
            line = Line(port, trip_ms / 2000, rate * 1e6)
            line.start()
            os.environ[rpc.VARIABLE] = f"127.0.0.1:{line.port}"
            report(args, line, f"{trip_ms:g} ms, {rate:g} MB/s" if rate else "no line between")


@contextmanager
def sharing() -> Iterator[int]:
    """Share this machine's processor, and give the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    command = [sys.executable, "-m", "localspec", "share", "--port", str(port), "-t", "1", "-dev", "CPU"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        process.stderr.readline()
        yield port
        process.terminate()


def report(args: argparse.Namespace, line: Line, name: str) -> None:
    """Print what each mode gives over one line, and what was expected."""
    expected = expected_rates(args)
    target = ModelOptions(args.model, context=1024, threads=1, devices=("RPC0",))
    draft = ModelOptions(args.model_draft, context=1024, threads=1, devices=())
    found: dict[Mode, list[Summary]] = {mode: [] for mode in MODES}
    bytes_per_token: dict[Mode, float] = {}
    with Worker.open(target, draft, draft_threads=1) as models:
        for _ in range(args.turns):
            for mode in MODES:
                before, tokens = dict(line.carried), 0
                for prompt in prompts()[:QUESTIONS]:
                    request = Request(
                        (Message("user", prompt.prompt),),
                        Sampling(0.0),
                        EngineSettings(mode=mode),
                        args.tokens,
                    )
                    ends = [event for event in models.generate(request) if isinstance(event, Finished)]
                    found[mode].append(ends[0].summary)
                    tokens += ends[0].summary.tokens
                bytes_per_token[mode] = sum(line.carried[way] - before[way] for way in before) / tokens
    print(f"\n{name}")
    for mode in MODES:
        rates = [summary.tokens / summary.decode_s for summary in found[mode]]
        print(
            f"  {mode:4} {median(rates):7.1f} tokens/s ({min(rates):.1f}-{max(rates):.1f}), "
            f"expected {expected[mode]:.1f}; {bytes_per_token[mode] / 1e3:.1f} kB a token"
        )


def expected_rates(args: argparse.Namespace) -> dict[Mode, float]:
    """Return what a plan expects of each mode with the target there and the draft model here."""
    machine = known_machine(fresh=True)
    shapes = read_shape(args.model), read_shape(args.model_draft)
    rates: dict[Mode, float] = {}
    for mode in MODES:
        asked = PlacementConstraints(
            context=1024, devices=("RPC0",), draft_devices=(), threads=1, draft_threads=1, mode=mode
        )
        rates[mode] = place(machine, *shapes, asked).tokens_per_s or 0.0
    return rates


if __name__ == "__main__":
    main()
