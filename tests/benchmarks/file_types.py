"""What verification costs by the target's file type, and what speculation could gain from it.

python -m tests.benchmarks.file_types target-q4_1.gguf target-q8_0.gguf -md draft.gguf --acceptance 0.45

The same model in several types: llama-quantize --allow-requantize IN OUT TYPE (see build_llama_tools.sh).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from localspec.decoding.measurements import CostRequest
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.tuning.costs import call_costs
from localspec.types.models import ModelOptions

SIZES = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16)
DEPTH = 200
BUDGET_S = 1.5  # of one measurement; the files take turns

Curve = Mapping[int, float]


def main() -> None:
    """Parse the arguments, measure the files alternately, and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="+", type=Path)
    parser.add_argument("-md", "--model-draft", type=Path, required=True)
    parser.add_argument("--acceptance", type=float, default=0.45, help="of a draft token")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    with ExitStack() as stack:
        pairs = [stack.enter_context(opened(target, args)) for target in args.targets]
        verify: list[defaultdict[int, list[float]]] = [defaultdict(list) for _ in pairs]
        step: list[list[float]] = [[] for _ in pairs]
        wish = CostRequest(DEPTH, together=False, verify_sizes=SIZES, step_widths=(1,), budget_s=BUDGET_S)
        for _ in range(args.turns):
            for number, pair in enumerate(pairs):
                calls = call_costs(pair, wish)
                step[number].append(calls.step[0][1])
                for size, seconds in calls.verify:
                    verify[number][size].append(seconds)
    for target, curves, steps in zip(args.targets, verify, step, strict=True):
        curve = {size: median(seconds) for size, seconds in curves.items()}
        report(target, curve, median(steps), args.acceptance)


def opened(target: Path, args: argparse.Namespace) -> Runtime:
    """Open one of the files with the draft model."""
    options = ModelOptions(target, context=1024, threads=args.threads)
    return Runtime.open(OpenPlan(options, ModelOptions(args.model_draft, context=1024, threads=args.threads)))


def report(target: Path, verify: Curve, step_s: float, acceptance: float) -> None:
    """Print the costs of a file in those of one of its tokens, and the best gain of speculation."""
    one = verify[1]
    sizes = "  ".join(f"{size}: {verify[size] / one:.2f}" for size in SIZES[1:])
    lengths = [size - 1 for size in SIZES[1:]]
    gains = {length: gain(verify, step_s, acceptance, length) for length in lengths}
    best = max(gains, key=gains.__getitem__)
    print(f"{target.name}: one token {one * 1e3:.2f} ms, a draft step {step_s / one:.3f} of it")
    print(f"  tokens in a pass, in the cost of one: {sizes}")
    print(f"  at {acceptance:.2f} acceptance: x{gains[best]:.2f} of plain decoding, with K = {best}")


def gain(verify: Curve, step_s: float, acceptance: float, length: int) -> float:
    """Return the expected speed of drafts of a fixed length in that of plain decoding."""
    tokens = sum(acceptance**place for place in range(length + 1))
    return tokens * verify[1] / (verify[length + 1] + length * step_s)


if __name__ == "__main__":
    main()
