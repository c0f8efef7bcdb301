r"""Measure a target and draft pair on public prompt sets, in the target's own chat format.

    python -m training.measure_sets PROMPTS OUT --target target.gguf --draft draft.gguf

PROMPTS holds humaneval.jsonl, mt_bench.jsonl and gsm8k-test-200.jsonl; OUT receives sets.json and sets.md.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from localspec.types.request import Message
from training.measure import PROMPT_TOKENS, Pair, measure_task
from training.measure_report import Report, write_report
from training.progress import log, show_progress
from training.scorer import Scorer

Ask = Callable[[Mapping[str, Any]], str]
SETS: Mapping[str, tuple[str, Ask]] = {
    "HumanEval": (
        "humaneval.jsonl",
        lambda record: (
            f"Complete the following Python function:\n\n```python\n{record['prompt'].rstrip()}\n```"
        ),
    ),
    "MT-Bench": ("mt_bench.jsonl", lambda record: str(record["turns"][0])),
    "GSM8K": ("gsm8k-test-200.jsonl", lambda record: str(record["question"])),
}


def read_set(folder: Path, name: str, count: int, seed: int) -> list[str]:
    """Return a random sample of a set's questions."""
    file, ask = SETS[name]
    lines = (folder / file).read_text(encoding="utf-8").splitlines()
    sample = random.Random(seed).sample(lines, min(count, len(lines)))
    return [ask(json.loads(line)) for line in sample]


def measure_sets(given: argparse.Namespace, target: Scorer, draft: Scorer) -> Report:
    """Measure the pair on a sample of every set."""
    report = Report(given.target.name, given.draft.name, given.temperature, {})
    pair = Pair(target, draft, given.tokens, given.temperature, np.random.default_rng(given.seed))
    for name in SETS:
        questions = read_set(given.prompts, name, given.count, given.seed)
        prompts = [target.tokenize(target.render(Message("user", question))) for question in questions]
        result = measure_task(pair, [prompt for prompt in prompts if len(prompt) < PROMPT_TOKENS])
        report.tasks[name] = result
        log.info("%s: match %.4f, sampled %.4f", name, result.greedy_match, result.sampled_acceptance)
    return report


def main(argv: Sequence[str] | None = None) -> None:
    """Measure one pair."""
    show_progress()
    parser = argparse.ArgumentParser(
        prog="measure_sets", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", required=True, type=Path)
    parser.add_argument("--draft", required=True, type=Path)
    parser.add_argument("--count", type=int, default=12, help="prompts of each set")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(argv)
    with Scorer(given.target, given.threads) as target, Scorer(given.draft, given.threads) as draft:
        report = measure_sets(given, target, draft)
    write_report(report, given.out, "sets")


if __name__ == "__main__":
    main()
