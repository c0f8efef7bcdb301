"""Tables made by hand: two contenders of ours and a server, on two tasks."""

from __future__ import annotations

from dataclasses import replace
from math import nan

from localspec.app.comparison import BenchRequest
from localspec.benchmark.figures import Drift, Row, SpeedTable
from localspec.benchmark.harness import Prompt
from localspec.benchmark.statistics import Interval
from localspec.cli.bench.flags import USUAL_SAMPLING
from localspec.cli.bench.output import Conditions
from localspec.storage.profiles import Speculation

PLAIN = Row(
    contender="off",
    task="coding",
    answers=4,
    tokens_per_s=Interval(40.0, 38.0, 42.25),
    against=None,
    whole_against=None,
    prompt_tokens_per_s=512.0,
    first_token_s=0.0312,
    acceptance=None,
    accepted_at=(),
    hit_rate=None,
    tokens_per_round=1.0,
    drafted=0.0,
    verify_s=0.025,
    draft_s=0.0,
    wait_s=0.0,
    python_s=0.0004,
    of_bound=0.984,
    memory_peak=3 * 2**30,
)
AHEAD = replace(
    PLAIN,
    contender="ssd",
    tokens_per_s=Interval(120.0, 100.0, 150.0),
    against=Interval(3.0, 2.5, 3.625),
    whole_against=Interval(2.5, 2.25, 2.75),
    acceptance=0.755,
    accepted_at=(0.9, 0.8125),
    hit_rate=0.881,
    tokens_per_round=4.256,
    wait_s=0.00123,
)
SERVER = replace(
    PLAIN,
    contender="llama-server",
    tokens_per_s=Interval(39.0, nan, nan),
    against=Interval(0.975, nan, nan),
    whole_against=Interval(0.875, nan, nan),
    prompt_tokens_per_s=None,
    tokens_per_round=None,
    drafted=None,
    verify_s=None,
    draft_s=None,
    wait_s=None,
    python_s=None,
    of_bound=None,
    memory_peak=None,
)
ROWS = tuple(replace(row, task=task) for task in ("coding", "all") for row in (PLAIN, AHEAD, SERVER))
TABLE = SpeedTable(ROWS, Drift(0.04, ()), comparable=True, reason="")
CONDITIONS = Conditions("big", "small", "A processor, 2 of 4 cores, Linux", "localspec bench -n 64", True)
REQUEST = BenchRequest(
    modes=("off", "ssd"),
    asked_modes=True,
    lengths=(),
    prompts=(Prompt("coding", "Sort."), Prompt("writing", "Tell.")),
    sampling=USUAL_SAMPLING,
    max_tokens=64,
    repetitions=1,
    speculation=Speculation(),
    server=None,
    plot=None,
)
