"""The files that a question on the command line names with `@`."""

from __future__ import annotations

from pathlib import Path

from localspec.chat.attachments import attach, describe_all
from localspec.chat.dropped import as_references, with_references
from localspec.chat.messages import Attachment
from localspec.chat.references import path_named, references
from localspec.chat.resources import NO_RESOURCES, Resources
from localspec.cli.shared.console import say
from localspec.cli.shared.opening import note
from localspec.storage.config import read_config
from localspec.storage.paths import config_dir

_HERE = Path()  # also where the working folder is gone
_LONGEST = 64 * 1024  # characters of a text that is searched for names; a longer one is not a question


def with_files(text: str, resources: Resources = NO_RESOURCES) -> tuple[str, tuple[Attachment, ...]]:
    """Return a question with the files of the working folder, and the resources, that it names.

    Raises UserError.

    Prints a line for each file, also for those that it only seems to name.
    """
    if "@" not in text:
        return text, ()
    found = attach(text, _HERE, read_config(config_dir() / "config.toml").attachment_bytes, resources)
    for line in describe_all(found.files):
        say(f"attached {line}")
    for line in found.notes:
        note(line)
    return found.text, found.files


def named(word: str) -> str:
    """Return a word of a command as a reference if it is the path of a file that was dropped there."""
    return as_references(word, _HERE) or word


def with_dropped(line: str) -> str:
    """Return a line with references in place of the dropped paths that it begins with."""
    return with_references(line, _HERE)


def tell_unread(text: str, why: str) -> None:
    """Print a line for each file of the working folder that a text names and that is not read."""
    for reference in references(text[:_LONGEST], _HERE):
        is_there = reference.kind != "file" or path_named(reference.name, _HERE).is_file()
        if reference.obstacle is None and is_there:
            note(f"@{reference.name} is not attached: {why}")
