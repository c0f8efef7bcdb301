"""Plain decoding and reading a prompt, against llama-bench on the same file, threads and depth, in turns.

python -m tests.benchmarks.plain --llama-bench PATH [-m FILE] [--turns 8]

llama-bench decodes tokens of chance and looks at none; ours are chosen, made text of and handed out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from localspec.benchmark.statistics import ratio_of_sums
from localspec.demo import bundled_pair, prompts
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.llama.cores import physical_cores
from localspec.types.events import Finished
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Request, Sampling

DEPTH = 512


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of one token, written and read."""

    written_s: float
    read_s: float


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llama-bench", type=Path, required=True)
    parser.add_argument("-m", "--model", type=Path, default=bundled_pair()[0])
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=8)
    args = parser.parse_args()
    options = ModelOptions(args.model, context=DEPTH + args.tokens + 64, threads=args.threads)
    ours: list[Pace] = []
    theirs: list[Pace] = []
    with Runtime.open(OpenPlan(options)) as runtime:
        request = asked(runtime, args.tokens)
        our_pace(runtime, request)
        for turn in range(args.turns):
            if turn % 2:
                ours.append(our_pace(runtime, request))
            theirs.append(Pace(1 / their_rate(args, args.tokens, DEPTH), 1 / their_rate(args, 0, 0)))
            if not turn % 2:
                ours.append(our_pace(runtime, request))
    for name in ("written_s", "read_s"):
        mine, other = ([getattr(pace, name) for pace in paces] for paces in (ours, theirs))
        value, low, high = ratio_of_sums(other, mine)
        rates = f"{len(mine) / sum(mine):.1f} and {len(other) / sum(other):.1f} tokens/s"
        print(f"{name.removesuffix('_s'):8} {rates}: {value:.3f} of llama-bench ({low:.3f}-{high:.3f})")


def asked(runtime: Runtime, tokens: int) -> Request:
    """Return a text of `DEPTH` tokens to continue with."""
    text = " ".join(item.prompt for item in prompts()) * 8
    head = runtime.decode(runtime.encode(text)[:DEPTH])
    while len(runtime.encode(head)) > DEPTH:
        head = head[:-1]
    return Request(head, Sampling(temperature=0.0), EngineSettings(mode="off"), tokens, reuses_cache=False)


def our_pace(runtime: Runtime, request: Request) -> Pace:
    """Decode once from empty caches."""
    for event in runtime.generate(request):
        if isinstance(event, Finished):
            done = event.summary
            return Pace(done.decode_s / (done.tokens - 1), done.prompt_s / done.prompt_tokens)
    raise AssertionError("an answer ends")


def their_rate(args: argparse.Namespace, tokens: int, depth: int) -> float:
    """Return llama-bench's tokens per second of writing at a depth, or of reading without `tokens`."""
    wish = ["-p", "0", "-n", str(tokens), "-d", str(depth)] if tokens else ["-p", str(DEPTH), "-n", "0"]
    command = [args.llama_bench, "-m", args.model, "-t", str(args.threads), "-r", "1", "-o", "json", *wish]
    found = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    return float(json.loads(found.stdout)[0]["avg_ts"])


if __name__ == "__main__":
    main()
