"""Which outcomes to prepare for: hit rates and tokens per second of every shape of fan-out, simulated.

python -m tests.benchmarks.fan_out                        greedy and temperature 0.8, two paced devices
python -m tests.benchmarks.fan_out --ratios 0.3 --temps 1.2 --acceptance match

The answers are traced once; costs are those of paced devices, so nothing here depends on the machine.
`untaught` is best-first with the draft model's chances taken at their word.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from statistics import fmean
from unittest.mock import patch

from localspec.decoding.measurements import Costs, Trace
from localspec.decoding.policy import Calibrator
from localspec.tuning.simulator.simulator import Simulator
from localspec.types.request import EngineSettings, FanOutShape
from tests.benchmarks.simulation import MAX_FAN_OUT, chosen_requests, known, opened, pair_parser, traced

BUDGETS = (2, 4, 8, 16, MAX_FAN_OUT)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to choose outcomes."""

    name: str
    shape: FanOutShape
    is_taught: bool = True


WAYS = (
    Way("best-first", "best-first"),
    Way("untaught", "best-first", is_taught=False),
    Way("uniform", "uniform"),
    Way("geometric", "geometric"),
)


def main() -> None:
    """Parse the arguments and run."""
    parser = pair_parser(__doc__)
    parser.add_argument("--ratios", default="0.1,0.2", help="draft steps in target passes")
    parser.add_argument("--temps", default="0,0.8", help="temperatures")
    parser.add_argument("--acceptance", choices=("rejection", "match"), default="rejection")
    parser.add_argument("--task", default="", help="only prompts of this task")
    parser.add_argument("--prompts", type=int, default=99)
    parser.add_argument("-n", "--tokens", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=3, help="simulations to average where drafts are drawn")
    args = parser.parse_args()
    for temperature in map(float, args.temps.split(",")):
        args.temp = temperature
        with opened(args) as runtime:
            trace = traced(runtime, chosen_requests(args))
        for ratio in map(float, args.ratios.split(",")):
            costs = known(argparse.Namespace(**{**vars(args), "paced": ratio}))
            print(f"\ntemperature {temperature:g}, {args.acceptance}, a draft step is {ratio:g} of a pass")
            report(trace, costs, EngineSettings(mode="ssd", acceptance=args.acceptance), args.draws)


def report(trace: Trace, costs: Costs, settings: EngineSettings, draws: int) -> None:
    """Print a line for each way, a column for each budget."""
    print(f"{'hit rate, tokens/s':16}" + "".join(f"{f'budget {budget}':>16}" for budget in BUDGETS))
    is_drawn = trace.sampling.temperature > 0 and settings.acceptance == "rejection"
    simulators = [Simulator(trace, costs, seed) for seed in range(draws if is_drawn else 1)]
    for way in WAYS:
        found = [
            simulated(simulators, replace(settings, fan_out_budget=budget, fan_out_shape=way.shape), way)
            for budget in BUDGETS
        ]
        print(f"{way.name:16}" + "".join(f"{hits:>9.1%} {rate:6.2f}" for hits, rate in found))


def simulated(simulators: Sequence[Simulator], settings: EngineSettings, way: Way) -> tuple[float, float]:
    """Return the share of rounds whose draft was ready, and tokens per second."""
    hits, rates = [], []
    for simulator in simulators:
        with nullcontext() if way.is_taught else untaught():
            summary = simulator(settings)
            hits.append(summary.hits / summary.rounds)
            rates.append(simulator.rate(settings))
    return fmean(hits), fmean(rates)


@contextmanager
def untaught() -> Iterator[None]:
    """Let nothing be learned about the draft model's chances of outcomes."""
    with patch.object(Calibrator, "observe", lambda self, own, *, is_true: None):
        yield


if __name__ == "__main__":
    main()
