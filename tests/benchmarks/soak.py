"""A long chat over a bad line: turns, edits and stopped answers, compared with greedy ones at home.

`python -m tests.benchmarks.soak --minutes 30`: the bundled target is behind a proxy to a `localspec share` on
this machine. It holds every byte for the delay and the rate, and what a lost segment is in until TCP would
have sent it again; `--cut` breaks all connections every N minutes.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import get_args

import psutil

from localspec.demo import bundled_pair, prompts
from localspec.errors import LocalSpecError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.worker.client import Worker
from localspec.llama import rpc
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Mode, Request, Sampling
from tests.benchmarks.line import Line, sharing
from tests.conftest import QUANTIZE
from tests.inference.runtimes import text_of

SEGMENT, AGAIN_S = 1460, 0.2  # bytes; until TCP sends a lost one again
LONGEST, TURNS = 80, 5  # tokens of an answer; of a chat
USUAL = {"minutes": 30.0, "trip_ms": 3.0, "mb_s": 30.0, "lost": 0.01, "cut": 0.0, "pause_s": 4.0, "seed": 1.0}
say = partial(print, flush=True)


class BadLine(Line):
    """A line that loses segments, and can be cut."""

    def __init__(self, server: int, one_way_s: float, rate: float, lost: float) -> None:
        super().__init__(server, one_way_s, rate)
        self.lost, self.losses, self.open = lost, 0, list[socket.socket]()

    def _read(self, source: socket.socket, parts: SimpleQueue[tuple[float, bytes]], way: str) -> None:
        self.open.append(source)
        data = b"-"
        while data:
            data = b""
            with suppress(OSError):
                data = source.recv(2**18)
            is_lost = random.random() > (1 - self.lost) ** (len(data) / SEGMENT)
            self.losses += is_lost
            parts.put((time.perf_counter() + is_lost * (AGAIN_S + 2 * self.one_way_s), data))

    def cut(self) -> None:
        """Break every connection."""
        for each in self.open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """Chat, and print what came of it."""
    args = parsed()
    os.nice(15)
    random.seed(args.seed)
    with TemporaryDirectory() as folder, sharing() as port:
        exact = Path(folder) / "target.gguf"  # in Q8_0, whose kernels give the same bits at every batch width
        subprocess.run(
            [sys.executable, "-c", QUANTIZE, bundled_pair()[0], exact], check=True, capture_output=True
        )
        target = ModelOptions(exact, 1024, micro_batch=32, threads=1, devices=())
        draft, home = replace(target, path=bundled_pair()[1]), Worker.open(OpenPlan(target))
        line = BadLine(port, args.trip_ms / 2000, args.mb_s * 1e6, args.lost)
        line.start()
        os.environ[rpc.VARIABLE] = f"127.0.0.1:{line.port}"
        found, slowest_s, told_s, cuts = Counter[str](), 0.0, 0.0, 0
        away, messages, began_s = None, tuple[Message, ...](), time.monotonic()
        while (now_s := time.monotonic() - began_s) < args.minutes * 60:
            if args.cut and now_s > (cuts + 1) * args.cut * 60:
                cuts += 1
                line.cut()
            edits = bool(messages) and random.random() < 0.2
            messages = messages[:-2] if edits else messages if len(messages) < 2 * TURNS else ()
            question = Message("user", random.choice(prompts()).prompt)
            mode, stop = random.choice(get_args(Mode)), random.choice((None,) * 4 + (9, 40, 70))
            asked = Request((*messages, question), Sampling(0.0), EngineSettings(mode=mode), LONGEST)
            try:
                away = away or Worker.open(OpenPlan(replace(target, devices=("RPC0",)), draft))
                with closing(away.generate(asked)) as events:
                    text = text_of([*islice(events, stop)])
            except LocalSpecError as error:
                found["recoveries"] += 1
                say(f"{now_s:.0f} s: {error}")
                if away is not None:
                    away.close()
                away = None
                continue
            slowest_s = max(slowest_s, time.monotonic() - began_s - now_s)
            expected = text_of([*home.generate(replace(asked, settings=EngineSettings(mode="off")))])
            if not (expected.startswith(text) if stop else text == expected):
                found["wrong"] += 1
                say(f"{now_s:.0f} s: wrong in mode {mode}: {text!r}, not {expected!r}")
            found.update(turns=1, edits=edits, stopped=stop is not None, tokens=len(home.tokenize(text)))
            messages = (*messages, question, Message("assistant", text))
            if now_s >= told_s:
                told_s = now_s + 60
                sizes = [psutil.Process(pid).memory_info().rss // 10**6 for pid in (os.getpid(), away.pid)]
                say(
                    f"{now_s:.0f} s: {dict(found)}, {line.losses} lost, {slowest_s:.1f} s at most, {sizes} MB"
                )
            time.sleep(random.uniform(0.5, 1.5) * args.pause_s)
        say(f"end: {dict(found)}, {line.losses} lost, {slowest_s:.1f} s at most")


def parsed() -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in USUAL.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=usual)
    return parser.parse_args()


if __name__ == "__main__":
    main()
