"""Look for greedy answers that differ from plain decoding, on the bundled pair.

python -m tests.benchmarks.exactness              everything: ten minutes on two cores
python -m tests.benchmarks.exactness stress 600   only N random runs: settings, delays, cancels, turns
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from localspec.demo import DemoPrompt, bundled_pair, prompts
from localspec.types.drafts import DraftOrigin
from localspec.types.request import EngineSettings, Mode
from tests.benchmarks.pair import Pair, tokens_of
from tests.benchmarks.stress import stress
from tests.conftest import QUANTIZE

SPECULATING: tuple[Mode, ...] = ("ngram", "sd", "ssd")


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an answer leaves that of plain decoding; the gap is between the two tokens, in logits."""

    mode: Mode
    prompt: str
    position: int
    expected: str
    found: str
    gap: float


@dataclass(slots=True)
class Comparison:
    """How the answers of one mode compare with plain decoding."""

    mode: Mode
    answers: int = 0
    tokens: int = 0
    accepted: int = 0
    hits: int = 0
    differences: list[Difference] = field(default_factory=list)


def compare(pair: Pair, chosen: Sequence[DemoPrompt], mode: Mode, tokens: int) -> Comparison:
    """Decode every prompt in a mode; every other one drafts whether it pays or not."""
    result = Comparison(mode)
    for number, item in enumerate(chosen):
        prompt = pair.encode(item.prompt)
        expected = pair.plain(prompt, tokens)
        settings = EngineSettings(mode=mode, min_confidence=0.3 if number % 2 else None)
        rounds = pair.rounds(prompt, settings, tokens)
        found = tokens_of(rounds)
        result.answers += 1
        result.tokens += len(found)
        result.accepted += sum(round_.stats.accepted for round_ in rounds)
        result.hits += sum(round_.stats.origin is DraftOrigin.AHEAD for round_ in rounds)
        if found != expected:
            result.differences.append(_difference(pair, mode, item.prompt, prompt, (expected, found)))
    return result


def _difference(
    pair: Pair, mode: Mode, question: str, prompt: list[int], answers: tuple[list[int], list[int]]
) -> Difference:
    expected, found = answers
    shorter = min(len(expected), len(found))
    place = next((i for i in range(shorter) if expected[i] != found[i]), shorter)
    one, other = expected[place : place + 1], found[place : place + 1]
    gap = pair.gap([*prompt, *expected[:place]], one[0], other[0]) if one and other else float("inf")
    return Difference(mode, question, place, pair.text(one), pair.text(other), gap)


def print_comparisons(name: str, target: Path, draft: Path, tokens: int) -> None:
    """Compare all prompts in all modes."""
    with closing(Pair(target, draft)) as pair:
        for mode in SPECULATING:
            found = compare(pair, prompts(), mode, tokens)
            done = f"{found.answers} answers, {found.tokens} tokens, {found.accepted} from drafts"
            print(
                f"{name} {mode:5}: {done}, {found.hits} hits, {len(found.differences)} differences",
                flush=True,
            )
            for item in found.differences:
                tokens_found = f"{item.expected!r} | {item.found!r}"
                print(f"  {item.prompt!r} token {item.position}: {tokens_found}, gap {item.gap:.4f}")


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=("all", "prompts", "stress"), default="all")
    parser.add_argument("runs", nargs="?", type=int, default=600, help="random runs")
    parser.add_argument("-n", "--tokens", type=int, default=120, help="most tokens of an answer to a prompt")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    target, draft = bundled_pair()
    with tempfile.TemporaryDirectory() as folder:
        exact = Path(folder) / "demo-target-q8_0.gguf"
        subprocess.run([sys.executable, "-c", QUANTIZE, target, exact], check=True, capture_output=True)
        if args.part in {"all", "prompts"}:
            print_comparisons("Q8_0", exact, draft, args.tokens)
            print_comparisons("BF16", target, draft, args.tokens)
        if args.part in {"all", "stress"}:
            started = time.perf_counter()
            found = stress(exact, draft, args.runs, args.seed)
            print(found)
            print(f"{len(found.differences)} differences in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
