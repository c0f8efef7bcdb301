"""The files that chats are exported to and imported from."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from localspec.cli.shared.console import read_utf8
from localspec.errors import UserError
from localspec.storage.paths import expanded, make_private_folder, write_atomically

if TYPE_CHECKING:
    from localspec.chat.export import Parsed
    from localspec.chat.messages import ChatInfo
    from localspec.chat.store.store import Store

Format = Literal["md", "json"]
MAX_BYTES = 512 * 2**20
_FORMATS: dict[str, Format] = {".md": "md", ".markdown": "md", ".json": "json", ".jsonl": "json"}
_NOT_IN_NAMES = re.compile(r"[^\w]+")


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A file to write, and the chats that it is to hold."""

    path: Path
    form: Format
    chats: tuple[ChatInfo, ...]


def chat_text(store: Store, chat: ChatInfo, form: Format) -> str:
    """Return a chat in the wanted form: its shown branch as Markdown, or all of it as JSON."""
    from localspec.chat.export_m import to_json, to_markdown
    from localspec.chat.tree_m import Tree

    messages = store.messages(chat.id)
    if form == "md":
        return to_markdown(chat, Tree.of(messages, chat.leaf).answered().path)
    records = {m.id: record for m in messages if (record := store.record(m.id)) is not None}
    return to_json(chat, messages, records) + "\n"


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
    from localspec.chat.export import parse_all

    text = read_utf8(sys.stdin, MAX_BYTES) if name == "-" else _read_file(expanded(name))
    try:
        return tuple(parse_all(text))
    except UserError as error:
        label = "standard input" if name == "-" else f"`{name}`"
        raise UserError(f"{label}: {error.message}", error.hint) from None


def _read_file(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"`{path}` is larger than {MAX_BYTES >> 20} MiB", "import its chats one by one")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"`{path}` is not UTF-8 text, at offset {error.start}", "save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"cannot read `{path}`: {error.strerror or error}", "check the name") from None


def _check_target(path: Path, *, force: bool) -> None:
    if not os.path.exists(path):  # noqa: PTH110 - a name that no disk takes is refused in writing
        return
    if not path.is_file():
        raise UserError(f"`{path}` is not a plain file", "leave -o out to write to standard output")
    if not force:
        raise UserError(f"`{path}` exists already", "name another file, or add --force to write over it")


def _file_name(chat: ChatInfo, form: Format) -> str:
    from localspec.chat.export_m import when

    words = _NOT_IN_NAMES.sub("-", chat.title.lower())[:48].strip("-_") or "chat"
    return f"{when(chat.created)[:10]}-{words}-{chat.id}.{form}"
