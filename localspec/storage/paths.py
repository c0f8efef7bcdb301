"""The paths of LocalSpec's files, and atomic writing: a crash leaves the old file intact."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from errno import EACCES, ENOTDIR, EPERM, EROFS
from pathlib import Path
from urllib.parse import unquote_to_bytes

from localspec import units
from localspec.errors import StoreError

_FILE_ADDRESS = re.compile(
    r"file:(?://(?:localhost)?)?" + (r"/?([a-z]:.*)" if os.name == "nt" else r"(/(?!/).*)"),
    re.IGNORECASE | re.DOTALL,
)
PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
NOT_WRITABLE = (EACCES, EPERM, EROFS)
"""The numbers of errors that say that nothing may be written in a place."""


def config_dir() -> Path:
    """Return the folder of configuration, profiles and themes; it may be missing."""
    return _own_folder("config")


def data_dir() -> Path:
    """Return the folder of chats and studies; it may be missing."""
    return _own_folder("data")


def state_dir() -> Path:
    """Return the folder of logs and drafts; it may be missing."""
    return _own_folder("state")


def chats_file() -> Path:
    """Return the path of the conversations; the file may be missing."""
    return data_dir() / "chats.db"


def expanded(text: str | Path) -> Path:
    """Expand `~` to the home folder; an unknown user's name stays as written.

    A `file:` address of a local file is also accepted, as file managers write them:
    `file:///home/me/a%20model.gguf`.
    """
    found = _FILE_ADDRESS.fullmatch(str(text))
    if found is not None:
        return Path(os.fsdecode(unquote_to_bytes(os.fsencode(found[1]))))
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises there


def make_private_folder(path: Path) -> None:
    """Make a folder that only its owner can look into, unless it exists; raises OSError."""
    if not path.is_dir():
        for missing in reversed([each for each in path.parents if not each.exists()]):
            missing.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def read_plain(path: Path, most: int) -> bytes:
    """Read a regular file of at most `limit` bytes; raises OSError.

    Reading a pipe or a device might never end.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags), "rb") as file:  # noqa: PTH123 - a descriptor
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is not a file but a folder, a pipe or a device")
        if len(data := file.read(most + 1)) > most:
            raise OSError(f"it is larger than {units.size(most)}")
    return data


def write_atomically(path: Path, text: str | bytes, mode: int = PRIVATE_FILE) -> None:
    """Write a file atomically: readers, also after a power cut, find the old text or the new one.

    A symbolic link is followed, and a missing folder made. Raises StoreError and leaves the old file alone if
    anything fails.
    """
    import tempfile  # 3 ms

    target = Path(os.path.realpath(path))
    try:
        make_private_folder(target.parent)
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:32]}.", suffix=".tmp", dir=target.parent)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text if isinstance(text, bytes) else text.encode("utf-8", "replace"))
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(mode)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        what = f"cannot write `{path}`: {error.strerror or error}; the old file is unchanged"
        raise StoreError(f"{what}{elsewhere(target, error)}") from error
    _flush_folder(target.parent)


def elsewhere(path: Path, error: OSError) -> str:
    """Return the end of a message on a file that may not be written: what moves it; empty if nothing does."""
    if error.errno in (*NOT_WRITABLE, ENOTDIR):
        for kind in ("config", "data", "state"):
            if path.is_relative_to(os.path.realpath(_own_folder(kind))):
                return f"; {_variable(kind)} names another folder"
    return ""


def _variable(kind: str) -> str:
    return f"LOCALSPEC_{kind.upper()}_DIR"


def _own_folder(kind: str) -> Path:
    wanted = os.environ.get(_variable(kind), "").strip()
    return Path(os.path.abspath(expanded(wanted))) if wanted else _usual_folder(kind)  # noqa: PTH100 - takes `..` out, too


def _usual_folder(kind: str) -> Path:
    import platformdirs  # 10 ms that `--help` should not cost

    # Without an author, Windows would otherwise get the name twice.
    path: Path = getattr(platformdirs.PlatformDirs("localspec", appauthor=False), f"user_{kind}_path")
    return path


def _flush_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the system can do that for folders."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
