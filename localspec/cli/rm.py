"""`localspec rm`: delete models from the caches."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from localspec import units
from localspec.cli.shared.arguments import Parser, add_verbose_flag, verb_parser
from localspec.cli.shared.console import FAILURE, SUCCESS, confirm_with_user, is_terminal, print_json, say
from localspec.errors import UserError
from localspec.models.default_pair import on_this_computer
from localspec.models.local import LocalModel, named, no_such_model
from localspec.models.removal import Removal, plan_removal, remove
from localspec.safe_text import safe_line
from localspec.storage.config import read_config
from localspec.storage.kept_caches import caches_dir, figures, forget_all
from localspec.storage.paths import config_dir
from localspec.units import counted


def parser() -> Parser:
    """Return the parser of `localspec rm`."""
    result = verb_parser(
        "rm",
        "Delete models from the caches of Hugging Face, llama.cpp and LM Studio; never from anywhere else. "
        "Files that another model also uses stay, and so do files outside the cache that links lead to. "
        "With --caches, delete the saved KV caches of conversations instead.",
    )
    result.add_argument(
        "model", nargs="*", metavar="NAME", help="a name or path that `localspec models` lists"
    )
    about = "delete instead the KV caches of all conversations that are on disk (see cache_disk)"
    result.add_argument("--caches", action="store_true", help=about)
    result.add_argument("--yes", "-y", action="store_true", help="do not ask")
    result.add_argument("--json", action="store_true", help="print one JSON object; needs --yes")
    add_verbose_flag(result.add_argument, "tracebacks")
    return result


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().parse_args(argv)
    if args.caches or not args.model:
        return _remove_caches(args)
    config = read_config(config_dir() / "config.toml")
    configured = [path for path in (config.target, config.draft) if path is not None]
    models = on_this_computer()
    chosen: dict[Path, LocalModel] = {}
    for text in args.model:
        model = named(text, models)
        if model is None:
            raise no_such_model(text, models)
        model = model.called(text)
        chosen[model.path] = model
    removals = [plan_removal(model) for model in chosen.values()]
    _check_can_ask(args)
    for removal in removals:
        if not args.json:
            _announce(removal, configured)
    what = removals[0].model.name if len(removals) == 1 else f"these {len(removals)} models"
    if not args.yes and not confirm_with_user(f"Delete {safe_line(what)}?"):
        say("nothing was deleted")
        return FAILURE
    done = []
    for model in chosen.values():
        removal = plan_removal(model)  # files shared with the one before are now its own
        remove(removal)
        done.append(removal)
    _tell(done, as_json=args.json)
    return SUCCESS


def _check_can_ask(args: argparse.Namespace) -> None:
    if not args.yes and (args.json or not is_terminal(sys.stdin)):
        raise UserError(
            "cannot ask for confirmation: standard input is not a terminal",
            "add --yes to delete without asking",
        )


def _remove_caches(args: argparse.Namespace) -> int:
    """Delete the KV caches of conversations; raises UserError where models are named as well, or nothing."""
    if args.model or not args.caches:
        raise UserError(
            "`localspec rm` needs either names of models or --caches", "`localspec models` lists them"
        )
    _check_can_ask(args)
    there = figures()
    if not args.json:
        say(f"{counted(there.count, 'conversation')}, {units.size(there.bytes)} in {caches_dir()}")
    if not args.yes and not confirm_with_user("Delete their caches? The chats stay."):
        say("nothing was deleted")
        return FAILURE
    gone = forget_all()
    if args.json:
        print_json({"freed": gone.bytes, "caches": gone.count})
    else:
        say(f"deleted; {units.size(gone.bytes)} freed")
    return SUCCESS


def _announce(removal: Removal, configured: Sequence[Path]) -> None:
    say(f"{removal.model.name}: frees {units.size(removal.freed)}")
    for path in removal.paths:
        say(f"  {path}")
    for reason in removal.kept:
        say(f"  {reason}")
    entries = {path.parent.resolve() / path.name for path in removal.paths}
    if any(path in removal.paths or path.resolve() in entries for path in configured):
        say("  config.toml opens it; `localspec setup` chooses other models")


def _tell(removals: Sequence[Removal], *, as_json: bool) -> None:
    freed = sum(removal.freed for removal in removals)
    if not as_json:
        is_any = any(removal.paths for removal in removals)
        say(f"deleted; {units.size(freed)} freed" if is_any else "nothing was deleted")
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
    print_json({"freed": freed, "models": models})
