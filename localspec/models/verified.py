"""Verifies files in the Hub's layout against the checksums in their names, once for each file."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.errors import LocalSpecError, UserError
from localspec.storage.paths import make_private_folder, state_dir, write_atomically

if TYPE_CHECKING:
    from hashlib import _Hash

_CHECKSUM = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_READ = 4 << 20


def is_checksum(text: str) -> bool:
    """Return whether a text can be a blob's name, which is its checksum."""
    return _CHECKSUM.fullmatch(text) is not None


def checksum(blob: str, size: int) -> _Hash:
    """Return a fresh checksum of the kind that a blob is called after: SHA-256, or Git's of a small file."""
    if len(blob) == 64:
        return hashlib.sha256()
    digest = hashlib.sha1(usedforsecurity=False)
    digest.update(b"blob %d\0" % size)
    return digest


def is_verified(path: Path, blob: str, on_read: Callable[[int], object]) -> bool:
    """Return whether a file has a checksum; once it had, only its size and time of change are looked at.

    `on_read` hears how many bytes were read. Raises OSError.
    """
    stamp = _stamp(path)
    with suppress(OSError, ValueError, LocalSpecError):
        if _note(blob).read_text(encoding="utf-8") == stamp:
            return True
    digest = checksum(blob, path.stat().st_size)
    with path.open("rb") as file:
        while piece := file.read(_READ):
            digest.update(piece)
            on_read(len(piece))
    if digest.hexdigest() != blob:
        return False
    remember(path, blob, stamp)
    return True


def remember(path: Path, blob: str, stamp: str = "") -> None:
    """Remember that a file was found to have a checksum, as it was when its stamp was taken, or is now."""
    with suppress(OSError, LocalSpecError):  # which costs only time, the next time
        make_private_folder(_note(blob).parent)
        write_atomically(_note(blob), stamp or _stamp(path))


def verify(files: Iterable[Path], on_progress: Callable[[float], object] = float) -> None:
    """Check the files of a model whose names in the Hub's layout are checksums; raises UserError for damage.

    Where one cannot be read, opening it reports the error.
    """
    there = [path for path in files if path.is_file()]
    total = sum(path.stat().st_size for path in there)
    done = 0

    def on_read(count: int) -> None:
        nonlocal done
        done += count
        on_progress(min(1.0, done / total))

    for path in there:
        real = Path(os.path.realpath(path))
        with suppress(OSError):
            is_blob = real.parent.name == "blobs" and is_checksum(real.name)
            if is_blob and not is_verified(real, real.name, on_read):
                raise UserError(
                    f"{path} is damaged: its checksum differs from the one on Hugging Face",
                    "run `localspec pull` to download it again",
                )


def _note(blob: str) -> Path:
    return state_dir() / "verified" / blob


def _stamp(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns} {os.path.realpath(path)}"
