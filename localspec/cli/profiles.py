"""`localspec profiles`: list, show, edit and copy profiles."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from localspec import units
from localspec.app.editor import edit_profile
from localspec.cli.shared.arguments import Parser, add_json_flag, verb_parser, with_command
from localspec.cli.shared.console import FAILURE, SUCCESS, print_json, print_result, say
from localspec.models.default_pair import default_pair
from localspec.models.recommended import recommended_for, suited
from localspec.storage.paths import config_dir
from localspec.storage.profiles import Profile, copy_profile, profile, profiles, shipped_files
from localspec.types.request import Sampling
from localspec.values import plain

_HEADINGS = ("NAME", "TITLE", "TASK", "FROM", "DESCRIPTION")


def origin(profile: Profile) -> str:
    """Return the origin of a profile."""
    shipped = shipped_files().get(profile.name)
    if shipped is None:
        return "own"
    return "shipped" if profile.path == shipped else "own over shipped"


def table(profiles: Iterable[Profile]) -> list[str]:
    """Return a line for each profile."""
    rows = ((known.name, known.title, known.task, origin(known), known.description) for known in profiles)
    return units.columns([_HEADINGS, *rows])


def described(profile: Profile) -> list[str]:
    """Return all settings of a profile, with defaults filled in."""
    speculation = profile.speculation.settled
    prompts = profile.tuning_prompts()
    whose = "its own" if profile.own_tuning else f"of the shipped profile for {profile.task}"
    usual = suited(profile, recommended_for(default_pair()[0])).sampling  # of the model that opens by itself
    left = [field.name for field in fields(Sampling) if field.name not in profile.settles]
    facts = [
        ("task", profile.task),
        ("from", f"{origin(profile)}: {profile.path}"),
        ("sampling", _values(asdict(profile.sampling))),
        *([("left open", f"to what the model's file recommends: {', '.join(left)}")] if left else []),
        *([] if usual == profile.sampling else [("with SmolLM2", _values(asdict(usual)))]),
        ("speculation", _values(speculation) or "as tuned, else as measured"),
        ("tools", _tools(profile)),
        ("tuning", f"{len(prompts.prompts)} prompts and {len(prompts.held_out)} held out, {whose}"),
    ]
    lines = [f"{profile.name}: {profile.title}"]
    lines += [f"  {profile.description}"] if profile.description else []
    lines += [f"  {line}" for line in units.columns(facts)]
    return [*lines, "", *(profile.system_prompt.splitlines() or ["(no system prompt)"])]


def _heading(profile: Profile) -> dict[str, str]:
    shown = {name: getattr(profile, name) for name in ("name", "title", "description", "task")}
    return {**shown, "from": origin(profile), "path": str(profile.path)}


def as_json(profile: Profile) -> dict[str, object]:
    """Return all settings of a profile for `--json`."""
    prompts = profile.tuning_prompts()
    return {
        **_heading(profile),
        "system_prompt": profile.system_prompt,
        "thinking_budget": profile.thinking_budget,
        "summary_prompt": profile.summary_prompt,
        "sampling": asdict(profile.sampling),
        "settles": list(profile.settles),
        "speculation": profile.speculation.settled,
        "tools": plain(profile.tools),
        "tuning": {"own": profile.own_tuning is not None, **asdict(prompts)},
    }


def _tools(profile: Profile) -> str:
    names = ", ".join((*profile.tools.groups, *profile.tools.servers))
    return f"{names} ({'on' if profile.tools.on else 'off'})" if names else "none"


def _values(values: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def parser() -> Parser:
    """Return the parser of `localspec profiles`."""
    result = verb_parser(
        "profiles",
        "A profile sets the system prompt and the sampling for one task. Without a command, list them. Your "
        "profiles override built-in ones of the same name.",
    )
    commands = result.add_subparsers(metavar="COMMAND", dest="command")

    def add(name: str, help_: str, more: str = "") -> Parser:
        command: Parser = commands.add_parser(
            name, help=help_, description=f"{help_[0].upper()}{help_[1:]}.{more}", allow_abbrev=False
        )
        add_json_flag(command.add_argument)
        return command

    add("list", "list the profiles: name, title, task, origin and problems")
    add("show", "show all settings of a profile").add_argument("name", metavar="NAME")
    editing = add(
        "edit",
        "change a profile in $VISUAL or $EDITOR",
        " A built-in one is copied first. The saved file is checked. "
        'An editor that opens its own window has to wait for it to close: EDITOR="code -w".',
    )
    editing.add_argument("name", metavar="NAME")
    copying = add(
        "copy",
        "copy a profile to your own under a new name",
        " Under the name of a built-in one it overrides that.",
    )
    copying.add_argument("name", metavar="NAME")
    copying.add_argument("new", metavar="NEW")
    return result


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().parse_args(with_command("profiles", argv, _COMMANDS, _hint))
    return _COMMANDS[args.command](args, config_dir() / "profiles")


def _hint(word: str) -> str:
    """Return the suggestion for an unknown command."""
    is_profile = word in shipped_files()
    return f"try `localspec profiles show {word}`" if is_profile else f"try {', '.join(_COMMANDS)}"


def _list(args: argparse.Namespace, folder: Path) -> int:
    found = profiles(folder)
    listed = [_heading(known) for known in found]
    problems = [{"message": problem.message, "hint": problem.hint} for problem in found.problems]
    value = {"folder": str(folder), "profiles": listed, "problems": problems}
    print_result(value, table(found), as_json=args.json, escaped=True)
    if not args.json:
        for problem in found.problems:
            say(f"not used: {problem}")
        say(f"your own are in {folder}")
    return SUCCESS


def _show(args: argparse.Namespace, folder: Path) -> int:
    shown = profile(args.name, folder)
    print_result(as_json(shown), described(shown), as_json=args.json, escaped=True)
    return SUCCESS


def _copy(args: argparse.Namespace, folder: Path) -> int:
    path = copy_profile(args.name, args.new, folder)
    if args.json:
        print_json({"name": args.new, "path": str(path)})
        return SUCCESS
    if args.new in shipped_files():
        say(f"it now overrides the built-in profile `{args.new}`")
    say(f"copied to {path}; `localspec profiles edit {args.new}` changes it, its title first of all")
    return SUCCESS


def _edit(args: argparse.Namespace, folder: Path) -> int:
    code, is_changed = edit_profile(args.name, folder)
    if code:
        say(f"the editor ended with code {code}")
        return FAILURE
    path = folder / f"{args.name}.toml"
    if args.json:
        print_json({"name": args.name, "path": str(path), "changed": is_changed})
    else:
        say(f"saved {path}" if is_changed else "nothing was changed")
    return SUCCESS


_COMMANDS: dict[str, Callable[[argparse.Namespace, Path], int]] = {
    "list": _list,
    "show": _show,
    "edit": _edit,
    "copy": _copy,
}
