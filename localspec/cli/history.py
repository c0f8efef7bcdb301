"""`localspec history`: list, search, show, export, import and delete kept chats."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from localspec.cli import history_files, history_text
from localspec.cli.shared.arguments import Parser, verb_parser
from localspec.cli.shared.console import say
from localspec.cli.shared.errors import SUCCESS
from localspec.cli.shared.values import whole
from localspec.errors import UserError
from localspec.storage import paths

if TYPE_CHECKING:
    from localspec.chat.store.store import Store

Action = Callable[["Store", argparse.Namespace], None]


def parser() -> Parser:
    """Return the parser of `localspec history`."""
    result = verb_parser("history", "Find, keep and remove earlier chats. Without a command: list them.")
    commands = result.add_subparsers(metavar="COMMAND", dest="command")

    def add(name: str, help_: str) -> Parser:
        command: Parser = commands.add_parser(name, help=help_, description=help_, allow_abbrev=False)
        command.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        command.add_argument("-v", "--verbose", action="store_true", help="print tracebacks")
        return command

    listing = add("list", "list the chats: number, last change, messages, title")
    listing.add_argument("--deleted", action="store_true", help="those that can be restored instead")
    finding = add("search", "find words in titles and messages; the last may be the beginning of a word")
    finding.add_argument("words", nargs="+", metavar="WORD")
    finding.add_argument(
        "-n", "--limit", type=whole(1, 10_000), default=50, metavar="N", help="most hits (50)"
    )
    add("show", "print the shown branch of a chat").add_argument("id", type=_number, metavar="ID")
    exporting = add("export", "write chats as Markdown, or as JSON with all branches")
    exporting.add_argument("ids", nargs="*", type=_number, metavar="ID")
    exporting.add_argument("--all", action="store_true", help="every chat")
    exporting.add_argument("-o", "--output", metavar="PATH", help="file or folder to write to")
    exporting.add_argument("--format", choices=("md", "json"), help="md (default) or json")
    exporting.add_argument("--force", action="store_true", help="write over files that exist")
    importing = add("import", "add chats from exported JSON; - reads standard input")
    importing.add_argument("files", nargs="+", metavar="FILE")
    for name, what in (
        ("delete", "remove chats; they can be restored for 30 days"),
        ("restore", "undo delete"),
    ):
        add(name, what).add_argument("ids", nargs="+", type=_number, metavar="ID")
    add("path", "print which file holds the chats")
    return result


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    arguments = _with_command(argv)
    args = parser().parse_args(arguments)
    if args.command == "path":
        history_text.print_path(paths.chats_file(), as_json=args.json)
        return SUCCESS
    from localspec.chat.store.store import (
        Store,  # SQLite: 10 ms that a mistake in the arguments should not cost
    )

    with Store(paths.chats_file()) as store:
        _ACTIONS[args.command](store, args)
    return SUCCESS


def _with_command(argv: Sequence[str]) -> list[str]:
    """Return the arguments with `list` for a command that is not there; refuse one that does not exist."""
    place = next((i for i, word in enumerate(argv) if not word.startswith("-")), None)
    if place is None:
        return [*argv] if {"-h", "--help"} & {*argv} else ["list", *argv]
    first = argv[place]
    if first not in _COMMANDS:
        close = get_close_matches(first.lower(), _COMMANDS, n=1)
        guess = f"; did you mean `{close[0]}`?" if close else ""
        question = " ".join(["history", *argv])
        raise UserError(
            f"`localspec history` has no command `{first}`{guess}",
            f'the commands are {", ".join(_COMMANDS)}; to ask the model, write `localspec run "{question}"`',
        )
    return [first, *argv[:place], *argv[place + 1 :]]


def _number(text: str) -> int:
    return whole(1, 2**63 - 1)(text)


def _list(store: Store, args: argparse.Namespace) -> None:
    chats = store.deleted() if args.deleted else store.chats()
    history_text.print_chats(chats, as_json=args.json)
    if not chats:
        say("no deleted chats" if args.deleted else "no chats yet")


def _search(store: Store, args: argparse.Namespace) -> None:
    hits = store.search(" ".join(args.words), args.limit)
    history_text.print_hits(hits, as_json=args.json)
    if not hits:
        say("nothing found")


def _show(store: Store, args: argparse.Namespace) -> None:
    form: history_files.Format = "json" if args.json else "md"
    history_text.print_text(history_files.chat_text(store, store.chat(args.id), form))


def _export(store: Store, args: argparse.Namespace) -> None:
    if bool(args.ids) == args.all:
        raise UserError("name the chats to export", "give their numbers, or --all")
    chats = store.chats() if args.all else tuple(store.chat(number) for number in dict.fromkeys(args.ids))
    if args.output in {None, "-"}:
        form: history_files.Format = args.format or ("json" if args.json else "md")
        for chat in chats:
            history_text.print_text(history_files.chat_text(store, chat, form))
        return
    files = history_files.targets(chats, args.output, args.format, is_set=args.all or len(chats) > 1)
    history_files.write(store, files, force=args.force)
    history_text.print_files([file.path for file in files], as_json=args.json)


def _import(store: Store, args: argparse.Namespace) -> None:
    parsed = [chat for name in args.files for chat in history_files.read(name)]
    chats = tuple(store.add_chat(*chat) for chat in parsed)
    history_text.print_chats(chats, as_json=args.json)
    say(f"imported {history_text.count(len(chats), 'chat')}")


def _delete(store: Store, args: argparse.Namespace) -> None:
    chats = [store.chat(number) for number in args.ids]
    for chat in chats:
        store.delete(chat.id)
    history_text.print_changed("deleted", args.ids, as_json=args.json)
    undo = " ".join(["localspec history restore", *(str(chat.id) for chat in chats)])
    say(f"deleted {history_text.names(chats)}; for 30 days, `{undo}` undoes that")


def _restore(store: Store, args: argparse.Namespace) -> None:
    for number in args.ids:
        store.restore(number)
    history_text.print_changed("restored", args.ids, as_json=args.json)
    say(f"restored {history_text.names([store.chat(number) for number in args.ids])}")


_ACTIONS: dict[str, Action] = {
    "list": _list,
    "search": _search,
    "show": _show,
    "export": _export,
    "import": _import,
    "delete": _delete,
    "restore": _restore,
}
_COMMANDS = (*_ACTIONS, "path")
