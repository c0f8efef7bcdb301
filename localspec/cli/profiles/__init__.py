"""`localspec profiles`: list, show, edit and copy what the assistant is told for each kind of work."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path

from localspec.cli.profiles.profiles_own import content, write
from localspec.cli.profiles_text import as_json, described, origin, table
from localspec.cli.shared.arguments import Parser, verb_parser
from localspec.cli.shared.console import say
from localspec.cli.shared.errors import SUCCESS
from localspec.errors import UserError
from localspec.storage.paths import config_dir
from localspec.storage.profiles import files_in, profile, profiles, shipped_files

SCHEMA = 1
RESERVED = ("auto",)  # is no profile but the choice among them
_NAME = re.compile(r"\w[\w-]{0,39}")


def parser() -> Parser:
    """Return the parser of `localspec profiles`."""
    result = verb_parser(
        "profiles",
        "Profiles say what the assistant is told and how it picks its words, for one kind of work each. "
        "Without a command: list them. Your own go before shipped ones of the same name.",
    )
    commands = result.add_subparsers(metavar="COMMAND", dest="command")

    def add(name: str, help_: str, more: str = "") -> Parser:
        command: Parser = commands.add_parser(
            name, help=help_, description=f"{help_[0].upper()}{help_[1:]}.{more}", allow_abbrev=False
        )
        command.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        return command

    add("list", "list the profiles: name, title, task, where it is from, and what is wrong")
    add("show", "show everything that a profile settles").add_argument("name", metavar="NAME")
    editing = add(
        "edit",
        "change a profile in $VISUAL or $EDITOR",
        " A shipped one is copied to your own first. What you saved is checked before it counts. "
        'An editor that opens its own window has to wait for it to close: EDITOR="code -w".',
    )
    editing.add_argument("name", metavar="NAME")
    copying = add(
        "copy",
        "copy a profile to your own under a new name",
        " The tuning prompts of a shipped one are left out: "
        "without its own, a profile is tuned with those of the shipped one for its task.",
    )
    copying.add_argument("name", metavar="NAME")
    copying.add_argument("new", metavar="NEW")
    return result


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    args = parser().parse_args(_with_command(argv))
    return _COMMANDS[args.command](args, config_dir() / "profiles")


def _with_command(argv: Sequence[str]) -> list[str]:
    """Return the arguments with `list` for a command that is not there; refuse one that does not exist."""
    place = next((at for at, word in enumerate(argv) if not word.startswith("-")), None)
    if place is None:
        return [*argv] if {"-h", "--help"} & {*argv} else ["list", *argv]
    first = argv[place]
    if first in _COMMANDS:
        return [first, *argv[:place], *argv[place + 1 :]]
    close = get_close_matches(first.lower(), _COMMANDS, n=1)
    meant = f"; did you mean `{close[0]}`?" if close else ""
    hint = f"`localspec profiles show {first}`" if first in shipped_files() else f"{', '.join(_COMMANDS)}"
    raise UserError(f"`localspec profiles` has no command `{first}`{meant}", f"try {hint}")


def _list(args: argparse.Namespace, folder: Path) -> int:
    found = profiles(folder)
    problems = list(found.problems)
    if args.json:
        listed = [
            {
                "name": known.name,
                "title": known.title,
                "description": known.description,
                "task": known.task,
                "from": origin(known),
                "path": str(known.path),
            }
            for known in found
        ]
        told = [{"message": problem.message, "hint": problem.hint} for problem in problems]
        print(json.dumps({"schema": SCHEMA, "folder": str(folder), "profiles": listed, "problems": told}))
        return SUCCESS
    print("\n".join(table(found)))
    for problem in problems:
        say(f"not used: {problem}")
    say(f"your own are in {folder}")
    return SUCCESS


def _show(args: argparse.Namespace, folder: Path) -> int:
    shown = profile(args.name, folder)
    if args.json:
        print(json.dumps({"schema": SCHEMA, **as_json(shown)}))
    else:
        print("\n".join(described(shown)))
    return SUCCESS


def _edit(args: argparse.Namespace, folder: Path) -> int:
    from localspec.cli.profiles.edit import edit

    return edit(args.name, folder, as_json=args.json)


def _copy(args: argparse.Namespace, folder: Path) -> int:
    data = content(args.name, folder)
    _check_name(args.new, folder)
    path = folder / f"{args.new}.toml"
    write(path, data)
    if args.json:
        print(json.dumps({"schema": SCHEMA, "name": args.new, "path": str(path)}))
        return SUCCESS
    if args.new in shipped_files():
        say(f"from now on it takes the place of the shipped profile `{args.new}`")
    say(f"copied to {path}; `localspec profiles edit {args.new}` changes it, its title first of all")
    return SUCCESS


def _check_name(name: str, folder: Path) -> None:
    if not _NAME.fullmatch(name):
        raise UserError(f"`{name}` cannot be the name of a profile", "use letters, digits, - and _")
    if name.lower() in RESERVED:
        raise UserError(f"`{name}` cannot be the name of a profile: it means to choose one for each message")
    taken = {own.casefold(): path for own, path in files_in(folder).items()}  # some disks ignore case
    if name.casefold() in taken:
        raise UserError(f"there is a profile `{name}` of your own already: {taken[name.casefold()]}")


_COMMANDS: dict[str, Callable[[argparse.Namespace, Path], int]] = {
    "list": _list,
    "show": _show,
    "edit": _edit,
    "copy": _copy,
}
