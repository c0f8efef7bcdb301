"""What rejection sampling gains over matching, at the profile's sampling, also with a draft temperature.

python -m tests.benchmarks.acceptance --paced 0.1               two paced devices
python -m tests.benchmarks.acceptance -m TARGET -md DRAFT       the CPU
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from localspec.storage.profiles import profiles
from localspec.tuning.confirm import ConfirmationPlan, Entrant, confirm
from localspec.tuning.events import TaskResult
from localspec.tuning.plan import requests
from localspec.types.request import EngineSettings
from tests.benchmarks.simulation import opened, pair_parser
from tests.tuning.fake_models import open_once


def main() -> None:
    """Parse the arguments and run."""
    parser = pair_parser(__doc__)
    parser.add_argument("--task", default="writing", help="a profile's name")
    parser.add_argument("--temp", type=float, default=0.8)
    parser.add_argument("--draft-temp", type=float, default=0.9, help="beside 1")
    parser.add_argument("--mode", choices=("sd", "ssd"), default="sd")
    parser.add_argument("--budget", type=float, default=120, help="seconds of comparing")
    args = parser.parse_args()
    profile = profiles(Path("nowhere")).named(args.task)
    profile = replace(profile, sampling=replace(profile.sampling, temperature=args.temp))
    prompts = profile.tuning_prompts()
    with opened(args) as runtime:
        asked = tuple(requests(runtime, profile, prompts.held_out, seed=1000))
        field = tuple(entrants(args.mode, args.draft_temp))
        for each in confirm(open_once(runtime), asked, field, ConfirmationPlan(profile.task, args.budget)):
            if isinstance(each, TaskResult):
                report(each)


def entrants(mode: str, temperature: float) -> Iterator[Entrant]:
    """Yield what is compared: the engine's automatic rules under each way to accept."""
    usual = EngineSettings(mode="sd" if mode == "sd" else "ssd")
    yield Entrant("match", replace(usual, acceptance="match"))
    yield Entrant("rejection", usual)
    yield Entrant("tempered", replace(usual, draft_temperature=temperature))


def report(verdict: TaskResult) -> None:
    """Print the speeds, against plain decoding and against matching."""
    print(f"drift {verdict.drift:.2f}")
    match = next(each for each in verdict.contenders if each.name == "match")
    for each in verdict.contenders:
        gain = f"x{each.gain.value:.2f} [{each.gain.low:.2f}, {each.gain.high:.2f}] of plain"
        of_match = each.rate.value / match.rate.value
        print(f"{each.name:11} {each.rate.value:7.1f} tokens/s  {gain}  x{of_match:.2f} of match")


if __name__ == "__main__":
    main()
