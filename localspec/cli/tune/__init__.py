"""`localspec tune`: measure this machine and find the fastest settings for each kind of work."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import get_args

from localspec.app.opening import with_config
from localspec.app.tuning import (
    DEFAULT_TASKS,
    StopSignal,
    TuneChoice,
    plan_of,
    plan_to_tune,
    profiles_of,
    run,
    stopped_profiles,
)
from localspec.cli.shared.arguments import (
    Parser,
    add_model_flags,
    length_of_time,
    pair_request,
    set_up_logging,
    verb_parser,
    whole,
)
from localspec.cli.shared.console import (
    INTERRUPTED,
    SUCCESS,
    ConsoleStatus,
    on_interrupt,
    print_result,
    results_width,
    say,
)
from localspec.cli.shared.opening import TERMINAL
from localspec.errors import Cancelled, UserError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.storage import paths
from localspec.storage.profiles import profiles
from localspec.tuning.events import (
    LoadOptionsChosen,
    PassesCompared,
    StageBegan,
    StageStatus,
    TaskResult,
    TuneEvent,
    TuneProgress,
)
from localspec.tuning.plan import QUICK_TRIALS, TRIALS, TunePlan
from localspec.tuning.words import (
    DONE,
    STAGE_WORDS,
    UNITS,
    attempts_words,
    best_words,
    clock,
    compared_words,
    counts,
    figure,
    gain_interval,
    llama_ratio,
    load_options_words,
    result_lines,
    settings_words,
    shift_words,
)
from localspec.types.request import TaskType
from localspec.units import duration

EXPORTS = ("llama-server", "preset.ini", "llama-swap", "toml")
budget = length_of_time(10)
"""Reads the time limit of a run."""


def parser() -> Parser:
    """Return the parser of `localspec tune`."""
    result = verb_parser(
        "tune",
        "Measure these models on this machine, and find and save the fastest settings for each task; `--mode "
        "auto` uses them. Speculation is turned off for tasks where it does not beat plain decoding. Ctrl+C "
        "saves the results so far; --resume continues from there.",
    )
    add = result.add_argument
    tasks = get_args(TaskType)
    about = f"which kinds of work: {', '.join(tasks)} ({', '.join(DEFAULT_TASKS)})"
    add("--task", nargs="+", action="extend", choices=tasks, default=[], metavar="TASK", help=about)
    add("--profile", action="append", default=[], metavar="NAME", help="a profile's task; repeatable")
    add("--budget", type=budget, metavar="TIME", help="time limit of the whole run: 90s, 3m, 1h")
    about = f"settings to simulate for each task ({TRIALS}; {QUICK_TRIALS} with --quick)"
    add("--trials", type=whole(1, 1_000_000), metavar="N", help=about)
    add("--quick", action="store_true", help="shorter run: fewer samples and trials, default load options")
    add("--resume", action="store_true", help="resume the last run where it was stopped")
    about = "also try q8_0 for the target's cache, and measure how far that moves its distribution"
    add("--allow-cache-types", action="store_true", help=about)
    _add_kept_flags(result.with_output())
    add_model_flags(result)
    return result


def _add_kept_flags(result: Parser) -> None:
    add = result.add_argument_group("saved settings (instead of tuning)").add_argument
    add("--show", action="store_true", help="list saved settings, and which are out of date")
    add("--reset", action="store_true", help="forget the settings of these models, or of --task alone")
    add("-y", "--yes", action="store_true", help="do not ask before --reset")
    add("--export", choices=EXPORTS, metavar="FORMAT", help=f"print the settings as {', '.join(EXPORTS)}")
    file = "localspec-tune.html"
    drawn = "write a page that draws what the last run measured and simulated"
    add("--report", nargs="?", const=file, metavar="FILE", help=f"{drawn} ({file})")


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().parse_args(argv)
    _check(args)
    set_up_logging(verbose=args.verbose)
    if args.show or args.reset or args.export or args.report is not None:
        return _look_back(args)
    found = profiles(paths.config_dir() / "profiles")
    for problem in found.problems:
        say(f"note: {problem}")
    chosen = profiles_of(found, args.task, args.profile)
    request = with_config(pair_request(args))
    pair = plan_to_tune(request, TERMINAL, say if args.explain else None)
    stopped = stopped_profiles(found, pair) if args.resume else ()
    if args.resume and not stopped:
        say("note: no run for these models was stopped, so there is nothing to resume: this is a new one")
    if stopped and not args.task and not args.profile:
        chosen = stopped
    if args.allow_cache_types and "target_kv_type" in request.fixed:
        set_by = "-fa off" if request.flash is False else "-ctk or -ctv"
        raise UserError(
            f"--allow-cache-types lets the tuner choose the target's cache, and {set_by} decides it",
            "leave one of them out",
        )
    choice = TuneChoice(args.task, args.quick, args.resume, args.budget, args.trials, args.allow_cache_types)
    again = shlex.join(["localspec", "tune", *argv, *["--resume"] * ("--resume" not in argv)])
    return _tune(plan_of(pair, chosen, choice, request.fixed), args, again)


def _look_back(args: argparse.Namespace) -> int:
    from localspec.cli.tune import kept

    if args.export:
        return kept.export_settings(args)
    if args.report is not None:
        return kept.report(args)
    return kept.show(args) if args.show else kept.reset(args)


def _check(args: argparse.Namespace) -> None:
    verbs = ("show", "reset", "export", "report")
    wanted = [f"--{name}" for name in verbs if getattr(args, name) not in (None, False)]
    if len(wanted) > 1:
        raise UserError(f"{wanted[0]} and {wanted[1]} cannot be done at once", "do one after the other")
    ways = ("budget", "trials", "quick", "resume", "allow_cache_types")
    given = [f"--{name.replace('_', '-')}" for name in ways if getattr(args, name)]
    if wanted and given:
        raise UserError(f"{wanted[0]} does not tune, and {given[0]} says how", f"leave {given[0]} out")
    if args.quick and args.allow_cache_types:
        raise UserError("--quick tries no other ways to open the models", "leave --allow-cache-types out")
    if args.explain and args.no_fit:
        raise UserError("--explain and --no-fit cannot be combined", "use only one of them")
    if args.yes and not args.reset:
        raise UserError("-y/--yes answers a question that only --reset asks", "leave it out")


def _tune(plan: TunePlan, args: argparse.Namespace, again: str) -> int:
    """Tune with a live view, and print the results, also of a stopped run."""
    stop = StopSignal()
    shown = TuneView([profile.task for profile in plan.profiles])
    pair = plan.pair
    draft = f" + {pair.draft.path.stem}" if pair.draft is not None else ""
    say(f"tuning {pair.target.path.stem}{draft} for {', '.join(profile.name for profile in plan.profiles)}")

    def stopping() -> None:
        if not stop.wanted:
            shown.tell("stopping, in a few seconds at most")
        stop.ask()

    is_stopped = False
    with shown, on_interrupt(stopping):
        try:
            for event in run(plan, stop):
                shown.take(event)
        except (Cancelled, KeyboardInterrupt):
            is_stopped = True
    _print_results(shown.progress, pair, args, is_stopped=is_stopped)
    if is_stopped:
        say(f"stopped; results so far are saved, and `{again}` resumes it")
    return INTERRUPTED if is_stopped else SUCCESS


def _print_results(
    progress: TuneProgress, pair: OpenPlan, args: argparse.Namespace, *, is_stopped: bool
) -> None:
    value = {
        "complete": not is_stopped,
        "target": str(pair.target.path),
        "draft": None if pair.draft is None else str(pair.draft.path),
        "workplace": None if progress.workplace is None else asdict(progress.workplace.workplace),
        "distribution_shift": None
        if progress.workplace is None or progress.workplace.shift is None
        else asdict(progress.workplace.shift),
        "compared_passes": [asdict(each) | {"ratio": each.ratio} for each in progress.compared],
        "tasks": [result_json(result) for result in progress.results],
    }
    shown = result_lines(progress.results, results_width())
    print_result(value, shown, as_json=args.json, escaped=True)
    if progress.results:
        say(f"saved in {paths.data_dir() / 'tuned.json'}; `--mode auto` uses it from the next start on")


def result_json(result: TaskResult) -> dict[str, object]:
    """Return a result as it is written to JSON."""
    return asdict(result) | {"winner": asdict(result.winner), "of_llama_cpp": llama_ratio(result)}


def lasting(event: TuneEvent, ended: StageStatus | None, progress: TuneProgress) -> Iterator[str]:
    """Yield what stays readable after an event."""
    if ended is not None:
        yield from stage_ended(ended, progress)
    match event:
        case LoadOptionsChosen():
            yield f"  {attempts_words(event)}; {load_options_words(event.workplace)}"
            yield f"  {event.reason}"
            if words := shift_words(event):
                yield f"  {words}"
        case PassesCompared(passes):
            yield f"  {compared_words(passes)}"
        case TaskResult():
            yield result_words(event)


def stage_began(event: StageBegan) -> str:
    """Return that a stage begins, where no line shows it."""
    line = f"{_title(event.stage, event.task)}: {STAGE_WORDS[event.stage]}"
    return f"{line}, up to {event.steps} {UNITS[event.stage]}" if event.steps > 1 else line


def stage_ended(state: StageStatus, progress: TuneProgress) -> Iterator[str]:
    """Yield what came of a stage."""
    title = f"{DONE} {_title(state.stage, state.task)}"
    took = "" if state.took_s is None else f", {duration(state.took_s)}"
    why = f" ({state.note})" if state.note and state.done < state.steps else ""
    yield f"{title}: {counts(state)}{why}{took}"
    best = progress.of(state.task).best if state.task is not None else None
    if state.stage == "study" and best is not None:
        yield f"  best: {settings_words(best.settings)}: {best_words(best)}"


def result_words(result: TaskResult) -> str:
    """Return a result in a line that can be read in passing."""
    if result.settings.mode == "off":
        return f"{DONE} {result.task}: plain decoding; {result.reason}"
    winner = result.winner
    gain = f"×{winner.gain.value:.2f} of plain ({gain_interval(winner.gain)})"
    words = settings_words(result.settings)
    return f"{DONE} {result.task}: {words}: {figure(winner.rate.value)} tokens/s, {gain}"


def status(progress: TuneProgress, state: StageStatus, now_s: float) -> str:
    """Return the running stage in a line, the best so far and the time."""
    parts = [f"{_title(state.stage, state.task)}: {counts(state)}", state.note]
    if state.task is not None and (best := progress.of(state.task).best) is not None:
        parts.append(f"best {best_words(best)}")
    left_s = progress.left_s(now_s)
    parts.append(f"{clock(progress.took_s(now_s))} so far")
    parts.append("" if left_s is None else f"about {duration(left_s)} left")
    return "  ".join(filter(None, parts))


def _title(stage: str, task: str | None) -> str:
    return stage if task is None else f"{task}, {stage}"


class TuneView(ConsoleStatus):
    """Says what a run does: a line for each stage, and below it where it is; a context manager."""

    def __init__(self, tasks: Sequence[TaskType]) -> None:
        """Begin now."""
        super().__init__()
        self.progress = TuneProgress(tasks, time.monotonic())

    def take(self, event: TuneEvent) -> None:
        """Show what an event says."""
        now_s = time.monotonic()
        ended = self.progress.take(event, now_s)
        self.tell(*lasting(event, ended, self.progress))
        if not self.enabled and isinstance(event, StageBegan):
            self.tell(stage_began(event))
        elif self.progress.current is not None:
            self.update(status(self.progress, self.progress.current, now_s))

    def tell(self, *lines: str) -> None:
        """Say something else, which stays."""
        self.clear()
        for line in lines:
            say(line)
