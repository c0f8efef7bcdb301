"""Compare plain, speculative and ahead-of-time decoding on two paced devices: real text and real threads.

python -m tests.benchmarks.paced --ratio 0.1              a draft step takes a tenth of a target pass
python -m tests.benchmarks.paced --ratio 0.2 --ways "sd,sd K=4,ssd B=16" --temp 0.8
python -m tests.benchmarks.paced --cards               at the pace of consumer cards: what Python leaves of it
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import isnan
from pathlib import Path

from localspec.benchmark.figures import Row, SpeedTable, table
from localspec.benchmark.harness import Anchor, OwnContender, Prompt, Question, Run, interleave, plain_anchor
from localspec.benchmark.prompts import read_prompts, spread
from localspec.benchmark.statistics import Interval
from localspec.demo import prompts
from localspec.types.request import EngineSettings, Request, Sampling
from tests.benchmarks.python_share import rows_from
from tests.benchmarks.simulation import opened, pair_parser

OFF = EngineSettings(mode="off")
SD = EngineSettings(mode="sd")
SSD = EngineSettings(mode="ssd")
WAYS = {
    "sd": SD,
    **{f"sd K={length}": replace(SD, draft_length=length, min_confidence=0.0) for length in (2, 4, 8)},
    **{f"ssd B={budget}": replace(SSD, fan_out_budget=budget) for budget in (4, 8, 16, 24)},
}
TIMES = ("verify", "draft", "wait", "python")
LEAST_OF_BOUND = {4.0: 0.93, 7.0: 0.96, 25.0: 0.99}
"""The wanted share of a round in which the models work, by a pass's milliseconds: a mixture with 3B active,
an 8B and a 30B on a consumer card."""
STEPS = (0.1, 0.2)
ROWS = (("8,192", "full", None), ("152,000", "full", 152_000), ("chosen by it", "device", None))
"""Whole rows of two vocabularies, or the likeliest tokens alone, as a GPU chooses them."""


def main() -> None:
    """Parse the arguments and run."""
    parser = pair_parser(__doc__)
    parser.set_defaults(paced=0.1)
    parser.add_argument("--ratio", type=float, dest="paced", metavar="RATIO", help="the same as --paced")
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--prompts", type=int, default=4, help="of each task")
    parser.add_argument("--files", type=Path, nargs="+", default=(), help="prompts, not the bundled ones")
    parser.add_argument("-n", "--tokens", type=int, default=96)
    parser.add_argument("--ways", type=chosen_ways, help="which of: " + ", ".join(WAYS))
    parser.add_argument("--cards", action="store_true", help="passes of 4 to 25 ms, two sizes of vocabulary")
    args = parser.parse_args()
    if args.cards:
        compare_cards(args)
    else:
        compare_ways(args)


def compare_ways(args: argparse.Namespace) -> None:
    """Print the figures of every way, by task."""
    args.ways = args.ways or WAYS
    runs, anchors = measured(args)
    names = ["off", *args.ways]
    found = table(runs, anchors, dict.fromkeys(names))
    if not found.comparable:
        print(found.reason)
    print(f"drift at worst {found.drift.worst:.1%}, disturbed prompts: {len(found.drift.disturbed)}")
    for task in dict.fromkeys(row.task for row in found.rows):
        report([row for row in found.rows if row.task == task])
        report_best(found, task, runs, anchors)


def compare_cards(args: argparse.Namespace) -> None:
    """Print for every pace which share of a round is the models' own, and what ssd gains on sd."""
    args.ways = args.ways or {"sd": SD, "ssd": SSD}
    print("rows            pass  step   way       of bound        python ms   ssd against sd")
    for (name, source, vocabulary), pass_ms, step in product(ROWS, LEAST_OF_BOUND, STEPS):
        args.vocabulary, args.pass_ms, args.paced = vocabulary, pass_ms, step
        with rows_from(source):
            runs, anchors = measured(args)
        found = table(runs, anchors, dict.fromkeys(["off", *args.ways]))
        last = found.rows[-1].task
        for row in (row for row in found.rows if row.task == last):
            is_ssd = row.contender.startswith("ssd")
            least = LEAST_OF_BOUND[pass_ms]
            verdict = "" if row.of_bound is None or row.of_bound >= least else f" below {least}"
            print(
                f"{name:14}  {pass_ms:4g}  {step:4g}   {row.contender:8}  "
                f"{shown(row.of_bound, '.3f')}{verdict:10}  {shown(row.python_s, '9.3f', 1e3)}   "
                f"{against_sd(runs, anchors, last, row.contender) if is_ssd else ''}",
                flush=True,
            )
        if not found.comparable:
            print(f"  {found.reason}")


def against_sd(runs: Sequence[Run], anchors: Sequence[Anchor], task: str, name: str) -> str:
    """Return the gain of a way over sd, prompt by prompt."""
    both = [run for run in runs if run.contender in {"sd", name}]
    rows = table(both, anchors, dict.fromkeys(("sd", name))).rows
    return ratio(next(row.against for row in rows if row.task == task and row.contender == name))


def chosen_ways(text: str) -> dict[str, EngineSettings]:
    """Return the settings of ways that are named in a list."""
    try:
        return {name.strip(): WAYS[name.strip()] for name in text.split(",")}
    except KeyError as error:
        raise argparse.ArgumentTypeError(f"there is no way {error}; ways: {', '.join(WAYS)}") from None


def measured(args: argparse.Namespace) -> tuple[list[Run], list[Anchor]]:
    """Return the answers of plain decoding and of the chosen ways to the bundled prompts."""
    asked = [replace(each, task=file.stem) for file in args.files for each in read_prompts(file)]
    chosen = spread(asked or [Prompt(each.task, each.prompt) for each in prompts()], args.prompts)
    sampling = Sampling(temperature=args.temp)
    with opened(args) as models:
        contenders = [OwnContender(name, models, way) for name, way in {"off": OFF, **args.ways}.items()]
        questions = [
            Question(each.task, Request(each.messages, sampling, max_tokens=args.tokens, reuses_cache=False))
            for each in chosen
        ]
        found = list(interleave(contenders, questions, 1, plain_anchor(models)))
    runs = [each for each in found if isinstance(each, Run)]
    return runs, [each for each in found if isinstance(each, Anchor)]


def report(rows: Sequence[Row]) -> None:
    """Print the figures of a task."""
    print(f"\n{rows[0].task}")
    for row in rows:
        print(f"  {row.contender:9}{line(row)}")


def line(row: Row) -> str:
    """Return the figures of a contender."""
    times = zip(TIMES, (row.verify_s, row.draft_s, row.wait_s, row.python_s), strict=True)
    spent = "  ".join(f"{part} {shown(part_s, '5.2f', 1e3)}" for part, part_s in times)
    return (
        f"{row.tokens_per_s.value:6.1f} tokens/s  {ratio(row.against):19}  E {shown(row.tokens_per_round)}  "
        f"j {shown(row.drafted)}  acc {shown(row.acceptance)}  hit {shown(row.hit_rate)}  ms: {spent}  "
        f"of bound {shown(row.of_bound, '.3f')}"
    )


def report_best(found: SpeedTable, task: str, runs: Sequence[Run], anchors: Sequence[Anchor]) -> None:
    """Print how the fastest ssd does against the fastest sd, prompt by prompt."""
    speeds = {row.contender: row.tokens_per_s.value for row in found.rows if row.task == task}
    best = [
        max(of_mode, key=speeds.__getitem__)
        for mode in ("sd", "ssd")
        if (of_mode := [name for name in speeds if name.split()[0] == mode])
    ]
    if len(best) < 2:
        return
    of_both = [run for run in runs if run.contender in best]
    rows = table(of_both, anchors, dict.fromkeys(best)).rows
    against = next(row.against for row in rows if row.task == task and row.contender == best[1])
    print(f"  {best[1]} against {best[0]}: {ratio(against)}")


def ratio(interval: Interval | None) -> str:
    """Return a ratio with its interval."""
    if interval is None:
        return "-"
    if isnan(interval.low):
        return f"x{interval.value:.2f}"
    return f"x{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def shown(figure: float | None, form: str = "4.2f", scale: float = 1.0) -> str:
    """Return a figure, if it is known."""
    return "-" if figure is None else format(figure * scale, form)


if __name__ == "__main__":
    main()
