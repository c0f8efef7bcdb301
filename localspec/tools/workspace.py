"""The folder that bounds the tools for files: what lies outside of it is neither read nor written.

A path is resolved first, links and `..` included. Then every folder on the way is opened by its name in the
one before, without following links, so a link that is put there in between leads nowhere.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from localspec.errors import UserError, os_errors_as
from localspec.safe_text import safe_line, whole_text
from localspec.storage.paths import config_dir, data_dir, expanded, state_dir
from localspec.storage.regular_file import check_regular, read_regular
from localspec.tools.seen import SeenFiles

_SYSTEM = tuple(map(Path, ("/proc", "/sys", "/dev")))
_GIT = ".git"
_HAS_DESCRIPTORS = os.open in os.supports_dir_fd  # of folders, which Windows lacks
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_LONGEST_NAME = 64  # of a file of which a temporary one is named


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a workspace: its path without links, and its name relative to the workspace, `.` for all."""

    path: Path
    name: str

    @property
    def shown(self) -> str:
        """Return the name in one harmless line."""
        return safe_line(whole_text(self.name))


class Workspace:
    """A folder with the files that tools may read and write.

    Relative paths count from `folder`, which is in it. `changing` is held around each read, change and write
    of a file. `seen` are the files that the model has read, by their names from the root.
    """

    def __init__(self, root: Path) -> None:
        """Take the folder as it is now; raises UserError unless it is one."""
        self.root = Path(os.path.realpath(root))
        self.folder = self.root
        self.changing = Lock()
        self.seen = SeenFiles()
        if not self.root.is_dir():
            raise UserError(f"`{root}` is not a folder", "name the folder that tools may work in")
        self._closed = [
            *_SYSTEM,
            *(Path(os.path.realpath(each())) for each in (config_dir, data_dir, state_dir)),
        ]

    def within(self, name: str) -> Workspace:
        """Return the same workspace with paths that count from one of its folders; raises UserError."""
        inner = copy(self)
        inner.folder = self.existing_folder(name).path
        return inner

    def locate(self, name: str) -> Location:
        """Return the place that a path names, which may be missing; raises UserError if it is outside."""
        said = safe_line(whole_text(name))
        if "\0" in name:
            raise UserError(f"`{said}` is not the name of a file")
        path = Path(os.path.realpath(self.folder / expanded(name or ".")))
        if not path.is_relative_to(self.root):
            hint = "use a path relative to it, such as src/main.py"
            raise UserError(f"`{said}` is outside of the workspace {safe_line(str(self.root))}", hint)
        for closed in self._closed:
            if path.is_relative_to(closed):
                owner = "the system" if closed in _SYSTEM else "LocalSpec itself"
                raise UserError(f"`{said}` belongs to {owner}", "use another file")
        return Location(path, path.relative_to(self.root).as_posix())

    def existing_folder(self, name: str) -> Location:
        """Return the place of a folder; raises UserError unless there is one."""
        place = self.locate(name)
        if not place.path.is_dir():
            what = "is not a folder" if place.path.exists() else "is not there"
            raise UserError(f"`{place.shown}` {what}", "name a folder; list_folder shows what is there")
        return place

    def read(self, place: Location, most: int) -> bytes:
        """Return at most `most` bytes of a file; raises OSError and UserError."""
        with self._parent(place) as (name, folder):
            return read_regular(name, place.shown, most, folder=folder)

    def write(self, place: Location, data: bytes) -> None:
        """Replace a file, or make it with its folders, in one step: its mode stays; raises UserError."""
        with os_errors_as(f"cannot write `{place.shown}`"), self._parent(place, makes=True) as (name, folder):
            mode = self._mode(place, name, folder)
            new = name.with_name(f".{name.name[:_LONGEST_NAME]}.{os.urandom(4).hex()}.tmp")
            file = os.open(new, _NEW_FILE, 0o666 if mode is None else 0o600, dir_fd=folder)
            try:
                with os.fdopen(file, "wb") as stream:
                    stream.write(data)
                    stream.flush()
                    os.fsync(file)
                    if mode is not None and sys.platform != "win32":
                        os.fchmod(file, mode)
                os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(new, dir_fd=folder)
                raise

    def check_writable(self, place: Location) -> None:
        """Raise UserError for a file that no tool may write."""
        if any(part.casefold() == _GIT for part in place.path.relative_to(self.root).parts):
            raise UserError(f"`{place.shown}` belongs to git", "use git's own commands")
        with suppress(FileNotFoundError):
            status = os.lstat(place.path)
            check_regular(status, place.shown)
            if not status.st_mode & 0o222:
                raise UserError(f"`{place.shown}` is write-protected", "leave it, or ask the user")

    def _mode(self, place: Location, name: Path, folder: int | None) -> int | None:
        """Return the mode of a file that is to be replaced; None if there is none."""
        self.check_writable(place)
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        check_regular(status, place.shown)
        return stat.S_IMODE(status.st_mode)

    @contextmanager
    def _parent(self, place: Location, *, makes: bool = False) -> Iterator[tuple[Path, int | None]]:
        """Open the folder of a file; yields the file's name in it and its descriptor, or the whole path."""
        *folders, name = place.path.relative_to(self.root).parts or (".",)
        if not _HAS_DESCRIPTORS:
            if makes:
                place.path.parent.mkdir(parents=True, exist_ok=True)
            yield place.path, None
            return
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        folder = os.open(self.root, flags)
        try:
            for each in folders:
                if makes:
                    with suppress(FileExistsError):
                        os.mkdir(each, dir_fd=folder)
                inner = os.open(each, flags | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield Path(name), folder
        finally:
            os.close(folder)
