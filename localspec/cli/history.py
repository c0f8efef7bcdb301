"""`localspec history`: list, search, show, export, import and delete saved chats."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from localspec import units
from localspec.chat.chat_filter import is_found, narrow, tags_of
from localspec.chat.messages import AddedChat, ChatInfo, SearchHit, WholeChat
from localspec.cli.shared.arguments import Parser, verb_parser, whole, with_command
from localspec.cli.shared.console import SUCCESS, print_json, print_result, say
from localspec.cli.shared.opening import note
from localspec.cli.shared.piped import read_aloud
from localspec.errors import StoreError, UserError
from localspec.storage import paths
from localspec.storage.kept_caches import chat_name, forget_named
from localspec.storage.paths import expanded, make_private_folder, write_atomically
from localspec.storage.text_file import STANDARD_INPUT, decode_text

if TYPE_CHECKING:
    from localspec.chat.export import Format
    from localspec.chat.foreign.parts import LeftOut
    from localspec.chat.store import Store


_FORMATS: dict[str, Format] = {
    ".md": "md",
    ".markdown": "md",
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".jsonl": "json",
}
_NAMES: dict[Format, str] = {"md": "Markdown", "html": "HTML", "json": "JSON"}
_number = whole(1, 2**63 - 1)
NOTHING_FOUND = "nothing found"
_NOT_IN_NAMES = re.compile(r"[^\w]+")
_SHOWN = ("id", "title", "created", "updated", "pinned", "messages", "profile", "folder")


def targets(
    chats: Sequence[ChatInfo], output: str, form: Format | None, *, is_set: bool
) -> tuple[Format, dict[Path, Sequence[ChatInfo]]]:
    """Return the form, and the files to write with their chats: one for each in a folder, or a single file.

    A set of chats goes into a folder, unless `output` has the ending of a file.
    """
    path = expanded(output)
    ending = _FORMATS.get(path.suffix.lower())
    is_folder = os.path.isdir(path)  # noqa: PTH112 - as below, of names that no disk takes
    if is_folder or output.endswith(("/", "\\")) or (is_set and ending is None):
        chosen = form or "md"
        return chosen, {path / _file_name(chat, chosen): (chat,) for chat in chats}
    chosen = form or ending or "md"
    if is_set and chosen != "json":
        what = f"{_NAMES[chosen]} needs a folder with a file for each chat"
        raise UserError(f"`{output}` is a file, but {what}", "name a folder")
    return chosen, {path: chats}


def write(store: Store, files: Mapping[Path, Sequence[ChatInfo]], form: Format, *, force: bool) -> None:
    """Write the files; raises UserError before the first if one of them exists already."""
    from localspec.chat.export import chat_text

    for path in files:
        exists = os.path.exists(path)  # noqa: PTH110 - a name that no disk takes is refused in writing
        if exists and not path.is_file():
            raise UserError(f"`{path}` is not a plain file", "leave -o out to write to standard output")
        if exists and not force:
            raise UserError(f"`{path}` exists already", "name another file, or add --force to write over it")
    for path, chats in files.items():
        try:
            make_private_folder(path.parent)
        except OSError as error:
            raise UserError(
                f"cannot make the folder `{path.parent}`: {error.strerror}", "name another place"
            ) from error
        write_atomically(path, "".join(chat_text(store, chat, form) for chat in chats))


def read(name: str, left_out: Counter[LeftOut]) -> tuple[WholeChat, ...]:
    """Return the chats of an exported file, and count everything else in it; `-` is standard input."""
    from localspec.chat.export import MAX_BYTES, parse_all, read_chats

    if name == STANDARD_INPUT:
        came = read_aloud(MAX_BYTES).wait()
        return parse_all(decode_text(came, "standard input"), "standard input", left_out)
    return read_chats(expanded(name), f"`{name}`", left_out)


def _file_name(chat: ChatInfo, form: Format) -> str:
    from localspec.chat.headings import when

    words = _NOT_IN_NAMES.sub("-", chat.title.lower())[:48].strip("-_") or "chat"
    return f"{when(chat.created)[:10]}-{words}-{chat.id}.{form}"


def _print_chats(chats: Sequence[ChatInfo], *, as_json: bool) -> None:
    print_result({"chats": list(map(_as_json, chats))}, _lines_of(chats), as_json=as_json, escaped=True)


def _lines_of(chats: Sequence[ChatInfo]) -> Iterator[str]:
    width = max((len(str(chat.id)) for chat in chats), default=0)
    return (_line(chat, width) for chat in chats)


def _hit_lines(hits: Sequence[SearchHit]) -> Iterator[str]:
    """Yield where something was found, the chat above the excerpts from it."""
    for _, found in groupby(hits, lambda hit: hit.chat.id):
        for at, hit in enumerate(found):
            if at == 0:
                yield _line(hit.chat)
            if hit.message is not None:
                yield f"    {hit.excerpt}"


def _names(chats: Iterable[ChatInfo]) -> str:
    return ", ".join(f'"{chat.title or "Untitled"}"' for chat in chats)


def _line(chat: ChatInfo, width: int = 0) -> str:
    from localspec.chat.headings import when

    marks = ([f"in {chat.folder}"] if chat.folder else []) + ["pinned"] * chat.pinned
    where = f"  ({', '.join(marks)})" if marks else ""
    number = units.counted(chat.messages, "message")
    return f"{chat.id:>{width}}  {when(chat.updated)}  {number:>13}  {chat.title or 'Untitled'}{where}"


def _as_json(chat: ChatInfo) -> dict[str, object]:
    return {name: getattr(chat, name) for name in _SHOWN} | {"tags": list(tags_of(chat.title))}


def parser() -> Parser:
    """Return the parser of `localspec history`."""
    result = verb_parser(
        "history", "List, search, export, import and delete chats. Without a command, list them."
    )
    commands = result.add_subparsers(metavar="COMMAND", dest="command")

    def add(name: str, help_: str) -> Parser:
        command: Parser = commands.add_parser(name, help=help_, description=help_, allow_abbrev=False)
        command.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        command.add_argument("-v", "--verbose", action="store_true", help="print tracebacks")
        return command

    listing = add("list", "list the chats: number, last change, messages, title")
    listing.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="only chats with these: #TAG (in quotes), in:FOLDER, or words",
    )
    listing.add_argument("--deleted", action="store_true", help="list deleted chats, which can be restored")
    finding = add("search", "find words in titles and messages; '#TAG' and in:FOLDER narrow the search")
    finding.add_argument("words", nargs="+", metavar="WORD")
    finding.add_argument(
        "-n", "--limit", type=whole(1, 10_000), default=50, metavar="N", help="most hits (50)"
    )
    add("show", "print the shown branch of a chat").add_argument("id", type=_number, metavar="ID")
    exporting = add("export", "write chats as Markdown, as pages (HTML), or as JSON with all branches")
    exporting.add_argument("ids", nargs="*", type=_number, metavar="ID")
    exporting.add_argument("--all", action="store_true", help="every chat")
    exporting.add_argument("-o", "--output", metavar="PATH", help="file or folder to write to")
    exporting.add_argument("--format", choices=("md", "html", "json"), help="md (default), html or json")
    exporting.add_argument("--force", action="store_true", help="write over files that exist")
    importing = add(
        "import", "add chats from exported JSON, also of ChatGPT and Claude; - reads standard input"
    )
    importing.add_argument("files", nargs="+", metavar="FILE")
    importing.add_argument("--again", action="store_true", help="add also chats that are there already")
    deleting = add("delete", "remove chats; they can be restored for 30 days")
    deleting.add_argument("ids", nargs="+", type=_number, metavar="ID")
    add("restore", "restore deleted chats").add_argument("ids", nargs="+", type=_number, metavar="ID")
    add("path", "print the path of the chats' file")
    return result


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().parse_args(with_command("history", argv, _COMMANDS, lambda _: _hint(argv)))
    if args.command == "path":
        _print_path(paths.chats_file(), as_json=args.json)
        return SUCCESS
    from localspec.chat.store import Store  # SQLite: 10 ms that a mistake in the arguments spares

    with Store(paths.chats_file(), to_read=args.command in _READING) as store:
        _ACTIONS[args.command](store, args)
    return SUCCESS


def _print_path(path: Path, *, as_json: bool) -> None:
    """Print where the chats are, once the one file has all of them: it may be copied next."""
    if path.exists():
        from localspec.chat.store import Store

        try:
            with Store(path, to_read=True) as store:
                is_whole = store.fill_file()
        except StoreError as error:
            note(str(error))
        else:
            if not is_whole:
                note(f"the latest changes may be in `{path.name}-wal` still: copy that, too")
    print_result({"path": str(path)}, [str(path)], as_json=as_json, escaped=True)


def _hint(argv: Sequence[str]) -> str:
    """Return the suggestion for an unknown command."""
    question = " ".join(["history", *argv])
    return f'the commands are {", ".join(_COMMANDS)}; to ask the model, write `localspec run "{question}"`'


def _list(store: Store, args: argparse.Namespace) -> None:
    there = store.deleted() if args.deleted else store.chats()
    left, words = narrow(there, " ".join(args.names))
    chats = [chat for chat in left if is_found(words, chat.title)]
    _print_chats(chats, as_json=args.json)
    if there and not chats:
        say(NOTHING_FOUND)
    elif not chats:
        say("no deleted chats" if args.deleted else "no chats yet")


def _search(store: Store, args: argparse.Namespace) -> None:
    hits = store.search(" ".join(args.words), args.limit)
    found = [asdict(hit) | {"chat": _as_json(hit.chat)} for hit in hits]
    print_result({"hits": found}, _hit_lines(hits), as_json=args.json, escaped=True)
    if not hits:
        say(NOTHING_FOUND)


def _show(store: Store, args: argparse.Namespace) -> None:
    _print_texts(store, [store.chat(args.id)], "json" if args.json else "md")


def _export(store: Store, args: argparse.Namespace) -> None:
    if bool(args.ids) == args.all:
        raise UserError("name the chats to export", "give their numbers, or --all")
    chats = store.chats() if args.all else tuple(store.chat(number) for number in dict.fromkeys(args.ids))
    if args.output in {None, "-"}:
        if args.format == "html" and len(chats) > 1:
            raise UserError("each chat is a page of its own", "name a folder: -o FOLDER")
        _print_texts(store, chats, args.format or ("json" if args.json else "md"))
        return
    form, files = targets(chats, args.output, args.format, is_set=args.all or len(chats) > 1)
    write(store, files, form, force=args.force)
    written = list(map(str, files))
    print_result({"files": written}, written, as_json=args.json, escaped=True)


def _print_texts(store: Store, chats: Iterable[ChatInfo], form: Format) -> None:
    from localspec.chat.export import chat_text

    for chat in chats:
        text = chat_text(store, chat, form)
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def _import(store: Store, args: argparse.Namespace) -> None:
    from localspec.chat import foreign

    left_out: Counter[LeftOut] = Counter()
    parsed = [chat for name in args.files for chat in read(name, left_out)]
    added = [_added_again(store, chat) if args.again else store.add_missing(*chat) for chat in parsed]
    store.fill_file()
    chats = tuple(each.chat for each in added if each.is_new)
    grown = [each for each in added if not each.is_new and each.messages]
    there = len(added) - len(chats) - len(grown)
    lacking = foreign.in_words(left_out)
    found = {
        "chats": list(map(_as_json, chats)),
        "continued": [_as_json(each.chat) | {"added": each.messages} for each in grown],
        "already_there": there,
        "left_out": dict(left_out),
    }
    print_result(found, _lines_of(chats), as_json=args.json, escaped=True)
    more = "".join(f"; {each.growth()}" for each in grown)
    again = f"; {there} already there, which --again would add once more" if there else ""
    say(f"imported {units.counted(len(chats), 'chat')}{more}{again}")
    if lacking:
        note(f"LocalSpec has no place for some of it: {lacking}")


def _added_again(store: Store, chat: WholeChat) -> AddedChat:
    return AddedChat(store.add_chat(*chat), True, len(chat[1]))


def _delete(store: Store, args: argparse.Namespace) -> None:
    gone = {chat.id: chat for chat in store.deleted()}
    numbers = dict.fromkeys(args.ids)
    chats = [store.chat(number) for number in numbers if number not in gone]
    for chat in chats:
        store.delete(chat.id)
        forget_named(chat_name(chat.id))
    if args.json:
        print_json({"deleted": [chat.id for chat in chats]})
    if chats:
        undo = " ".join(["localspec history restore", *(str(chat.id) for chat in chats)])
        say(f"deleted {_names(chats)}; for 30 days, `{undo}` undoes that")
    if already := [gone[number] for number in numbers if number in gone]:
        say(f"deleted already: {_names(already)}")


def _restore(store: Store, args: argparse.Namespace) -> None:
    deleted = {chat.id for chat in store.deleted()}
    restored = [number for number in dict.fromkeys(args.ids) if number in deleted]
    there = [store.chat(number) for number in dict.fromkeys(args.ids) if number not in deleted]
    for number in restored:
        store.restore(number)
    if args.json:
        print_json({"restored": restored})
    if restored:
        say(f"restored {_names(map(store.chat, restored))}")
    if there:
        say(f"not deleted: {_names(there)}")


_ACTIONS: dict[str, Callable[[Store, argparse.Namespace], None]] = {
    "list": _list,
    "search": _search,
    "show": _show,
    "export": _export,
    "import": _import,
    "delete": _delete,
    "restore": _restore,
}
_READING = ("list", "search", "show", "export")
_COMMANDS = (*_ACTIONS, "path")
