"""Models on another machine's devices: tokens per second by line, beside what a plan expects.

python -m tests.benchmarks.line [-m TARGET -md DRAFT] [--lines "0.3:117,3:30"] [--layouts there,home]

The other machine is a `localspec share` on this one with one thread, and the line a proxy that holds every
byte for the delay (milliseconds there and back) and the rate (MB/s). The target is there with the draft here
(`there`), the same with the target's output layer here (`home`), and half of its layers as well (`split`), or
the draft is there and the target here (`draft`). What is expected follows from measured rates of memories and
line, and from how many of the draft's tokens were accepted.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from statistics import median

from localspec.demo import bundled_pair, prompts
from localspec.hardware.device_info import Machine
from localspec.hardware.machine import known_machine
from localspec.hardware.memory.needs import LayerSplit
from localspec.hardware.placement.candidates import PlacementSearch
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.worker.client import Worker
from localspec.llama import rpc
from localspec.models.pair_request import ModelRequest, PairRequest
from localspec.models.shape import read_shape
from localspec.types.events import Finished, Summary
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Mode, Request, Sampling

MODES: tuple[Mode, ...] = ("off", "sd", "ssd")
CONTEXT = 1024
HERE = LayerSplit()
LAYOUTS: dict[str, Callable[[int, int], tuple[LayerSplit, LayerSplit]]] = {
    "there": lambda layers, _: (LayerSplit(("RPC0",), (layers,)), HERE),
    "home": lambda layers, _: (LayerSplit(("RPC0",), (layers,), output_at_home=True), HERE),
    "split": lambda layers, _: (LayerSplit(("RPC0",), (layers // 2,), output_at_home=True), HERE),
    "draft": lambda _, layers: (HERE, LayerSplit(("RPC0",), (layers,))),
}
"""Where the layers of both models are, by how many each has."""


@dataclass(slots=True)
class Line:
    """A proxy that forwards one client at a time, `one_way_s` later and not above `rate` bytes per second."""

    server: int
    one_way_s: float
    rate: float
    port: int = 0
    carried: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    listener: socket.socket = field(default_factory=socket.socket)

    def start(self) -> None:
        """Listen, in threads of its own."""
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with self.listener, suppress(OSError):
            while True:
                self._forward(self.listener.accept()[0])

    def _forward(self, near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", self.server)) as far:
            threads = []
            for source, target, way in ((near, far, "up"), (far, near, "down")):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                parts: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
                threads.append(threading.Thread(target=self._read, args=(source, parts, way), daemon=True))
                threads.append(threading.Thread(target=self._write, args=(target, parts), daemon=True))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

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
                target.sendall(data)
            if not data:
                with suppress(OSError):  # it may be broken already
                    target.shutdown(socket.SHUT_WR)
                return


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
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("-n", "--tokens", type=int, default=60)
    parser.add_argument("--questions", type=int, default=3)
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
    """Share this machine's CPU, and give the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    command = [sys.executable, "-m", "localspec", "share", "--port", str(port), "-t", "1", "-dev", "CPU"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        process.stderr.readline()
        try:
            yield port
        finally:
            process.terminate()


def report(args: argparse.Namespace, line: Line, name: str) -> None:
    """Print what each mode gives in every layout over one line, and what a plan expects of it."""
    print(f"\n{name}", flush=True)
    machine = known_machine(fresh=True)
    for rate in machine.rates:
        print(f"  {rate}")
    for layout in args.layouts.split(","):
        paths = args.model, args.model_draft
        counts = [len(read_shape(path).layers) for path in paths]
        seats = LAYOUTS[layout](*counts)
        target, draft = (placed(path, split) for path, split in zip(paths, seats, strict=True))
        limits, (line.one_way_s, line.rate) = (line.one_way_s, line.rate), (0.0, 0.0)  # while weights cross
        with Worker.open(OpenPlan(target, draft)) as models:
            line.one_way_s, line.rate = limits
            found, carried = answers(args, line, models)
        every = [summary for summaries in found.values() for summary in summaries]
        judged = sum(sum(summary.drafted_at) for summary in every)
        share = sum(sum(summary.accepted_at) for summary in every) / judged if judged else None
        expected = expected_rates(args, machine, seats, share)
        print(
            f"  {layout}: " + (f"{share:.0%} of the draft's tokens are accepted" if judged else "no drafts")
        )
        for mode, summaries in found.items():
            rates = [summary.tokens / summary.decode_s for summary in summaries]
            print(
                f"    {mode:4} {median(rates):7.2f} tokens/s ({min(rates):.2f}-{max(rates):.2f}), expected "
                f"{expected[mode]:.2f} ({expected[mode] / median(rates) - 1:+.0%}); "
                f"{carried[mode] / 1e3:.1f} kB a token",
                flush=True,
            )


def placed(path: Path, split: LayerSplit) -> ModelOptions:
    """Return what opens a model so, with one thread."""
    at_home, count = split.output_at_home, split.on_cards and split.on_cards + 1
    return ModelOptions(path, CONTEXT, count, split.devices, threads=1, output_at_home=at_home)


def answers(
    args: argparse.Namespace, line: Line, models: Worker
) -> tuple[dict[Mode, list[Summary]], dict[Mode, float]]:
    """Return the summaries of all answers by mode, and the bytes that a token took, prompts included."""
    modes = [mode for mode in MODES if mode in models.modes]
    found: dict[Mode, list[Summary]] = {mode: [] for mode in modes}
    carried = dict.fromkeys(modes, 0)
    for _ in range(args.turns):
        for mode, prompt in product(modes, prompts()[: args.questions]):
            before = sum(line.carried.values())
            request = Request(
                (Message("user", prompt.prompt),), Sampling(0.0), EngineSettings(mode=mode), args.tokens
            )
            found[mode] += [each.summary for each in models.generate(request) if isinstance(each, Finished)]
            carried[mode] += sum(line.carried.values()) - before
    tokens = {mode: sum(summary.tokens for summary in found[mode]) for mode in modes}
    return found, {mode: carried[mode] / tokens[mode] for mode in modes}


def expected_rates(
    args: argparse.Namespace, machine: Machine, seats: tuple[LayerSplit, LayerSplit], acceptance: float | None
) -> dict[Mode, float]:
    """Return what a plan expects of each mode where the models sit so; what does not pay is not drafted."""
    target, draft = read_shape(args.model), replace(read_shape(args.model_draft), acceptance=acceptance)
    on_target = ModelRequest(devices=seats[0].devices, gpu_layers=seats[0].on_cards + 1, threads=1)
    on_draft = ModelRequest(devices=seats[1].devices, threads=1)
    asked = PairRequest(on_target, on_draft, context=CONTEXT)
    every = PlacementSearch(machine, (target, draft), asked).at(CONTEXT)
    found = next(each for each in every if (each.target, each.draft) == seats)
    plain = next(speed.tokens_per_s for speed in found.speeds if speed.mode == "off")
    return {speed.mode: max(plain, speed.tokens_per_s) for speed in found.speeds}


if __name__ == "__main__":
    main()
