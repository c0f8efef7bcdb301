"""How good the best settings are after N trials: the tuner's search beside Optuna's own samplers.

python -m tests.benchmarks.search --task coding                the bundled pair on all cores
python -m tests.benchmarks.search --task writing --paced 0.1   two GPUs, a draft step in target passes

--task coding --paced 0.1 --tokens 250 --seeds 4, on two busy cores (the tuner also writes its file):

mean and worst after                       30             60            100            150     ms a trial
the tuner                         0.920 0.912    0.944 0.927    0.957 0.944    0.972 0.957           24.6
TPE                               0.904 0.896    0.930 0.912    0.948 0.923    0.969 0.936           31.2
TPE, multivariate, in groups      0.926 0.904    0.942 0.929    0.960 0.948    0.975 0.959           99.3
chance                            0.909 0.892    0.915 0.904    0.919 0.905    0.919 0.905            1.9
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from statistics import fmean

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, RandomSampler, TPESampler

from localspec.decoding.measurements import Trace
from localspec.storage.profiles import profiles
from localspec.tuning.plan import requests
from localspec.tuning.simulator.simulator import Simulator
from localspec.tuning.space import STOPS, Space, space_of, starting_points, suggest
from localspec.tuning.study import search
from localspec.tuning.trace import trace
from localspec.types.request import EngineSettings
from tests.benchmarks.simulation import MAX_FAN_OUT, known, measured, opened, pair_parser

TRIALS = (30, 60, 100, 150)
SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "TPE": lambda seed: TPESampler(seed=seed),
    "TPE, multivariate, in groups": lambda seed: TPESampler(seed=seed, multivariate=True, group=True),
    "chance": lambda seed: RandomSampler(seed=seed),
}
Simulate = Callable[[EngineSettings], float]


def main() -> None:
    """Parse the arguments, trace, search in every way, and print the best in the best of all."""
    warnings.simplefilter("ignore", ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    parser = pair_parser(__doc__)
    parser.add_argument("--task", default="coding", help="a profile's name")
    parser.add_argument("--tokens", type=int, default=600, help="of the trace")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    profile = profiles(Path("nowhere")).named(args.task)
    with opened(args) as runtime:
        asked = list(requests(runtime, profile, profile.tuning_prompts().prompts))
        costs = measured(runtime, asked[:6]) if args.paced is None else known(args)
        segments, left = [], args.tokens
        for request in asked:
            if left > 0:
                segments.append(trace(runtime, request))
                left -= len(segments[-1].tokens)
    simulator = Simulator(Trace(profile.sampling, tuple(segments)), costs)

    simulating_s = 0.0

    @cache
    def simulate(settings: EngineSettings) -> float:
        nonlocal simulating_s
        began = time.perf_counter()
        rate = simulator.rate(settings)
        simulating_s += time.perf_counter() - began
        return rate

    space = space_of(profile.sampling, costs, has_draft=True, max_fan_out=MAX_FAN_OUT)
    ways = {"the tuner": partial(tuners, simulate, space)}
    ways |= {name: partial(optunas, simulate, space, sampler) for name, sampler in SAMPLERS.items()}
    found: dict[str, list[list[float]]] = {}
    beside_ms = {}
    for name, way in ways.items():
        began, simulating_s = time.perf_counter(), 0.0
        found[name] = [way(seed) for seed in range(args.seeds)]
        seconds = time.perf_counter() - began - simulating_s
        beside_ms[name] = 1000 * seconds / sum(map(len, found[name]))
    best = max(max(rates) for runs in found.values() for rates in runs)
    heads = "".join(f"{trials:>15}" for trials in TRIALS)
    print(f"\n{'mean and worst after':30}{heads}{'ms a trial':>15}")
    for name, runs in found.items():
        after = [[max(rates[:trials]) / best for rates in runs] for trials in TRIALS]
        shares = "".join(f"{fmean(each):9.3f} {min(each):.3f}" for each in after)
        print(f"{name:30}{shares}{beside_ms[name]:15.1f}")


def tuners(simulate: Simulate, space: Space, seed: int) -> list[float]:
    """Return the rates of the tuner's trials."""
    return [each.tokens_per_s or 0.0 for each in search(simulate, space, TRIALS[-1], seed=seed)]


def optunas(
    simulate: Simulate, space: Space, sampler: Callable[[int], BaseSampler], seed: int
) -> list[float]:
    """Return the rates of a sampler's trials, from the same starting points."""
    study = optuna.create_study(direction="maximize", sampler=sampler(seed))
    for start in starting_points(space):
        study.enqueue_trial(asdict(start) | {"stop": STOPS[start.min_confidence is not None]})
    study.optimize(lambda trial: simulate(suggest(trial, space)), TRIALS[-1])
    return [trial.value or 0.0 for trial in study.trials]


if __name__ == "__main__":
    main()
