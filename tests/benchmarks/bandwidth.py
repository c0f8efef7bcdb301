"""How the measured rates compare with a copy in numpy: `python -m tests.benchmarks.bandwidth`."""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from localspec.hardware.machine import known_machine, measure_rates
from localspec.llama.cores import physical_cores

BLOCK = 2**29


def main() -> None:
    """Measure every device and the CPU's memory by other means, and print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    args = parser.parse_args()
    started = time.perf_counter()
    machine = measure_rates(known_machine(may_measure=False))
    seconds = time.perf_counter() - started
    for rate in machine.rates:
        print(f"{rate.device:<7} reads {rate.read / 1e9:7.1f} GB/s")
    for note in machine.notes:
        print(f"note: {note}")
    print(f"all of it in {seconds:.1f} s")
    for threads in sorted({1, physical_cores()}):
        read, copy = numpy_rates(threads, args.runs)
        print(f"numpy, {threads} threads: reads {read / 1e9:7.1f} GB/s, copies {copy / 1e9:7.1f} GB/s")


def numpy_rates(threads: int, runs: int) -> tuple[float, float]:
    """Return the rates of adding up and of copying a block, in bytes read and written per second."""
    source = np.ones(BLOCK // 4, dtype=np.float32)
    target = np.empty_like(source)
    target.fill(0)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:

        def read() -> None:
            list(pool.map(lambda part: float(part[0].sum()), parts))

        def copy() -> None:
            list(pool.map(lambda part: np.copyto(part[1], part[0]), parts))

        seconds = []
        for action in (read, copy):
            action()
            taken = []
            for _ in range(runs):
                started = time.perf_counter()
                action()
                taken.append(time.perf_counter() - started)
            seconds.append(statistics.median(taken))
    return BLOCK / seconds[0], 2 * BLOCK / seconds[1]


if __name__ == "__main__":
    main()
