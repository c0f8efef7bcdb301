"""From the start of `localspec run` to its first token, against llama.cpp's own load and prefill.

python -m tests.benchmarks.first_token [--modes auto,off,sd] [--runs 7]
    [--llama-bench PATH] [--llama-server PATH]

Runs alternate. The bare program is a fresh Python that loads the same files and reads the same tokens through
llama.cpp, and nothing else; `--llama-bench` adds llama.cpp's own program, from its start to its end, which
loads the target and reads as many tokens; `--llama-server` its server, from its start to the end of an answer
of one token. What counts is the time above the bare program's load and prefill.
A first run, which does not count, fills the disk's cache and leaves what calls cost to those that follow.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from localspec.benchmark.harness import Question
from localspec.benchmark.llama_server import LlamaServer
from localspec.demo import bundled_pair, prompts
from localspec.llama.cores import physical_cores
from localspec.llama.model import Model
from localspec.types.models import ModelOptions
from localspec.types.request import Message, Request, Sampling

TARGET_S = 0.35
LONG = 500  # tokens
WITHOUT_DRAFT = ("off", "ngram")
BARE = """
import ctypes, json, sys, time
started = time.perf_counter()
import llama_cpp.llama_cpp as api
imported = time.perf_counter()
order = json.loads(sys.argv[1])
quiet = api.llama_log_callback(lambda *_: None)
api.llama_log_set(quiet, None)
api.llama_backend_init()
loading = time.perf_counter()
contexts = []
for path in order["models"]:
    model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
    parameters = api.llama_context_default_params()
    parameters.n_ctx, parameters.n_threads, parameters.n_threads_batch = 0, order["threads"], order["threads"]
    contexts.append(api.llama_init_from_model(model, parameters))
loaded = time.perf_counter()
tokens = (ctypes.c_int32 * len(order["tokens"]))(*order["tokens"])
assert api.llama_decode(contexts[0], api.llama_batch_get_one(tokens, len(tokens))) == 0
api.llama_synchronize(contexts[0])
print(json.dumps([imported - started, loaded - loading, time.perf_counter() - loaded]))
"""


@dataclass(slots=True)
class Times:
    """Seconds of the repeated runs with one mode and one prompt."""

    run: list[float] = field(default_factory=list)
    bare: list[tuple[float, float, float, float]] = field(default_factory=list)
    """The bare program's whole, its import, its load and its prefill."""
    bench: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)

    @property
    def above(self) -> list[float]:
        """Return for each pair of runs what the first token comes later than load and prefill take."""
        return [run - load - prefill for run, (_, _, load, prefill) in zip(self.run, self.bare, strict=True)]


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", type=Path, default=bundled_pair()[0])
    parser.add_argument("-md", "--model-draft", type=Path, default=bundled_pair()[1])
    parser.add_argument("--modes", default="auto,off,sd")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--llama-bench", type=Path, help="llama.cpp's own program")
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's own server")
    parser.add_argument("--imports", type=int, default=0, help="list so many of the slowest imports")
    args = parser.parse_args()
    asked = _prompts(args.model)
    with TemporaryDirectory() as home:
        environment = os.environ | {f"LOCALSPEC_{kind}_DIR": home for kind in ("CONFIG", "DATA", "STATE")}
        for name, (prompt, tokens) in asked.items():
            for mode in args.modes.split(","):
                times = _measured(args, mode, prompt, tokens, environment)
                print(f"\n{name}, {len(tokens)} tokens, --mode {mode}: median of {args.runs} (from, to)")
                _report(times)
        if args.imports:
            command = _command(args, "off", asked["short"][0])
            _print_imports([command[0], "-X", "importtime", *command[1:]], environment, args.imports)


def _prompts(model: Path) -> dict[str, tuple[str, list[int]]]:
    """Return a short prompt and a long one, each with its tokens."""
    opened = Model.open(ModelOptions(model))
    words = " ".join(item.prompt for item in prompts() * 20).split()
    found = {"short": "Why is the sky blue?"}
    for count in range(1, len(words)):
        found["long"] = " ".join(words[:count])
        if len(opened.vocabulary.tokenize(found["long"])) >= LONG:
            break
    tokens = {name: opened.template.encode_chat((Message("user", text),)) for name, text in found.items()}
    opened.close()
    return {name: (text, tokens[name]) for name, text in found.items()}


def _command(args: argparse.Namespace, mode: str, prompt: str) -> list[str]:
    models = ["-m", str(args.model), "-md", str(args.model_draft)]
    options = ["--mode", mode, "--temp", "0", "-n", "1", "-p", prompt]
    return [sys.executable, "-m", "localspec", "run", *models, *options]


def _measured(
    args: argparse.Namespace, mode: str, prompt: str, tokens: list[int], environment: dict[str, str]
) -> Times:
    times = Times()
    files = [args.model] if mode in WITHOUT_DRAFT else [args.model, args.model_draft]
    order = {"models": list(map(str, files)), "tokens": tokens, "threads": physical_cores()}
    for number in range(args.runs + 1):
        run = first_byte_s(_command(args, mode, prompt), environment)
        started = time.perf_counter()
        told = subprocess.run(
            [sys.executable, "-c", BARE, json.dumps(order)], check=True, capture_output=True, text=True
        ).stdout
        whole = time.perf_counter() - started
        bench = 0.0 if args.llama_bench is None else _bench_s(args, len(tokens))
        server = 0.0 if args.llama_server is None else _server_s(args, files, prompt)
        if number:
            imports, load, prefill = json.loads(told)
            times.run.append(run)
            times.bare.append((whole, imports, load, prefill))
            times.bench.append(bench)
            times.server.append(server)
    return times


def first_byte_s(command: Sequence[str], environment: dict[str, str]) -> float:
    """Return the seconds from the start of a program to the first byte that it writes."""
    started = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        found = process.stdout.read(1)
        seconds = time.perf_counter() - started
        _, errors = process.communicate()
    if not found:
        raise SystemExit(f"error: it wrote nothing: {errors.decode()}")
    return seconds


def _bench_s(args: argparse.Namespace, tokens: int) -> float:
    command = [args.llama_bench, "-m", args.model, "-p", str(tokens), "-n", "0", "-r", "1", "--no-warmup"]
    started = time.perf_counter()
    subprocess.run(
        [*map(str, command), "-t", str(physical_cores()), "-o", "json"], check=True, capture_output=True
    )
    return time.perf_counter() - started


def _server_s(args: argparse.Namespace, files: Sequence[Path], prompt: str) -> float:
    target, draft = ModelOptions(files[0]), ModelOptions(files[1]) if len(files) > 1 else None
    request = Request((Message("user", prompt),), Sampling(0.0), max_tokens=1)
    started = time.perf_counter()
    with closing(LlamaServer("llama-server", args.llama_server, target, draft)) as server:
        server.answer(Question("first", request))
        return time.perf_counter() - started


def _report(times: Times) -> None:
    whole, imports, load, prefill = zip(*times.bare, strict=True)
    rows: list[tuple[str, Sequence[float]]] = [
        ("localspec run, to the first byte", times.run),
        ("bare program, start to end", whole),
        ("  of it importing llama.cpp", imports),
        ("  load", load),
        ("  prefill", prefill),
    ]
    if any(times.bench):
        rows.append(("llama-bench, start to end", times.bench))
    if any(times.server):
        rows.append(("llama-server, to its first token", times.server))
    for name, seconds in rows:
        print(f"  {name:33} {median(seconds):.3f} s  ({min(seconds):.3f}, {max(seconds):.3f})")
    above = times.above
    verdict = "met" if median(above) <= TARGET_S else "missed"
    print(
        f"  {'first byte above load and prefill':33} {median(above):.3f} s  "
        f"({min(above):.3f}, {max(above):.3f})  target {TARGET_S}: {verdict}"
    )


def _print_imports(command: Sequence[str], environment: dict[str, str], count: int) -> None:
    """Print the slowest imports with everything below them; an entry of another line is in that, too."""
    told = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stderr
    lines = [line.removeprefix("import time:").split("|") for line in told.splitlines() if "|" in line]
    found = [(int(total), int(own), name) for own, total, name in lines if own.strip().isdigit()]
    print("\nimports of --mode off, milliseconds with everything below and alone")
    for total, own, name in sorted(found, reverse=True)[:count]:
        print(f"  {total / 1e3:7.1f}  {own / 1e3:7.1f}  {name}")


if __name__ == "__main__":
    main()
