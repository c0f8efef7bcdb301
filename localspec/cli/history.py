"""`localspec history`: list, search, show, export, import and delete kept chats."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.cli.shared.arguments import Parser, verb_parser, whole
from localspec.cli.shared.console import (
    SUCCESS,
    colours_unwanted,
    is_terminal,
    print_json,
    read_utf8,
    say,
)
from localspec.errors import UserError
from localspec.storage import paths
from localspec.storage.paths import expanded, make_private_folder, write_atomically

if TYPE_CHECKING:
    from localspec.chat.export import Format, Parsed
    from localspec.chat.messages import ChatInfo, SearchHit
    from localspec.chat.store import Store


_FORMATS: dict[str, Format] = {".md": "md", ".markdown": "md", ".json": "json", ".jsonl": "json"}
_NOT_IN_NAMES = re.compile(r"[^\w]+")


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A file to write, and the chats that it is to hold."""

    path: Path
    form: Format
    chats: tuple[ChatInfo, ...]


def targets(
    chats: Sequence[ChatInfo], output: str, form: Format | None, *, is_set: bool
) -> tuple[ExportFile, ...]:
    """Return the files to write: one for each chat in a folder, or a single file.

    A set of chats goes into a folder, unless `output` has the ending of a file.
    """
    path = expanded(output)
    ending = _FORMATS.get(path.suffix.lower())
    is_folder = os.path.isdir(path)  # noqa: PTH112 - as below, of names that no disk takes
    if is_folder or output.endswith(("/", "\\")) or (is_set and ending is None):
        chosen = form or "md"
        return tuple(ExportFile(path / _file_name(chat, chosen), chosen, (chat,)) for chat in chats)
    chosen = form or ending or "md"
    if is_set and chosen == "md":
        raise UserError(f"`{output}` is one file, and Markdown takes one for each chat", "name a folder")
    return (ExportFile(path, chosen, tuple(chats)),)


def write(store: Store, files: Sequence[ExportFile], *, force: bool) -> None:
    """Write the files; raises UserError before the first if one of them exists already."""
    from localspec.chat.export import chat_text

    for file in files:
        _check_target(file.path, force=force)
    for file in files:
        try:
            make_private_folder(file.path.parent)
        except OSError as error:
            raise UserError(
                f"cannot make the folder `{file.path.parent}`: {error.strerror}", "name another place"
            ) from error
        write_atomically(file.path, "".join(chat_text(store, chat, file.form) for chat in file.chats))


def read(name: str) -> tuple[Parsed, ...]:
    """Return the chats of an exported file; `-` is standard input."""
    from localspec.chat.export import MAX_BYTES, parse_all, read_chats

    if name == "-":
        return parse_all(read_utf8(sys.stdin, MAX_BYTES), "standard input")
    return read_chats(expanded(name), f"`{name}`")


def _check_target(path: Path, *, force: bool) -> None:
    if not os.path.exists(path):  # noqa: PTH110 - a name that no disk takes is refused in writing
        return
    if not path.is_file():
        raise UserError(f"`{path}` is not a plain file", "leave -o out to write to standard output")
    if not force:
        raise UserError(f"`{path}` exists already", "name another file, or add --force to write over it")


def _file_name(chat: ChatInfo, form: Format) -> str:
    from localspec.chat.export import when

    words = _NOT_IN_NAMES.sub("-", chat.title.lower())[:48].strip("-_") or "chat"
    return f"{when(chat.created)[:10]}-{words}-{chat.id}.{form}"


# What a model wrote must not move the cursor or retitle the window.
_CONTROL = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")})
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def print_chats(chats: Sequence[ChatInfo], *, as_json: bool) -> None:
    """Print one line for each chat."""
    if as_json:
        print_json({"chats": [_chat_json(chat) for chat in chats]})
        return
    width = max((len(str(chat.id)) for chat in chats), default=0)
    for chat in chats:
        print_text(f"{_chat_line(chat, width)}\n")


def print_hits(hits: Sequence[SearchHit], *, as_json: bool) -> None:
    """Print where something was found, the chat above the excerpts from it."""
    if as_json:
        print_json({"hits": [asdict(hit) | {"chat": _chat_json(hit.chat)} for hit in hits]})
        return
    bold = is_terminal(sys.stdout) and not colours_unwanted()
    above = None
    for hit in hits:
        if hit.chat.id != above:
            print_text(f"{_chat_line(hit.chat)}\n")
            above = hit.chat.id
        if hit.message is not None:
            sys.stdout.write(f"    {_marked(hit) if bold else hit.excerpt}\n")


def print_text(text: str) -> None:
    """Print a text of a chat; a terminal gets no control characters."""
    ending = "" if text.endswith("\n") else "\n"
    sys.stdout.write((text.translate(_CONTROL) if is_terminal(sys.stdout) else text) + ending)


def count(number: int, what: str) -> str:
    """Return a number with its noun."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def names(chats: Sequence[ChatInfo]) -> str:
    """Return titles in quotes."""
    return ", ".join(f'"{chat.title or "Untitled"}"' for chat in chats)


def _chat_line(chat: ChatInfo, width: int = 0) -> str:
    from localspec.chat.export import when

    pin = "  (pinned)" if chat.pinned else ""
    title = chat.title or "Untitled"
    return f"{chat.id:>{width}}  {when(chat.updated)}  {count(chat.messages, 'message'):>13}  {title}{pin}"


def _marked(hit: SearchHit) -> str:
    parts, end = [], 0
    for start, stop in hit.marks:
        parts += [hit.excerpt[end:start], _BOLD, hit.excerpt[start:stop], _PLAIN]
        end = stop
    return "".join([*parts, hit.excerpt[end:]])


def _chat_json(chat: ChatInfo) -> dict[str, object]:
    shown = ("id", "title", "created", "updated", "pinned", "messages", "profile")
    return {name: getattr(chat, name) for name in shown}


_number = whole(1, 2**63 - 1)


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
    deleting = add("delete", "remove chats; they can be restored for 30 days")
    deleting.add_argument("ids", nargs="+", type=_number, metavar="ID")
    add("restore", "undo delete").add_argument("ids", nargs="+", type=_number, metavar="ID")
    add("path", "print which file holds the chats")
    return result


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    arguments = _with_command(argv)
    args = parser().parse_args(arguments)
    if args.command == "path":
        path = str(paths.chats_file())
        if args.json:
            print_json({"path": path})
        else:
            print(path)
        return SUCCESS
    from localspec.chat.store import Store  # SQLite: 10 ms that a mistake in the arguments spares

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


def _list(store: Store, args: argparse.Namespace) -> None:
    chats = store.deleted() if args.deleted else store.chats()
    print_chats(chats, as_json=args.json)
    if not chats:
        say("no deleted chats" if args.deleted else "no chats yet")


def _search(store: Store, args: argparse.Namespace) -> None:
    hits = store.search(" ".join(args.words), args.limit)
    print_hits(hits, as_json=args.json)
    if not hits:
        say("nothing found")


def _show(store: Store, args: argparse.Namespace) -> None:
    from localspec.chat.export import chat_text

    form: Format = "json" if args.json else "md"
    print_text(chat_text(store, store.chat(args.id), form))


def _export(store: Store, args: argparse.Namespace) -> None:
    from localspec.chat.export import chat_text

    if bool(args.ids) == args.all:
        raise UserError("name the chats to export", "give their numbers, or --all")
    chats = store.chats() if args.all else tuple(store.chat(number) for number in dict.fromkeys(args.ids))
    if args.output in {None, "-"}:
        form: Format = args.format or ("json" if args.json else "md")
        for chat in chats:
            print_text(chat_text(store, chat, form))
        return
    files = targets(chats, args.output, args.format, is_set=args.all or len(chats) > 1)
    write(store, files, force=args.force)
    written = [str(file.path) for file in files]
    if args.json:
        print_json({"files": written})
    else:
        sys.stdout.writelines(f"{path}\n" for path in written)


def _import(store: Store, args: argparse.Namespace) -> None:
    parsed = [chat for name in args.files for chat in read(name)]
    chats = tuple(store.add_chat(*chat) for chat in parsed)
    print_chats(chats, as_json=args.json)
    say(f"imported {count(len(chats), 'chat')}")


def _delete(store: Store, args: argparse.Namespace) -> None:
    chats = [store.chat(number) for number in args.ids]
    for chat in chats:
        store.delete(chat.id)
    if args.json:
        print_json({"deleted": args.ids})
    undo = " ".join(["localspec history restore", *(str(chat.id) for chat in chats)])
    say(f"deleted {names(chats)}; for 30 days, `{undo}` undoes that")


def _restore(store: Store, args: argparse.Namespace) -> None:
    for number in args.ids:
        store.restore(number)
    if args.json:
        print_json({"restored": args.ids})
    say(f"restored {names([store.chat(number) for number in args.ids])}")


_ACTIONS: dict[str, Callable[[Store, argparse.Namespace], None]] = {
    "list": _list,
    "search": _search,
    "show": _show,
    "export": _export,
    "import": _import,
    "delete": _delete,
    "restore": _restore,
}
_COMMANDS = (*_ACTIONS, "path")
