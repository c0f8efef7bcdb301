"""`localspec serve` beside llama.cpp's own server, with several clients at once.

python -m tests.benchmarks.serve [-m FILE -md FILE] --llama-server PATH [--clients 1,8] [--prompts 40,2000]

A cell is a number of clients, a length of prompts in tokens, and a temperature. In each, the contenders are
asked in turns, `--runs` times: LocalSpec in some modes, `llama-server` with the same files, threads and
context, and `llama-server-draft` with its own speculation (`--contenders`). Every client asks one question
after another, each of its own, streamed; answers do not end before `--tokens`. Printed of each cell:

TOKENS/S of all clients together, and that divided by llama-server's; the time to the FIRST token, and the
WORST one; the worst WAIT between two pieces of a text; the SHARE of the client that had least, of the mean
speed at which clients were written to; the CPU's time for a token. On a virtual machine, STOLEN is what
others had of the CPUs meanwhile: rows with more than a few per cent are worthless. All are medians of runs,
but for the WORST.

`--minutes` ends the script after the cell in which that time is over. `--before FOLDER` asks the `localspec`
of another checkout as well, and `--http` measures what a token costs more than without HTTP.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from itertools import pairwise, product
from pathlib import Path
from statistics import mean, median
from typing import Any, TypeVar

import psutil

from localspec.benchmark.llama_server import draft_flags, free_port, target_flags
from localspec.demo import bundled_pair, prompts
from localspec.gguf import read_model
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.worker.client import Worker
from localspec.types.events import Finished
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Request, Sampling
from localspec.units import columns

ROOT = Path(__file__).parents[2]
CONTEXT = 20_480  # of all answers
SLOTS = 8
SAMPLING = {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.0}
Number = TypeVar("Number", int, float)
HEADINGS = "CLIENTS PROMPT TEMP SERVER TOKENS/S x FIRST WORST WAIT SHARE CPU STOLEN".split()


@dataclass(frozen=True, slots=True)
class Cell:
    """How a crowd asks."""

    clients: int
    prompt: int  # tokens
    temperature: float


@dataclass(slots=True)
class Answer:
    """What a client saw of an answer."""

    tokens: int = 0
    began_s: float = field(default_factory=time.perf_counter)
    pieces_s: list[float] = field(default_factory=list)  # when pieces of text came

    @property
    def first_s(self) -> float:
        """Return the seconds to the first piece."""
        return self.pieces_s[0] - self.began_s if self.pieces_s else 0.0

    @property
    def written_s(self) -> float:
        """Return the seconds from the first piece to the last."""
        return self.pieces_s[-1] - self.pieces_s[0] if self.pieces_s else 0.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What one server did for a crowd."""

    tokens_per_s: float
    first_s: float
    worst_first_s: float
    wait_s: float
    share: float
    cpu_ms: float  # per token
    stolen: float  # part of the CPUs' time


@dataclass(frozen=True, slots=True)
class Server:
    """A contender: a server that runs, and how it is asked."""

    port: int
    process: psutil.Process
    settings: Mapping[str, object] = field(default_factory=dict)  # of its requests

    def cpu_s(self) -> float:
        """Return the time that it and its children have had of the CPUs."""
        times = [each.cpu_times() for each in (self.process, *self.process.children(recursive=True))]
        return float(sum(each.user + each.system for each in times))


@contextmanager
def started(command: Sequence[str], port: int, checkout: Path) -> Iterator[psutil.Process]:
    """Start a server and wait until it answers; Python looks for modules in the checkout first."""
    quiet = subprocess.DEVNULL
    environment = os.environ | {"GOMP_SPINCOUNT": "1000"}  # as LocalSpec has it: libgomp's own is far slower
    with subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environment, cwd=checkout) as process:
        try:
            while not _is_ready(port):
                assert process.poll() is None, f"{command[0]} has ended"
                time.sleep(0.2)
            yield psutil.Process(process.pid)
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


class Crowd:
    """Clients of servers that have the same model."""

    def __init__(self, model: Path, tokens: int, answers: int) -> None:
        """Take the tokens of an answer, and the number of answers of a crowd, or one for each client."""
        self.tokens, self.answers = tokens, answers
        known = read_model(model).values
        ends = [number for name, number in known.items() if name.endswith("_token_id")]
        self._no_end = {str(number): -100 for number in ends}  # so that all answers have as many tokens
        names = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md")
        self._text = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in names)
        self._numbers = 0

    def texts(self, port: int, cell: Cell) -> list[list[str]]:
        """Return the questions of each client; none has been asked before, or begins as another does."""
        each = max(1, self.answers // cell.clients)
        return [[self._new_text(port, cell.prompt) for _ in range(each)] for _ in range(cell.clients)]

    def _new_text(self, port: int, length: int) -> str:
        self._numbers += 1
        start = self._numbers * 7919 % (len(self._text) - 16 * length)
        text = f"{self._numbers}. Continue: {self._text[start : start + 16 * length]}"
        tokens = _post(port, "/tokenize", {"content": text})["tokens"]
        return str(_post(port, "/detokenize", {"tokens": tokens[:length]})["content"])

    def ask(self, server: Server, text: str, temperature: float) -> Answer:
        """Ask a question, and read the stream."""
        body = {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": self.tokens,
            "logit_bias": self._no_end,
            "temperature": temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            **SAMPLING,
            **server.settings,
        }
        connection, answer = HTTPConnection("127.0.0.1", server.port, timeout=600), Answer()
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line.removeprefix(b"data: "))
            if any(choice["delta"].get("content") for choice in chunk.get("choices", ())):
                answer.pieces_s.append(time.perf_counter())
            if chunk.get("usage"):
                answer.tokens = chunk["usage"]["completion_tokens"]
        connection.close()
        assert answer.tokens, f"no answer: {line!r}"
        return answer

    def run(self, server: Server, cell: Cell) -> Figures:
        """Let the clients ask at once."""
        texts = self.texts(server.port, cell)
        found: list[list[Answer]] = [[] for _ in texts]

        def client(number: int) -> None:
            for text in texts[number]:
                found[number].append(self.ask(server, text, cell.temperature))

        threads = [threading.Thread(target=client, args=(number,)) for number in range(cell.clients)]
        began, cpu_s, stolen_s = time.perf_counter(), server.cpu_s(), _stolen_s()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
        answers = [answer for of_client in found for answer in of_client]
        tokens = sum(answer.tokens for answer in answers)
        firsts = [answer.first_s for answer in answers]
        speeds = [_speed(of_client) for of_client in found]
        return Figures(
            tokens / seconds,
            median(firsts),
            max(firsts),
            max((b - a for answer in answers for a, b in pairwise(answer.pieces_s)), default=0.0),
            min(speeds) / mean(speeds),
            1000 * (server.cpu_s() - cpu_s) / tokens,
            (_stolen_s() - stolen_s) / seconds / (os.cpu_count() or 1),
        )


def _speed(answers: Sequence[Answer]) -> float:
    """Return the tokens per second at which a client was written to."""
    return sum(answer.tokens for answer in answers) / max(1e-3, sum(answer.written_s for answer in answers))


def _post(port: int, path: str, body: object) -> dict[str, Any]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    found: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return found


def _stolen_s() -> float:
    return float(getattr(psutil.cpu_times(), "steal", 0.0))  # Linux alone reports it


def overhead_us(server: Server, target: ModelOptions, crowd: Crowd) -> float:
    """Return what a token of an answer costs more through the server than from the engine's process."""
    differences = []
    with Worker.open(OpenPlan(target)) as worker:
        for prompt in prompts()[:12]:
            messages = (Message("user", prompt.prompt),)
            settings = EngineSettings(mode="off")
            request = Request(messages, Sampling(temperature=0), settings, crowd.tokens)
            began = time.perf_counter()
            *_, end = worker.generate(request)
            direct_s = time.perf_counter() - began
            assert isinstance(end, Finished)
            began = time.perf_counter()
            crowd.ask(server, prompt.prompt, 0.0)
            served_s = time.perf_counter() - began
            differences.append((served_s - direct_s) / end.summary.tokens)
    return 1e6 * median(differences)


def main() -> int:
    """Print the figures."""
    args = _parsed()
    target = ModelOptions(args.m, context=CONTEXT, threads=args.t)
    draft = ModelOptions(args.md, context=CONTEXT, threads=args.t)
    crowd, ends = Crowd(args.m, args.tokens, args.answers), time.monotonic() + 60 * args.minutes
    cells = [Cell(*each) for each in product(args.clients, args.prompts, args.temperatures)]
    with ExitStack() as running:
        contenders = _contenders(running, args, target, draft)
        for server in contenders.values():
            crowd.run(server, replace(cells[-1], prompt=40))  # to warm up
        for cell in cells:
            found: dict[str, list[Figures]] = {name: [] for name in contenders}
            for _ in range(args.runs):
                for name, server in contenders.items():
                    found[name].append(crowd.run(server, cell))
            rows = [[*map(str, (cell.clients, cell.prompt, cell.temperature)), name] for name in found]
            baseline = _median(found.get("llama-server", next(iter(found.values()))))
            rows = [[*row, *_cells(_median(found[row[-1]]), baseline)] for row in rows]
            numbers = frozenset({0, 1, 2, *range(4, len(HEADINGS))})
            print("\n".join(columns([HEADINGS, *rows], numbers)), end="\n\n", flush=True)
            if time.monotonic() > ends:
                print("the time is over")
                break
        if args.http:
            server = next(iter(contenders.values()))
            print(f"HTTP costs {overhead_us(server, target, crowd):.0f} us a token")
    print(f"load of this machine's {os.cpu_count()} cores: {os.getloadavg()[0]:.1f}")
    return 0


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("-m", type=Path, default=bundled_pair()[0])
    add("-md", type=Path, default=bundled_pair()[1])
    add("--llama-server", type=Path)
    add("--before", type=Path, metavar="FOLDER")
    add("--contenders", default="off,sd,auto,llama", help="off, sd, ssd, ngram, auto, llama, llama-draft")
    add("--clients", type=_numbers(int), default="1,2,4,8")
    add("--prompts", type=_numbers(int), default="40,2000", help="tokens")
    add("--temperatures", type=_numbers(float), default="0,0.8")
    add("--tokens", type=int, default=48, help="of an answer")
    add("--answers", type=int, default=8, help="of all clients in a run")
    add("--runs", type=int, default=2)
    add("--minutes", type=float, default=60.0)
    add("--http", action="store_true")
    add("--flags", default="", help="more flags of `localspec serve`")
    add("-t", type=int, default=0, help="threads; 0 leaves that to each server")
    return parser.parse_args()


def _numbers(kind: Callable[[str], Number]) -> Callable[[str], list[Number]]:
    def read(text: str) -> list[Number]:
        return [kind(part) for part in text.split(",")]

    return read


def _contenders(
    running: ExitStack, args: argparse.Namespace, target: ModelOptions, draft: ModelOptions
) -> dict[str, Server]:
    """Start the servers that are needed; one of LocalSpec's serves all its modes."""
    ours = [sys.executable, "-m", "localspec", "serve", "-c", str(CONTEXT)]
    ours += ["-t", str(args.t)] if args.t else []
    ours += ["-np", str(SLOTS), "-m", str(args.m.resolve()), "-md", str(args.md.resolve())]
    ours += args.flags.split()
    theirs = [
        str(args.llama_server and args.llama_server.resolve()),
        "--no-ui",
        "--offline",
        "--parallel",
        str(SLOTS),
    ]
    theirs += [word for flag in target_flags(target) for word in flag]
    known = read_model(args.m)
    if known.integer("{arch}.context_length") * SLOTS < CONTEXT:  # llama-server would refuse longer prompts
        theirs += ["--override-kv", f"{known.architecture}.context_length=int:{CONTEXT}"]
    with_draft = [word for flag in draft_flags(target, draft, args.t) for word in flag]
    commands = {"localspec": ours, "llama": theirs, "llama-draft": [*theirs, *with_draft]}
    if args.before is not None:
        commands["before"] = ours
    asked = [name for name in args.contenders.split(",") if args.llama_server or "llama" not in name]
    modes = [name for name in asked if name not in commands]
    needed = [*("localspec", "before")[: 1 + (args.before is not None)], *set(asked).difference(modes)]
    ports = {name: free_port() for name in needed}
    processes = {
        name: running.enter_context(
            started([*commands[name], "--port", str(port)], port, args.before if name == "before" else ROOT)
        )
        for name, port in ports.items()
    }
    found = {}
    for name in asked:
        if name in processes:
            found[name.replace("llama", "llama-server")] = Server(ports[name], processes[name])
            continue
        settings = {} if name == "auto" else {"speculative": {"mode": name}}
        for program in ("localspec", "before"):
            if program in processes:
                found[f"{program} {name}"] = Server(ports[program], processes[program], settings)
    return found


def _median(figures: Sequence[Figures]) -> Figures:
    """Return the medians, but the worst of the waits for a first token."""
    each = {name: [getattr(one, name) for one in figures] for name in Figures.__dataclass_fields__}
    return Figures(**{name: max(v) if name == "worst_first_s" else median(v) for name, v in each.items()})


def _cells(figures: Figures, baseline: Figures) -> list[str]:
    waits = (figures.first_s, figures.worst_first_s, figures.wait_s)
    return [
        f"{figures.tokens_per_s:.1f}",
        f"{figures.tokens_per_s / baseline.tokens_per_s:.2f}",
        *(f"{1000 * seconds:.0f} ms" for seconds in waits),
        f"{figures.share:.2f}",
        f"{figures.cpu_ms:.2f} ms",
        f"{figures.stolen:.0%}",
    ]


if __name__ == "__main__":
    sys.exit(main())
