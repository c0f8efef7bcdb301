"""The long form: `python -m tests.campaign --minutes 30 --seed 7 --only headers,turns`.

Prints a table, and exits with 1 if anything was found. `--only PART --seed N --case M` runs a case again.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import tempfile
from pathlib import Path

from localspec.units import columns
from tests.campaign.log import Log, Part

_STUCK_S = 1800.0  # a part that says nothing for so long hangs: say where
_HEADINGS = ["WHAT", "CASES", "FOUND", "SLOWEST", "SECONDS"]


def main() -> int:
    """Run the parts that are asked for."""
    from tests.campaign.parts import PARTS

    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=60.0, help="for all parts together (60)")
    add("--seed", type=int, default=0, help="other random numbers (0)")
    add("--only", default=",".join(PARTS), help=f"some of: {', '.join(PARTS)}")
    add("--case", type=int, help="this case alone")
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"there is no part {', '.join(unknown)}")
    rows, found = [_HEADINGS], 0
    for left, name in zip(range(len(names), 0, -1), names, strict=True):
        args.minutes = max(args.minutes, 0.0)
        log = Log(name, args.seed, PARTS[name].long, 60 * args.minutes / left, args.case)
        run(log, PARTS[name].run)
        args.minutes -= log.taken_s / 60
        rows.append(
            [name, f"{log.cases:,}", f"{len(log.found)}", f"{log.slowest_s:.2f} s", f"{log.taken_s:.0f}"]
        )
        found += len(log.found)
        for line in (*log.found, *log.notes):
            print(f"{name}: {line}", flush=True)
    print(*columns(rows, frozenset(range(1, len(_HEADINGS)))), sep="\n")
    return int(found > 0)


def run(log: Log, part: Part) -> None:
    """Run a part in a folder and a home of its own."""
    faulthandler.dump_traceback_later(log.seconds + _STUCK_S, exit=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in list(os.environ):
            if name.startswith(("LOCALSPEC_", "HF_", "HUGGINGFACE_", "LLAMA_CACHE", "XDG_")):
                del os.environ[name]
        os.environ["HOME"] = str(Path(folder, "home"))
        Path(folder, "home").mkdir()
        try:
            part(log, Path(folder))
        except Exception as error:  # noqa: BLE001 - a part that breaks has found something
            log.found.append(f"the part itself failed: {type(error).__name__}: {error}")
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    sys.exit(main())
