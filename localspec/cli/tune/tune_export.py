"""`localspec tune --export`: tuned settings for other programs."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast, get_args

from localspec.app.options import PairOptions
from localspec.app.tuned_pair import without_given
from localspec.app.tuning import at_workplace, identity_of, seated_pair
from localspec.cli.shared.console import say
from localspec.cli.shared.errors import SUCCESS
from localspec.cli.tune.kept import SCHEMA, pair_name, tasks_of
from localspec.errors import UserError
from localspec.types import TaskType

if TYPE_CHECKING:
    from localspec.storage.tuned import Identity
    from localspec.tuning.export import ExportForm


@dataclass(frozen=True, slots=True)
class ExportedTask:
    """A task's settings as text."""

    task: TaskType
    text: str


def main(args: argparse.Namespace) -> int:
    """Print the settings of the models that the arguments name."""
    from localspec.storage.tuned import recall_workplace

    pair = seated_pair(args)
    identity = identity_of(pair)
    workplace = recall_workplace(identity)
    opened = pair if workplace is None else at_workplace(pair, without_given(workplace, args))
    found = exported(args.export, opened, identity, tasks_of(args))
    if args.json:
        values = [asdict(each) for each in found]
        print(json.dumps({"schema": SCHEMA, "format": args.export, "tasks": values}))
    else:
        print(together(args.export, found), end="")
    return SUCCESS


def exported(
    form: ExportForm, opened: PairOptions, identity: Identity, tasks: tuple[TaskType, ...]
) -> list[ExportedTask]:
    """Return the settings of tasks, of all that are tuned without any; raises UserError without settings."""
    from localspec.storage.tuned import recall
    from localspec.tuning.export import Exported, export

    name, found, missing = pair_name(identity), [], []
    for task in tasks or cast("tuple[TaskType, ...]", get_args(TaskType)):
        recalled = recall(identity, task)
        if recalled.tuned is None:
            missing.append(task)
            continue
        for change in recalled.stale:
            say(f"note: {task}: out of date: {change}")
        title = f"{name.replace(' ', '')}-{task}"
        given = Exported(title, recalled.tuned.settings, opened.target, opened.draft, opened.draft_threads)
        found.append(ExportedTask(task, export(form, given)))
    if not found or (tasks and missing):
        raise UserError(
            f"{name} is not tuned" + (f" for {', '.join(missing)}" if tasks else ""),
            "run `localspec tune` first",
        )
    return found


def together(form: ExportForm, found: list[ExportedTask]) -> str:
    """Return all settings as one text, which is one file where the format allows for several."""
    if form == "llama-swap":
        blocks = [each.text.replace("models:\n", "", 1) for each in found]
        return "models:\n" + "\n".join(blocks)
    if len(found) == 1:
        return found[0].text
    mark = ";" if form == "preset.ini" else "#"
    return "\n".join(f"{mark} {each.task}\n{each.text}" for each in found)
