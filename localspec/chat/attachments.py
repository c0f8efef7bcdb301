r"""Text files that travel with a prompt: `@name`, `@"name with spaces"`, `@~/name` in what was typed.

A word that names no file stays text: `@dataclass`, `me@example.org`; `\@name` stays text in any case.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from localspec import units
from localspec.chat.messages import Attachment
from localspec.chat.thinking import code_blocks
from localspec.errors import UserError

USUAL_LIMIT = 256 * 1024
MOST_COMPLETIONS = 50
MOST_ENTRIES = 5000  # of a folder are looked at: some milliseconds
_REFERENCE = re.compile(r'(?:(?<=[\s(\[{])|^)(\\?)@(?:"([^"\n]+)"|([^\s"@][^\s"]*))', re.MULTILINE)
_UNFINISHED = re.compile(r'(?:(?<=[\s(\[{])|^)@("[^"\n]*|[^\s"@][^\s"]*|)\Z', re.MULTILINE)
_PUNCTUATION = ".,;:!?)]}>'`*_"
_PATH_STARTS = ("./", "../", "~/", "/", ".\\", "..\\")
_FILE_ENDINGS = frozenset(  # with these, a name that does not exist is a slip and no mere word
    ".c .cfg .conf .cpp .css .csv .go .h .html .ini .ipynb .java .js .json .jsonl .log .md .pdf .py .rs .rst "
    ".sh .sql .tex .toml .ts .tsv .txt .xml .yaml .yml".split()
)
_BYTE_ORDER_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_AS_TEXT = "a \\ before the @ keeps it as text"


@dataclass(frozen=True, slots=True)
class Completion:
    """One way to go on: `insert` takes the place of the text from `start` to the cursor."""

    insert: str
    label: str
    description: str = ""
    start: int = 0


def attach(text: str, folder: Path, limit: int = USUAL_LIMIT) -> tuple[str, tuple[Attachment, ...]]:
    """Return a prompt and the files that it names, relative to `folder`, each once.

    Raises UserError for a file that cannot be read, has more than `limit` bytes, is no text, or is missing
    although the word can only mean a file.
    """
    found: dict[Path, Attachment] = {}
    blocks = tuple(code_blocks(text))
    pieces, at = [], 0
    for reference in _REFERENCE.finditer(text):
        if any(block.start <= reference.start() < block.end for block in blocks):
            continue
        if reference[1]:
            pieces.append(text[at : reference.start(1)])
            at = reference.end(1)
            continue
        name = reference[2] or _file_meant(reference[3], folder)
        if name and (path := _real_path(name, folder)) not in found:
            try:
                found[path] = read_attachment(name, folder, limit)
            except UserError as error:
                hint = f"{error.hint}; {_AS_TEXT}" if error.hint else _AS_TEXT
                raise UserError(error.message, hint) from None
    return "".join((*pieces, text[at:])), tuple(found.values())


def read_attachment(name: str, folder: Path, limit: int = USUAL_LIMIT) -> Attachment:
    """Read one text file; raises UserError for everything that cannot be attached."""
    path = path_named(name, folder)
    try:
        _check(name, path.stat(), limit)
        with path.open("rb") as file:
            data = file.read(limit)
    except FileNotFoundError:
        if path.is_symlink():
            raise UserError(f"`{name}` links to a file that is gone", "name another file") from None
        close = get_close_matches(path.name, [entry.name for entry in _matching(path.parent, "")], n=1)
        hint = f"did you mean `{close[0]}`?" if close else ""
        raise UserError(f"there is no file `{name}`", hint) from None
    except OSError as error:
        raise UserError(f"cannot read `{name}`: {error.strerror}") from None
    except ValueError:
        raise UserError(f"{name!r} is no name of a file") from None
    return Attachment(name, _decoded(name, data))


def path_named(name: str, folder: Path) -> Path:
    """Return the file that a person names, relative to `folder` or to the home folder after a `~`."""
    try:
        return folder / Path(name).expanduser()
    except RuntimeError:  # `~somebody`
        return folder / name


def describe(attachment: Attachment, tokens: int | None = None) -> str:
    """Return an attachment in words, such as `notes.txt, 12.3 kB, 3,104 tokens`."""
    words = [attachment.name, units.size(len(attachment.text.encode()))]
    if tokens is not None:
        words.append(f"{tokens:,} token{'' if tokens == 1 else 's'}")
    return ", ".join(words)


def complete_path(prefix: str, folder: Path) -> tuple[Completion, ...]:
    """Return how the beginning of a file name can go on; it may begin with a quote.

    Folders end with a slash, hidden names come only when asked for. In a folder of very many files some of
    them may be left out: only so many are looked at.
    """
    typed = prefix.removeprefix('"')
    parent, slash, name = typed.rpartition("/")
    if typed == "~":
        parent, slash, name = "~", "/", ""
    entries = sorted(
        _matching(path_named(parent + slash, folder), name), key=lambda entry: entry.name.casefold()
    )
    return tuple(_completion(entry, f"{parent}{slash}") for entry in entries[:MOST_COMPLETIONS])


def reference_at_end(text: str) -> int | None:
    """Return where the file name begins that a text writes after an @ as it ends, None if there is none."""
    found = _UNFINISHED.search(text)
    if found is None or any(not block.closed for block in code_blocks(text)):
        return None
    return found.start(1)


def _file_meant(word: str, folder: Path) -> str | None:
    """Return the file that a word names, without punctuation behind it; None if the word is mere text."""
    names = [word[:end] for end in range(len(word), len(word.rstrip(_PUNCTUATION)) - 1, -1) if end]
    for name in names:
        with suppress(OSError, ValueError):
            is_folder = stat.S_ISDIR(path_named(name, folder).stat().st_mode)
            if not is_folder or ("/" in name and name not in _PATH_STARTS):
                return name
    bare = names[-1] if names else ""
    is_path = bare.startswith(_PATH_STARTS) and bare not in _PATH_STARTS
    return bare if is_path or Path(bare).suffix.lower() in _FILE_ENDINGS else None


def _real_path(name: str, folder: Path) -> Path:
    path = path_named(name, folder)
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return path


def _check(name: str, status: os.stat_result, limit: int) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise UserError(f"`{name}` is a folder", "name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"`{name}` is not a regular file", "only text files can be attached")
    if status.st_size > limit:
        size, most = units.size(status.st_size), units.size(limit)
        raise UserError(
            f"`{name}` has {size}, more than the {most} that can be attached",
            "attach a part of it, or raise max_kib in config.toml",
        )


def _decoded(name: str, data: bytes) -> str:
    encoding = next((known for mark, known in _BYTE_ORDER_MARKS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        bad = f"byte {data[error.start]:#04x} at offset {error.start}"
        raise UserError(
            f"`{name}` is not text that can be read: {bad} is not {encoding.removesuffix('-sig').upper()}",
            "save it as UTF-8; pictures, PDF and office files cannot be attached",
        ) from None
    if "\0" in text:
        raise UserError(f"`{name}` is a binary file", "only text can be attached")
    if not text.strip():
        raise UserError(f"`{name}` is empty")
    return text.replace("\r\n", "\n")


def _matching(folder: Path, beginning: str) -> list[os.DirEntry[str]]:
    wanted = beginning.casefold()
    try:
        with os.scandir(folder) as entries:
            return [
                entry
                for entry in islice(entries, MOST_ENTRIES)
                if entry.name.casefold().startswith(wanted)
                and (beginning.startswith(".") or not entry.name.startswith("."))
                and entry.name.isprintable()
                and '"' not in entry.name
            ]
    except (OSError, ValueError):
        return []


def _completion(entry: os.DirEntry[str], parent: str) -> Completion:
    try:
        is_folder = entry.is_dir()
        size = "" if is_folder else units.size(entry.stat().st_size)
    except OSError:  # gone meanwhile, or a link to nothing
        is_folder, size = False, ""
    path = f"{parent}{entry.name}{'/' if is_folder else ''}"
    if " " in path:
        path = f'"{path}' if is_folder else f'"{path}"'  # in a folder the name goes on
    return Completion(path, f"{entry.name}{'/' if is_folder else ''}", size)
