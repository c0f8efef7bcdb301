"""`localspec serve` beside llama.cpp's own server: requests per second, time to first token, cost per token.

python -m tests.benchmarks.serve [-m FILE -md FILE] [--llama-server PATH] [--clients 1,2,4,8] [--runs 3]

The servers have the same files and threads; they are asked one after the other. Every client asks one
question after another, each of its own, greedily, streamed. Both servers decode answers of several clients
in one batch. `--before FOLDER` asks the `localspec` of another checkout as well. Time of the CPUs is
reported, too: it says more on a busy machine; on a virtual one, STOLEN is what others had of it meanwhile:
rows with more than a few per cent are worthless.
The cost per token is that of the same answers with and without HTTP.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

import psutil

from localspec.benchmark.llama_server import draft_flags, free_port, target_flags
from localspec.demo import bundled_pair, prompts
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.worker.client import Worker
from localspec.llama.cores import physical_cores
from localspec.types.events import Finished
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Request, Sampling
from localspec.units import columns

TOKENS = 64
PER_CLIENT = 3  # questions


@dataclass(slots=True)
class Figures:
    """What one server did for N clients, run by run."""

    requests_per_s: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)  # per token
    stolen: list[float] = field(default_factory=list)  # part of the CPUs' time


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs."""

    port: int
    process: psutil.Process

    def cpu_s(self) -> float:
        """Return the time that it and its children have had of the CPUs."""
        times = [each.cpu_times() for each in (self.process, *self.process.children(recursive=True))]
        return float(sum(each.user + each.system for each in times))


@contextmanager
def started(command: Sequence[str], port: int) -> Iterator[Server]:
    """Start a server and wait until it answers."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet) as process:
        try:
            while not _is_ready(port):
                assert process.poll() is None, f"{command[0]} has ended"
                time.sleep(0.2)
            yield Server(port, psutil.Process(process.pid))
        finally:
            process.terminate()


def _is_ready(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def ask(port: int, prompt: str) -> tuple[float, int]:
    """Ask a question; return the seconds to the first token, and the tokens."""
    body = {
        "messages": [{"role": "system", "content": "Be helpful."}, {"role": "user", "content": prompt}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = HTTPConnection("127.0.0.1", port, timeout=300)
    began, first_s, tokens = time.perf_counter(), 0.0, 0
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if not first_s and re.search(rb'"content":\s*"[^"]', line):
            first_s = time.perf_counter() - began
        if b'"usage":' in line and b'"usage":null' not in line:
            tokens = json.loads(line.removeprefix(b"data: "))["usage"]["completion_tokens"]
    connection.close()
    return first_s, tokens


def crowd(server: Server, clients: int, figures: Figures) -> None:
    """Let N clients ask at once."""
    questions = [prompt.prompt for prompt in prompts()]
    results: list[tuple[float, int]] = []

    def client(number: int) -> None:
        for turn in range(PER_CLIENT):
            question = questions[(number * PER_CLIENT + turn) % len(questions)]
            results.append(ask(server.port, question))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    began, cpu_s, stolen_s = time.perf_counter(), server.cpu_s(), _stolen_s()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    figures.requests_per_s.append(len(results) / seconds)
    tokens = sum(tokens for _, tokens in results)
    figures.tokens_per_s.append(tokens / seconds)
    figures.cpu_ms.append(1000 * (server.cpu_s() - cpu_s) / tokens)
    figures.stolen.append((_stolen_s() - stolen_s) / seconds / (os.cpu_count() or 1))
    figures.first_s += [first_s for first_s, _ in results]


def _stolen_s() -> float:
    return float(getattr(psutil.cpu_times(), "steal", 0.0))  # Linux alone reports it


def overhead_us(port: int, target: ModelOptions, runs: int) -> float:
    """Return what a token of an answer costs more through the server than from the engine's process."""
    differences = []
    with Worker.open(OpenPlan(target)) as worker:
        for prompt in prompts()[: 4 * runs]:
            messages = (Message("system", "Be helpful."), Message("user", prompt.prompt))
            request = Request(messages, Sampling(temperature=0), EngineSettings(mode="off"), TOKENS)
            began = time.perf_counter()
            *_, end = worker.generate(request)
            direct_s = time.perf_counter() - began
            assert isinstance(end, Finished)
            began = time.perf_counter()
            ask(port, prompt.prompt)
            served_s = time.perf_counter() - began
            differences.append((served_s - direct_s) / end.summary.tokens)
    return 1e6 * median(differences)


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.serve", description=__doc__)
    add = parser.add_argument
    add("-m", type=Path, default=bundled_pair()[0])
    add("-md", type=Path, default=bundled_pair()[1])
    add("--llama-server", type=Path)
    add("--before", type=Path, metavar="FOLDER")
    add("--clients", default="1,2,4,8")
    add("--runs", type=int, default=3)
    add("-t", type=int, default=physical_cores())
    args = parser.parse_args()
    threads = args.t
    target = ModelOptions(args.m, context=8192, threads=threads)
    draft = ModelOptions(args.md, context=8192, threads=threads)
    ours = [sys.executable, "-m", "localspec", "serve", "--no-fit", "-c", "8192", "-t", str(threads)]
    ours += ["-np", str(max(map(int, args.clients.split(",")))), "-m", str(args.m)]
    modes = {"off": ["--mode", "off"], "auto": ["-md", str(args.md)]}
    commands = {f"localspec {mode}": [*ours, *flags] for mode, flags in modes.items()}
    if args.before is not None:
        at = ["env", f"PYTHONPATH={args.before}"]
        commands |= {f"before {mode}": [*at, *ours, *flags] for mode, flags in modes.items()}
    if args.llama_server is not None:
        theirs = [str(args.llama_server), "--no-ui", "--offline", "--parallel", "8"]
        theirs += [word for flag in target_flags(target) for word in flag]
        with_draft = [word for flag in draft_flags(target, draft, threads) for word in flag]
        commands |= {"llama-server": theirs, "llama-server draft": [*theirs, *with_draft]}
    with ExitStack() as running:
        servers = {
            name: running.enter_context(started([*command, "--port", str(port)], port))
            for name, command in commands.items()
            for port in [free_port()]
        }
        rows = [["CLIENTS", "SERVER", "REQUESTS/S", "TOKENS/S", "FIRST TOKEN", "WORST", "CPU", "STOLEN"]]
        for clients in map(int, args.clients.split(",")):
            found = {name: Figures() for name in servers}
            for run in range(args.runs + 1):  # the first is to warm up
                for name, server in servers.items():
                    crowd(server, clients, found[name] if run else Figures())
            rows += [[str(clients), name, *_cells(figures)] for name, figures in found.items()]
        print("\n".join(columns(rows, frozenset(range(2, 8)))))
        print(f"HTTP costs {overhead_us(servers['localspec off'].port, target, args.runs):.0f} us a token")
    print(f"load of this machine's {os.cpu_count()} cores: {os.getloadavg()[0]:.1f}")
    return 0


def _cells(figures: Figures) -> list[str]:
    speeds = [f"{median(values):.1f}" for values in (figures.requests_per_s, figures.tokens_per_s)]
    first = [f"{1000 * seconds:.0f} ms" for seconds in (median(figures.first_s), max(figures.first_s))]
    return [*speeds, *first, f"{median(figures.cpu_ms):.2f} ms", f"{median(figures.stolen):.0%}"]


if __name__ == "__main__":
    sys.exit(main())
