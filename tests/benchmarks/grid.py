"""What tuning finds, against the best of an exhaustive grid of real runs; and what both cost.

python -m tests.benchmarks.grid --task coding                the bundled pair on all cores
python -m tests.benchmarks.grid --task coding --paced 0.1    two paced devices: a draft step in target passes
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path

import numpy as np

from localspec.decoding.measurements import Costs, Trace
from localspec.inference.runtime import Runtime
from localspec.storage.profiles import Profile, profiles
from localspec.tuning.costs import fit, measure, real_rounds
from localspec.tuning.plan import requests
from localspec.tuning.simulator.simulator import Simulator
from localspec.tuning.space import space_of
from localspec.tuning.study import best, search
from localspec.tuning.trace import trace
from localspec.types.events import Finished
from localspec.types.request import EngineSettings, Request
from tests.benchmarks.simulation import MAX_FAN_OUT, opened, pair_parser
from tests.tuning.fake_models import open_once

SHAPES = 3  # of a study's trace
FINALISTS = 5  # of the grid, that run again beside the tuned settings: the best of many is partly luck
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Tuned:
    """What the tuner would run with, and the seconds of measuring, tracing and searching."""

    settings: EngineSettings
    predicted: float
    seconds: float


def main() -> None:
    """Parse the arguments and run."""
    parser = pair_parser(__doc__)
    parser.add_argument("--task", default="coding", help="a profile's name")
    parser.add_argument("--temp", type=float, help="instead of the profile's")
    parser.add_argument("--prompts", type=int, default=12, help="for each setting of the grid")
    parser.add_argument("-n", "--tokens", type=int, default=64)
    parser.add_argument("--trials", type=int, default=150)
    parser.add_argument("--grid", type=int, default=1, help="leave out all but every so many-th budget")
    args = parser.parse_args()
    profile = profiles(Path("nowhere")).named(args.task)
    if args.temp is not None:
        profile = replace(profile, sampling=replace(profile.sampling, temperature=args.temp))
    with opened(args) as runtime:
        prompts = profile.tuning_prompts()
        asked = [
            replace(each, max_tokens=args.tokens)
            for each in islice(requests(runtime, profile, prompts.held_out), args.prompts)
        ]
        tuned = tune(runtime, profile, prompts.prompts, args.trials)
        print(f"tuned in {tuned.seconds:.0f} s: {tuned.settings}, predicted {tuned.predicted:.1f} tokens/s")
        began = time.perf_counter()
        rates = run_grid(runtime, asked, list(grid(args.grid)))
        spent_s = time.perf_counter() - began
        times = spent_s / tuned.seconds
        print(f"the grid of {len(rates)} settings took {spent_s:.0f} s, {times:.1f} x tuning")
        compare(runtime, asked, tuned.settings, rates)


def tune(runtime: Runtime, profile: Profile, prompts: Sequence[str], trials: int) -> Tuned:
    """Measure, trace and search as `localspec tune` does."""
    began = time.perf_counter()
    asked = list(requests(runtime, profile, prompts))
    models = open_once(runtime)
    calls = tuple(measure(models, budget_s=10))
    costs = Costs(calls, fit(calls, real_rounds(models, asked[:6], 8)))
    segments = tuple(trace(runtime, request) for request in asked)
    simulator = Simulator(Trace(profile.sampling, segments), costs)
    space = space_of(profile.sampling, costs, has_draft=True, max_fan_out=MAX_FAN_OUT)
    found = best(search(simulator.rate, space, trials), 1)[0]
    return Tuned(found.settings, found.estimate, time.perf_counter() - began)


def grid(step: int) -> Iterator[EngineSettings]:
    """Yield every draft length with every budget and mode, everything else by its automatic rule."""
    yield EngineSettings(mode="off")
    for length in range(1, 9):
        yield EngineSettings(mode="ngram", draft_length=length)
        yield EngineSettings(mode="sd", draft_length=length)
    for length, budget in product(range(1, 9), range(1, MAX_FAN_OUT + 1, step)):
        yield EngineSettings(mode="ssd", draft_length=length, fan_out_budget=budget)


def run_grid(
    runtime: Runtime, asked: Sequence[Request], settings: list[EngineSettings]
) -> dict[EngineSettings, float]:
    """Return the tokens per second of each; all answer one request before the next, in an order of chance.

    A machine whose pace changes in the meantime then changes it for all of them.
    """
    chance = random.Random(0)
    for mode in ("sd", "ssd"):
        answer(runtime, asked[0], EngineSettings(mode=mode))
    found: dict[EngineSettings, list[tuple[int, float]]] = {each: [] for each in settings}
    for number, request in enumerate(asked, 1):
        for each in chance.sample(settings, len(settings)):
            found[each].append(answer(runtime, request, each))
        print(f"  {number} of {len(asked)} requests", flush=True)
    return {
        each: sum(tokens for tokens, _ in answers) / sum(seconds for _, seconds in answers)
        for each, answers in found.items()
    }


def answer(runtime: Runtime, request: Request, settings: EngineSettings) -> tuple[int, float]:
    """Return the tokens after the first, and the seconds that they took."""
    for event in runtime.generate(replace(request, settings=settings)):
        if isinstance(event, Finished):
            return event.summary.tokens - 1, event.summary.decode_s
    raise AssertionError("an answer ends")


def compare(
    runtime: Runtime, asked: Sequence[Request], tuned: EngineSettings, rates: dict[EngineSettings, float]
) -> None:
    """Run the best of the grid again beside the tuned settings, in turns."""
    ranked = sorted(rates, key=lambda each: -rates[each])[:FINALISTS]
    print(f"off {rates[EngineSettings(mode='off')]:.1f}, best of the grid:")
    for each in ranked:
        print(f"  {rates[each]:7.1f}  {each.mode} K={each.draft_length} B={each.fan_out_budget}")
    field = [tuned, *ranked]
    paces: list[list[float]] = []
    for turn in range(3):
        for number, request in enumerate(asked):
            again = replace(request, seed=(request.seed or 0) + 1000 * (turn + 1))
            order = field[number % len(field) :] + field[: number % len(field)]
            found = {each: answer(runtime, again, each) for each in order}
            paces.append([found[each][1] / max(found[each][0], 1) for each in field])
    seconds = np.array(paces)
    winner = 1 + int(seconds[:, 1:].sum(axis=0).argmin())
    picks = np.random.default_rng(0).integers(len(seconds), size=(RESAMPLES, len(seconds)))
    ratios = seconds[picks, winner].sum(axis=1) / seconds[picks, 0].sum(axis=1)
    value = seconds[:, winner].sum() / seconds[:, 0].sum()
    low, high = np.quantile(ratios, [0.025, 0.975])
    best_again = field[winner]
    print(
        f"tuned / best of the grid ({best_again.mode} K={best_again.draft_length} "
        f"B={best_again.fan_out_budget}) = {value:.3f} [{low:.3f}, {high:.3f}], run again in turns"
    )


if __name__ == "__main__":
    main()
