"""Saved results of `localspec tune`: list, delete and export them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from localspec.app.opening import as_tuned, identity_of, with_config
from localspec.app.tuning import TuneChoice, plan_of, plan_to_tune, profiles_of, profiles_of_run
from localspec.cli.shared.arguments import pair_request
from localspec.cli.shared.console import (
    FAILURE,
    SUCCESS,
    confirm_with_user,
    is_terminal,
    print_json,
    print_result,
    results_width,
    say,
)
from localspec.cli.shared.opening import TERMINAL
from localspec.errors import LocalSpecError, UserError
from localspec.storage import paths
from localspec.storage.pair_identity import Identity, ModelFacts, changes, fingerprint
from localspec.storage.profiles import profiles
from localspec.storage.tuned_settings import TunedEntry, TunedTask, everything, forget, recall
from localspec.tuning.run_folder import RunFolder, RunState
from localspec.tuning.words import figure, settings_words
from localspec.types.request import TaskType
from localspec.units import ago, columns, counted

if TYPE_CHECKING:
    from localspec.hardware.placement.open_plan import OpenPlan
    from localspec.tuning.export import ExportForm


_HEAD = ("", "task", "settings", "tokens/s", "of plain (95%)", "tuned")
_RIGHT = frozenset({3})


def show(args: argparse.Namespace) -> int:
    """List the saved settings of all models."""
    kept, note = everything()
    if note:
        say(f"note: {note}")
    chosen = tasks_of(args)
    found = [each for each in kept if not chosen or each.tuned.task in chosen]
    now = _present(args) if found else None
    listed = [(kept, _stale(kept.identity, now)) for kept in found]
    if not listed and not args.json:
        for_tasks = f" for {', '.join(chosen)}" if chosen else ""
        say(f"nothing is tuned yet{for_tasks}; `localspec tune` does it")
    value = {"kept": [asdict(kept) | {"stale": stale} for kept, stale in listed]}
    shown = lines(listed, results_width(), datetime.now(UTC))
    print_result(value, shown, as_json=args.json, escaped=True)
    return SUCCESS


def lines(listed: Sequence[tuple[TunedEntry, Sequence[str]]], width: int, now: datetime) -> Iterator[str]:
    """Return the saved settings by pair of models, each with the changes since then."""
    by_pair = sorted(listed, key=lambda each: (pair_name(each[0].identity), each[0].tuned.task))
    for name, group in groupby(by_pair, key=lambda each: pair_name(each[0].identity)):
        yield name
        each_of = list(group)
        rows = [_row(kept.tuned, now) for kept, _ in each_of]
        table = columns((_HEAD, *rows), _RIGHT)
        fits = max(map(len, table)) <= width
        if fits:
            yield table[0]
        for line, row, (_, stale) in zip(table[1:], rows, each_of, strict=True):
            yield from [line] if fits else _narrow(*row)
            for change in stale:
                yield f"    out of date: {change}"


def pair_name(identity: Identity) -> str:
    """Return the names of a pair's files."""
    draft = "" if identity.draft is None else f" + {Path(identity.draft.path).stem}"
    return f"{Path(identity.target.path).stem}{draft}"


def _row(tuned: TunedTask, now: datetime) -> tuple[str, ...]:
    gain = f"×{tuned.gain:.2f} ({tuned.gain_low:.2f}-{tuned.gain_high:.2f})"
    return (
        "",
        tuned.task,
        settings_words(tuned.settings),
        figure(tuned.rate),
        "-" if tuned.settings.mode == "off" else gain,
        ago(tuned.measured_at, now),
    )


def _narrow(_name: str, task: str, settings: str, rate: str, gain: str, when: str) -> Iterator[str]:
    yield f"  {task}: {settings}"
    yield f"    {rate} tokens/s, {gain} of plain, {when}" if gain != "-" else f"    {rate} tokens/s, {when}"


def _stale(kept: Identity, now: Identity | None) -> tuple[str, ...]:
    """Return the changes: for the current pair also of its placement, for others of machine and files."""
    if now is None:
        return ()
    if (kept.target.path, kept.draft and kept.draft.path) == (now.target.path, now.draft and now.draft.path):
        return changes(kept, now)
    gone = [model.path for model in (kept.target, kept.draft) if model and not Path(model.path).exists()]
    if gone:
        return tuple(f"{path} is gone" for path in gone)
    target = _as_it_is(kept.target)
    draft = kept.draft and _as_it_is(kept.draft)
    return changes(kept, replace(kept, machine=now.machine, target=target, draft=draft))


def _as_it_is(model: ModelFacts) -> ModelFacts:
    with suppress(LocalSpecError):
        return replace(model, fingerprint=fingerprint(Path(model.path)))
    return model


def _present(args: argparse.Namespace) -> Identity | None:
    """Return the identity of models opened now; None if they cannot be."""
    try:
        return identity_of(_plan(args))
    except LocalSpecError as error:
        say(f"note: cannot check for outdated settings: {error}")
        return None


def _plan(args: argparse.Namespace) -> OpenPlan:
    return plan_to_tune(with_config(pair_request(args)), TERMINAL)


def reset(args: argparse.Namespace) -> int:
    """Forget the settings of the models that the arguments name; ask before."""
    identity = identity_of(_plan(args))
    chosen = tasks_of(args)
    what = f"the settings of {pair_name(identity)}" + (f" for {', '.join(chosen)}" if chosen else "")
    if not args.yes and not is_terminal(sys.stdin):
        raise UserError("--reset needs a terminal to ask for confirmation", "add --yes to skip the question")
    if not args.yes and not confirm_with_user(f"Forget {what}?"):
        say("nothing was forgotten")
        return FAILURE
    count = sum(forget(identity, task) for task in chosen or (None,))
    with suppress(OSError):  # how far the last run came
        RunFolder(identity.pair).state.path.unlink(missing_ok=True)
    if args.json:
        print_json({"forgotten": count})
    else:
        say(f"forgot {counted(count, 'task')}" if count else f"{what[4:]} were not saved anyway")
    return SUCCESS


def report(args: argparse.Namespace) -> int:
    """Write a page about the last run on these models, and print where it is; raises UserError."""
    try:
        from localspec.tuning.report import page
    except ModuleNotFoundError:
        install = "run `pip install 'localspec[report]'`"
        raise UserError("plotly, which draws the page, is not installed", install) from None
    path = paths.expanded(args.report).absolute()
    if path.suffix != ".html":  # nothing else is written over
        raise UserError(f"the page is HTML, and `{args.report}` does not end in .html", "name another file")
    pair = _plan(args)
    chosen = tasks_of(args)
    identity = identity_of(pair)
    name = pair_name(identity)
    folder = RunFolder(identity.pair)
    state = folder.state.read() or RunState(0)
    shown = [each for each in state.tasks if each.result and each.task in (chosen or get_args(TaskType))]
    if not shown:
        what = f"no saved run of {name} has tuned {' or '.join(chosen) or 'anything'}"
        raise UserError(what, "run `localspec tune` first")
    found = profiles_of_run(profiles(paths.config_dir() / "profiles"), shown)
    plan = plan_of(pair, found, TuneChoice(()))
    traces = folder.path / "traces"
    paths.write_atomically(path, page(f"Tuning {name}", state, plan, traces, say))
    print_result({"file": str(path)}, (str(path),), as_json=args.json, escaped=True)
    return SUCCESS


def tasks_of(args: argparse.Namespace) -> tuple[TaskType, ...]:
    """Return the tasks that the arguments name, none of them for all."""
    if not args.task and not args.profile:
        return ()
    found = profiles_of(profiles(paths.config_dir() / "profiles"), args.task, args.profile)
    return tuple(profile.task for profile in found)


def export_settings(args: argparse.Namespace) -> int:
    """Print the settings of tasks, of all that are tuned without any; raises UserError without settings."""
    from localspec.tuning.export import Exported, export

    pair = _plan(args)
    identity = identity_of(pair)
    tasks = tasks_of(args)
    opened = as_tuned(pair, identity, pair_request(args))
    name = pair_name(identity)
    for note in opened.notes[len(pair.notes) :]:
        say(f"note: {note}")
    found = dict[TaskType, str]()
    missing = []
    for task in tasks or cast("tuple[TaskType, ...]", get_args(TaskType)):
        recalled = recall(identity, task)
        if recalled.tuned is None:
            missing.append(task)
            continue
        for change in recalled.stale:
            say(f"note: {task}: out of date: {change}")
        title = f"{name.replace(' ', '')}-{task}"
        given = Exported(title, recalled.tuned.settings, opened.target, opened.draft)
        found[task] = export(args.export, given)
    if not found or (tasks and missing):
        for_tasks = f" for {', '.join(missing)}" if tasks else ""
        raise UserError(f"{name} is not tuned{for_tasks}", "run `localspec tune` first")
    if args.json:
        values = [{"task": task, "text": text} for task, text in found.items()]
        print_json({"format": args.export, "tasks": values})
    else:
        print(together(args.export, found), end="")
    return SUCCESS


def together(form: ExportForm, found: dict[TaskType, str]) -> str:
    """Return all settings as one text, which is one file where the format allows for several."""
    if form == "llama-swap":
        return "models:\n" + "\n".join(text.replace("models:\n", "", 1) for text in found.values())
    if len(found) == 1:
        return next(iter(found.values()))
    mark = ";" if form == "preset.ini" else "#"
    return "\n".join(f"{mark} {task}\n{text}" for task, text in found.items())
