"""How soon the screen can be typed into: `python -m tests.benchmarks.start`."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from tests.tui.terminal import Terminal


def main() -> None:
    """Start the program again and again and print how long it takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / str(run) for run in range(args.runs + 1)]  # unsent text would come back
        measured = [start(each) for each in folders][1:]  # the first fills the disk's cache
    for name, seconds in zip(
        ("prompt drawn", "key echoed", "models open"), zip(*measured, strict=True), strict=True
    ):
        print(
            f"{name:<13} median {statistics.median(seconds):.2f} s, {min(seconds):.2f} to {max(seconds):.2f}"
        )


def start(folder: Path) -> tuple[float, float, float]:
    """Return the seconds until the prompt is drawn, a key is echoed, and the models are open."""
    variables = {"HOME": str(folder)} | {
        f"LOCALSPEC_{kind}_DIR": str(folder / kind) for kind in ("CONFIG", "DATA", "STATE")
    }
    started = time.perf_counter()
    with Terminal(variables=variables, size=(120, 40)) as terminal:
        terminal.shows("Ask anything")
        drawn = time.perf_counter()
        terminal.send("qqq")
        terminal.shows("qqq")
        echoed = time.perf_counter()
        terminal.until(lambda: "demo target" in terminal.output or "SmolLM2" in terminal.output)
        opened = time.perf_counter()
        terminal.send("\x11")
        terminal.leave()
    return drawn - started, echoed - started, opened - started


if __name__ == "__main__":
    main()
