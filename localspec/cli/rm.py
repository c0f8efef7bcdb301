"""`localspec rm`: delete models from the caches."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from localspec.cli import amounts
from localspec.cli.arguments import Parser, verb_parser
from localspec.cli.console import is_terminal, say
from localspec.cli.models import on_this_computer
from localspec.cli.report import FAILURE, SUCCESS
from localspec.errors import UserError
from localspec.models.local import named, no_such_model
from localspec.models.local_removal import Removal, plan_removal, remove

SCHEMA = 1


def parser() -> Parser:
    """Return the parser of `localspec rm`."""
    result = verb_parser(
        "rm",
        "Delete models from the caches of Hugging Face, llama.cpp and LM Studio; never from anywhere else. "
        "What another model uses too stays.",
    )
    result.add_argument(
        "model", nargs="+", metavar="NAME", help="a name or path that `localspec models` lists"
    )
    result.add_argument("--yes", "-y", action="store_true", help="do not ask")
    result.add_argument("--json", action="store_true", help="print one JSON object; needs --yes")
    return result


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    args = parser().parse_args(argv)
    models = on_this_computer()
    removals = []
    for text in dict.fromkeys(args.model):
        model = named(text, models)
        if model is None:
            raise no_such_model(text, models)
        removals.append(plan_removal(model))
    if not args.yes and (args.json or not is_terminal(sys.stdin)):
        raise UserError("nobody is there to be asked", "say --yes to delete without a question")
    for removal in removals:
        if not args.json:
            _announce(removal)
    if not args.yes and not _agrees(removals):
        say("nothing was deleted")
        return FAILURE
    for removal in removals:
        remove(removal)
    _tell(removals, as_json=args.json)
    return SUCCESS


def _announce(removal: Removal) -> None:
    say(f"{removal.model.name}: frees {amounts.size(removal.freed)}")
    for path in removal.paths:
        say(f"  {path}")
    for reason in removal.kept:
        say(f"  {reason}")


def _agrees(removals: Sequence[Removal]) -> bool:
    what = removals[0].model.name if len(removals) == 1 else f"these {len(removals)} models"
    sys.stderr.write(f"Delete {what}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _tell(removals: Sequence[Removal], *, as_json: bool) -> None:
    freed = sum(removal.freed for removal in removals)
    if not as_json:
        say(f"deleted; {amounts.size(freed)} freed")
        return
    models = [
        {
            "name": removal.model.name,
            "deleted": [str(path) for path in removal.paths],
            "freed": removal.freed,
            "kept": list(removal.kept),
        }
        for removal in removals
    ]
    print(json.dumps({"schema": SCHEMA, "freed": freed, "models": models}))
