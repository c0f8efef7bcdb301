"""What the loop of `ssd` waits for Python's lock, which the drafter's thread may hold when a call ends.

python -m tests.benchmarks.locks [--pass-ms 4] [--ratio 0.1] [--answers 6]

On paced devices each call of the target sleeps until its time has passed. How much later it continues is the
timer's fault alone in `off` and `sd`, which have one thread; what is more in `ssd` is waiting for the lock.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean, quantiles
from time import perf_counter
from unittest.mock import patch

from localspec.demo import prompts
from localspec.inference.runtime import Runtime
from localspec.types.request import EngineSettings, Message, Mode, Request, Sampling
from tests.benchmarks.simulation import opened, pair_parser
from tests.fake_model import Hold

MODES: tuple[Mode, ...] = ("off", "sd", "ssd")


def main() -> None:
    """Parse the arguments and run."""
    parser = pair_parser(__doc__)
    parser.set_defaults(paced=0.1, pass_ms=4.0)
    parser.add_argument("--ratio", type=float, dest="paced", metavar="RATIO", help="the same as --paced")
    parser.add_argument("--answers", type=int, default=6, help="of each mode, in turns")
    parser.add_argument("-n", "--tokens", type=int, default=96)
    args = parser.parse_args()
    with opened(args) as runtime:
        late = measured(runtime, args)
    print("mode   calls   late by ms: mean  median    95 %")
    for mode, found in late.items():
        places = [each * 1e3 for each in quantiles(found, n=20)]
        print(f"{mode:5} {len(found):6}  {fmean(found) * 1e3:15.3f}  {places[9]:6.3f}  {places[18]:6.3f}")


def measured(runtime: Runtime, args: argparse.Namespace) -> dict[Mode, list[float]]:
    """Return by how many seconds the target's calls were late, by mode."""
    late: dict[Mode, list[float]] = {mode: [] for mode in MODES}
    for item in prompts()[: args.answers]:
        for mode in MODES:
            request = Request(
                (Message("user", item.prompt),),
                Sampling(temperature=0.0),
                EngineSettings(mode),
                args.tokens,
                measures_first=True,
            )
            with _noted(runtime, late[mode]):
                for _ in runtime.generate(request):
                    pass
    return late


@contextmanager
def _noted(runtime: Runtime, late: list[float]) -> Iterator[None]:
    """Note how late each held call of the target ends."""
    rest, of_target = Hold.rest, runtime._contexts.target._hold  # type: ignore[attr-defined]

    def noted(hold: Hold, size: int, spent_s: float) -> None:
        started = perf_counter()
        rest(hold, size, spent_s)
        if hold is of_target and size < 32:  # not the prompt
            late.append(perf_counter() - started + spent_s - hold._cost(size))

    with patch.object(Hold, "rest", noted):
        yield


if __name__ == "__main__":
    main()
