"""The files of the user's own profiles: what a copy of a profile holds, and writing one."""

from __future__ import annotations

import re
from pathlib import Path

from localspec.errors import UserError
from localspec.storage.paths import PRIVATE_FILE, make_private_folder, write_atomically
from localspec.storage.profiles import profile_file

_TUNING = re.compile(r"^\[tuning\][^\n]*\n.*", re.MULTILINE | re.DOTALL)
_NO_TUNING = """\
# [tuning]
# prompts = ["...", "..."]   # 8 or more
# held_out = ["...", "..."]  # 4 or more
"""


def content(name: str, folder: Path) -> bytes:
    """Return what a copy of a profile holds; raises UserError if there is no such profile.

    The prompts of a shipped one stay behind: without its own, a copy is tuned with those of its task.
    """
    path = profile_file(name, folder)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    return data if path.parent == folder else _TUNING.sub(_NO_TUNING, data.decode()).encode()


def write(path: Path, data: bytes) -> None:
    """Write a file beside the user's own profiles in one step, and keep who may read it."""
    try:
        make_private_folder(path.parent)
    except OSError as error:
        raise UserError(f"cannot make the folder `{path.parent}`: {error.strerror or error}") from None
    mode = path.stat().st_mode & 0o777 if path.exists() else PRIVATE_FILE
    write_atomically(path, data.decode("utf-8", "replace"), mode)
