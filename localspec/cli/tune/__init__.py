"""`localspec tune`: measure this machine and find the fastest settings for each kind of work."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, get_args

from localspec.app.tuned_pair import settled
from localspec.app.tuning import (
    USUAL_TASKS,
    Stop,
    TuneChoice,
    budget,
    placed_pair,
    plan_of,
    profiles_of,
    run,
    stopped_profiles,
)
from localspec.cli.shared.arguments import Parser, add_model_flags, set_up_logging, verb_parser, whole
from localspec.cli.shared.console import INTERRUPTED, SUCCESS, on_interrupt, print_result, say
from localspec.cli.tune.display import TuneView, results_width
from localspec.errors import Cancelled, UserError
from localspec.storage import paths
from localspec.storage.profiles import profiles
from localspec.tuning.plan import QUICK_TRIALS, TRIALS, TunePlan
from localspec.tuning.words import llama_ratio, result_lines
from localspec.types import TaskType

if TYPE_CHECKING:
    from localspec.app.options import PairOptions
    from localspec.tuning.events import TaskResult, TuneProgress

EXPORTS = ("llama-server", "preset.ini", "llama-swap", "toml")


def parser() -> Parser:
    """Return the parser of `localspec tune`."""
    result = verb_parser(
        "tune",
        "Measure this machine with these models, find the fastest settings for each kind of work, and keep "
        "them for `--mode auto`. What does not beat plain decoding is switched off. Ctrl+C keeps what was "
        "found, and --resume goes on from there.",
    )
    add = result.add_argument
    add(
        "--task", nargs="+", action="extend", choices=get_args(TaskType), default=[], metavar="TASK",
        help=f"which kinds of work: {', '.join(get_args(TaskType))} ({', '.join(USUAL_TASKS)})",
    )  # fmt: skip
    add("--profile", action="append", default=[], metavar="NAME", help="a profile's kind of work; repeatable")
    add("--budget", type=budget, metavar="TIME", help="how long the whole may take: 90s, 3m, 1h")
    add(
        "--trials", type=whole(1, 1_000_000), metavar="N",
        help=f"settings to simulate for each task ({TRIALS}; {QUICK_TRIALS} with --quick)",
    )  # fmt: skip
    add("--quick", action="store_true", help="less of everything, and open the models as usual")
    add("--resume", action="store_true", help="go on with the last run where it was stopped")
    _add_kept_flags(result.with_output())
    add_model_flags(result)
    return result


def _add_kept_flags(result: Parser) -> None:
    add = result.add_argument_group("what was found (instead of tuning)").add_argument
    add("--show", action="store_true", help="list the settings that are kept, and which are out of date")
    add("--reset", action="store_true", help="forget the settings of these models, or of --task alone")
    add("-y", "--yes", action="store_true", help="ask nothing before --reset")
    add("--export", choices=EXPORTS, metavar="FORMAT", help=f"print the settings as {', '.join(EXPORTS)}")


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    args = parser().parse_args(argv)
    _check(args)
    set_up_logging(verbose=args.verbose)
    if args.show or args.reset or args.export:
        return _look_back(args)
    found = profiles(paths.config_dir() / "profiles")
    for problem in found.problems:
        say(f"note: {problem}")
    chosen = profiles_of(found, args.task, args.profile)
    pair = placed_pair(args, say)
    if args.resume and not args.task and not args.profile:
        chosen = stopped_profiles(found, pair) or chosen
    choice = TuneChoice(args.task, args.quick, args.resume, args.budget, args.trials)
    again = shlex.join(["localspec", "tune", *argv, *["--resume"] * ("--resume" not in argv)])
    return _tune(plan_of(pair, chosen, choice, settled(args)), pair, args, again)


def _look_back(args: argparse.Namespace) -> int:
    from localspec.cli.tune import kept

    if args.export:
        return kept.export_settings(args)
    return kept.show(args) if args.show else kept.reset(args)


def _check(args: argparse.Namespace) -> None:
    verbs = ("show", "reset", "export")
    wanted = [f"--{name}" for name in verbs if getattr(args, name) not in (None, False)]
    if len(wanted) > 1:
        raise UserError(f"{wanted[0]} and {wanted[1]} cannot be done at once", "do one after the other")
    given = [f"--{name}" for name in ("budget", "trials", "quick", "resume") if getattr(args, name)]
    if wanted and given:
        raise UserError(f"{wanted[0]} does not tune, and {given[0]} says how", f"leave {given[0]} out")
    if args.explain and args.no_fit:
        raise UserError("--explain tells of a plan, and --no-fit makes none", "keep one of them")
    if args.yes and not args.reset:
        raise UserError("-y/--yes answers a question that only --reset asks", "leave it out")


def _tune(plan: TunePlan, pair: PairOptions, args: argparse.Namespace, again: str) -> int:
    """Tune with a view of it, and print what came of it; also of a run that was stopped."""
    stop, shown = Stop(), TuneView([profile.task for profile in plan.profiles])
    draft = f" + {pair.draft.path.stem}" if pair.draft is not None else ""
    say(f"tuning {pair.target.path.stem}{draft} for {', '.join(profile.name for profile in plan.profiles)}")

    def stopping() -> None:
        if not stop.wanted:
            shown.tell("stopping, in a few seconds at most")
        stop.ask()

    is_stopped = False
    with shown, on_interrupt(stopping):
        try:
            for event in run(plan, pair, stop):
                shown.take(event)
        except (Cancelled, KeyboardInterrupt):
            is_stopped = True
    _print_results(shown.progress, pair, args, is_stopped=is_stopped)
    if is_stopped:
        say(f"stopped; what was found so far is kept, and `{again}` goes on with it")
    return INTERRUPTED if is_stopped else SUCCESS


def _print_results(
    progress: TuneProgress, pair: PairOptions, args: argparse.Namespace, *, is_stopped: bool
) -> None:
    value = {
        "complete": not is_stopped,
        "target": str(pair.target.path),
        "draft": None if pair.draft is None else str(pair.draft.path),
        "workplace": None if progress.workplace is None else asdict(progress.workplace.workplace),
        "tasks": [result_json(result) for result in progress.results],
    }
    shown = result_lines(progress.results, results_width())
    print_result(value, shown, as_json=args.json, escaped=True)
    if progress.results:
        say(f"kept in {paths.data_dir() / 'tuned.json'}; `--mode auto` uses it from the next start on")


def result_json(result: TaskResult) -> dict[str, object]:
    """Return a result as it is written to JSON."""
    return asdict(result) | {"winner": asdict(result.winner), "of_llama_cpp": llama_ratio(result)}
