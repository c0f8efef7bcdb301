"""Kill the program while an answer streams, and look at what is on the disk.

`python -m tests.benchmarks.kill -m big-target.gguf`: a model slow enough to be killed in mid-sentence.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from tests.tui.terminal import Terminal

QUESTION = "Tell me a story about a dog."
ALLOWED_S = 1.0
RUN = 4


def main() -> None:
    """Kill it N times and print what was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--kills", type=int, default=20)
    args = parser.parse_args()
    words = reference(args.model).split()
    print(f"an answer of {len(words)} words")
    failures = 0
    for number in range(args.kills):
        with tempfile.TemporaryDirectory() as folder:
            drawn, kept, age_s = kill_one(args.model, Path(folder), words, random.Random(number))
        lost = kept < drawn
        failures += lost
        print(
            f"{number + 1:>2}: drawn a second before the kill {drawn:>4} words, on the disk {kept:>4}"
            f"{'  LOST' if lost else ''}  (killed {age_s:.1f} s after the first word)"
        )
    print(f"{failures} of {args.kills} lost text older than {ALLOWED_S:g} s")


def reference(model: str) -> str:
    """Return the whole greedy answer."""
    command = [sys.executable, "-m", "localspec", "run", "-m", model, "--mode", "off", "--temp", "0"]
    command += ["--profile", "general", QUESTION]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def kill_one(model: str, folder: Path, words: list[str], random_: random.Random) -> tuple[int, int, float]:
    """Return how many words had been drawn a second before the kill, how many were kept, and when it was."""
    variables = {"HOME": str(folder)} | {
        f"LOCALSPEC_{kind}_DIR": str(folder / kind) for kind in ("CONFIG", "DATA", "STATE")
    }
    arguments = ["-m", model, "--mode", "off", "--temp", "0"]
    with Terminal(arguments, variables=variables, size=(100, 50)) as terminal:
        terminal.shows("Ask anything")
        terminal.until(lambda: "ctx" in terminal.output)
        terminal.send(QUESTION)
        terminal.shows(QUESTION)
        terminal.send("\r")
        opening = " ".join(words[:2])
        terminal.until(lambda: opening in terminal.output)
        first, wait_s = time.monotonic(), random_.uniform(0.2, 4.0)
        seen = [(first, progress(terminal.output, words))]
        while time.monotonic() - first < wait_s:
            terminal.read(0.02)
            seen.append((time.monotonic(), progress(terminal.output, words)))
        terminal.kill()
        killed = time.monotonic()
    drawn = max((count for moment, count in seen if moment <= killed - ALLOWED_S), default=0)
    with closing(sqlite3.connect(folder / "DATA" / "chats.db")) as connection:
        rows = connection.execute("SELECT role, content FROM messages ORDER BY id").fetchall()
    assert rows[0] == ("user", QUESTION)
    kept = rows[1][1] if len(rows) > 1 else ""
    return drawn, len(kept.split()), wait_s


def progress(output: str, words: list[str]) -> int:
    """Return how many words of the answer have been drawn, as far as four in a row show it that come once."""
    whole = " ".join(words)
    for count in range(len(words), RUN - 1, -1):
        run = " ".join(words[count - RUN : count])
        if run in output and whole.count(run) == 1:
            return count
    return 0


if __name__ == "__main__":
    main()
