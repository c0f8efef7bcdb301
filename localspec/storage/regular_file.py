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
}


def read_regular(path: Path, name: str, most: int) -> bytes:
    """Return at most `most` bytes of a regular file; raises OSError, ValueError and UserError with `name`."""
    _check(path.stat(), name)  # before a device notices that it is opened
    file = os.open(path, os.O_RDONLY | _WITHOUT_WAITING)
    with os.fdopen(file, "rb") as stream:
        _check(os.fstat(file), name)  # it may be another one by now
        return stream.read(most)


def _check(status: os.stat_result, name: str) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise UserError(f"`{name}` is {_KINDS.get(kind, 'not a regular file')}", "name a file")
