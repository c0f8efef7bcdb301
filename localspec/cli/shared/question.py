"""The files that a question on the command line names with `@`."""

from __future__ import annotations

from pathlib import Path

from localspec.chat.attachments import attach, describe_all
from localspec.chat.messages import Attachment
from localspec.chat.references import path_named, references
from localspec.cli.shared.console import say
from localspec.cli.shared.opening import note
from localspec.storage.config import read_config
from localspec.storage.paths import config_dir

_HERE = Path()  # also where the working folder is gone
_LONGEST = 64 * 1024  # characters of a text that is searched for names; a longer one is not a question


def with_files(text: str) -> tuple[str, tuple[Attachment, ...]]:
    """Return a question and the files of the working folder that it names; raises UserError.

    Prints a line for each file, also for those that it only seems to name.
    """
    if "@" not in text:
        return text, ()
    found = attach(text, _HERE, read_config(config_dir() / "config.toml").attachment_bytes)
    for line in describe_all(found.files):
        say(f"attached {line}")
    for line in found.notes:
        note(line)
    return found.text, found.files


def tell_unread(text: str, why: str) -> None:
    """Print a line for each file of the working folder that a text names and that is not read."""
    for reference in references(text[:_LONGEST], _HERE):
        if reference.obstacle is None and path_named(reference.name, _HERE).is_file():
            note(f"@{reference.name} is not attached: {why}")
