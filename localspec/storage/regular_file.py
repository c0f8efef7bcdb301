"""Files of strangers: nothing but a regular file is opened, and nothing waits."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from localspec.errors import UserError

_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link",
}


def read_regular(path: Path, name: str, most: int, *, folder: int | None = None) -> bytes:
    """Return at most `most` bytes of a regular file; raises OSError, ValueError and UserError with `name`.

    With the descriptor of a `folder`, the path is one name in it, and a link is not followed.
    """
    follows = folder is None
    check_regular(os.stat(path, dir_fd=folder, follow_symlinks=follows), name)  # before a device is opened
    flags = os.O_RDONLY | _WITHOUT_WAITING | (0 if follows else os.O_NOFOLLOW)
    file = os.open(path, flags, dir_fd=folder)
    with os.fdopen(file, "rb") as stream:
        check_regular(os.fstat(file), name)  # it may be another one by now
        return stream.read(most)


def check_regular(status: os.stat_result, name: str) -> None:
    """Raise UserError with `name` unless the status is that of a regular file."""
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise UserError(f"`{name}` is {_KINDS.get(kind, 'not a regular file')}", "name a file")
