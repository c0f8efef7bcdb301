"""Download one file: resumed where it was broken off, and checked before it counts as present."""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from localspec.errors import Cancelled, UserError
from localspec.models.hub import session

if TYPE_CHECKING:
    from hashlib import _Hash

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # after failures in a row; the connection may come back
_LARGEST_REQUEST = 32 << 30  # the hub's network serves at most 50 GB at once
_READ = 4 << 20
_TELL_S = 0.1
_RATE_WINDOW_S = 8.0


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """How far a download is; bytes of all its files together. None: not known yet."""

    file: str
    done: int
    total: int
    rate: float | None = None  # bytes per second
    left_s: float | None = None


OnProgress = Callable[[DownloadProgress], bool]
"""Called ten times a second at most; returning False breaks the download off, and keeps what has arrived."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository, and the checksum that the hub lists: of Git LFS, or of Git for small files."""

    name: str
    bytes: int
    sha256: str | None
    git_sha1: str | None

    @property
    def blob(self) -> str:
        """Return the name of its blob in the hub's layout."""
        return self.sha256 or self.git_sha1 or ""

    def checksum(self) -> _Hash:
        """Return a fresh checksum of the kind that is listed."""
        if self.sha256 is not None:
            return hashlib.sha256()
        digest = hashlib.sha1(usedforsecurity=False)
        digest.update(b"blob %d\0" % self.bytes)
        return digest


class Meter:
    """Counts what arrives, and tells."""

    def __init__(self, total: int, done: int, on_progress: OnProgress | None) -> None:
        self._total = total
        self._done = done
        self._on_progress = on_progress
        self._told = 0.0
        self._arrived: deque[tuple[float, int]] = deque()

    def add(self, file: str, count: int) -> None:
        """Count bytes, negative ones where some have to come again; raises Cancelled on request."""
        self._done += count
        now = time.monotonic()
        if count > 0:
            self._arrived.append((now, count))
        if now - self._told >= _TELL_S or self._done == self._total:
            self.tell(file)

    def tell(self, file: str) -> None:
        """Tell how far it is; raises Cancelled if nobody wants it any more."""
        self._told = now = time.monotonic()
        if self._on_progress is None:
            return
        while self._arrived and now - self._arrived[0][0] > _RATE_WINDOW_S:
            self._arrived.popleft()
        rate = None
        if len(self._arrived) > 1 and now > self._arrived[0][0]:
            # the first arrival only starts the clock
            rate = (sum(count for _, count in self._arrived) - self._arrived[0][1]) / (
                now - self._arrived[0][0]
            )
        left = (self._total - self._done) / rate if rate else None
        if not self._on_progress(DownloadProgress(file, self._done, self._total, rate, left)):
            raise Cancelled("the download was broken off; what has arrived is kept")


def download(url: str, file: RemoteFile, part: Path, blob: Path, meter: Meter) -> None:
    """Download a file into `part`, going on where it ends, and make it `blob` once its checksum is right."""
    with _only_one(blob):
        if is_whole(blob, file):  # another program was faster
            meter.add(file.name, file.bytes - min(_size(part), file.bytes))
            part.unlink(missing_ok=True)
            return
        try:
            digest = _complete(url, file, part, meter)
        except BaseException:
            if _size(part) == 0:  # nothing that one could go on with
                part.unlink(missing_ok=True)
            raise
        if digest.hexdigest() != file.blob:
            part.unlink()
            raise UserError(
                f"{file.name} arrived damaged: its checksum is not the one that the hub lists",
                "it was thrown away; pull again. If this happens again, check the network and the disk",
            )
        part.replace(blob)


def _complete(url: str, file: RemoteFile, part: Path, meter: Meter) -> _Hash:
    """Bring a part of a file to its full size, and return the checksum of it."""
    with part.open("ab") as out:
        if out.tell() > file.bytes:
            meter.add(file.name, -file.bytes)
            out.truncate(0)
    digest = file.checksum()
    with part.open("r+b") as out:
        while piece := out.read(_READ):
            digest.update(piece)
            meter.add(file.name, 0)
        digest = _receive(url, file, out, digest, meter)
        out.flush()
        os.fsync(out.fileno())  # its new name must not survive a power cut that its bytes do not
    return digest


def is_whole(blob: Path, file: RemoteFile) -> bool:
    """Tell whether a file is there in its full size."""
    return blob.is_file() and blob.stat().st_size == file.bytes


def _receive(url: str, file: RemoteFile, out: BinaryIO, digest: _Hash, meter: Meter) -> _Hash:
    """Append what is missing, however often the connection breaks; return the checksum of all."""
    failures = 0
    while (start := out.tell()) < file.bytes:
        try:
            digest = _receive_once(url, file, out, digest, meter)
        except Exception as error:
            out.flush()
            if not session.is_transport_error(error):
                raise
            failures = 1 if out.tell() > start else failures + 1
            if failures > len(PAUSES_S):
                raise
            _wait(PAUSES_S[failures - 1], file.name, meter)
    return digest


def _receive_once(url: str, file: RemoteFile, out: BinaryIO, digest: _Hash, meter: Meter) -> _Hash:
    start = out.tell()
    end = min(file.bytes, start + _LARGEST_REQUEST)
    with request_range(url, start, end) as (response, first):
        if first != start:  # the server sends all of it, whatever is asked for
            meter.add(file.name, first - start)
            out.seek(first)
            out.truncate()
            digest = file.checksum()
        for piece in response.iter_bytes():
            kept = piece[: file.bytes - out.tell()]
            out.write(kept)
            digest.update(kept)
            meter.add(file.name, len(kept))
            if len(kept) < len(piece):
                raise UserError(
                    f"{file.name} is longer than the hub lists",
                    "pull again; the file may be changing just now",
                )
    if out.tell() <= start:
        raise UserError(f"the server sends nothing of {file.name}", "try again later")
    return digest


@contextmanager
def request_range(url: str, start: int, end: int) -> Iterator[tuple[Any, int]]:
    """Ask for a range of bytes; give the response and where it really starts, which may be 0."""
    from huggingface_hub import constants
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

    wanted = session.headers() | {"Range": f"bytes={start}-{end - 1}"}
    client = session.session()
    with client.stream(
        "GET", url, headers=wanted, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT, follow_redirects=True
    ) as response:
        if response.status_code >= 400:
            response.read()
        hf_raise_for_status(response)
        yield response, start if response.status_code == 206 else 0


def _wait(seconds: float, name: str, meter: Meter) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        meter.tell(name)  # somebody may want no more of it
        time.sleep(min(left, _TELL_S))


@contextmanager
def _only_one(blob: Path) -> Iterator[None]:
    """Keep other programs that use the hub's cache from downloading the same file at the same time."""
    from filelock import Timeout
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    repository = blob.parent.parent
    lock = repository.parent / ".locks" / repository.name / f"{blob.name}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with WeakFileLock(lock, timeout=0.5):
            yield
    except Timeout:
        raise UserError(
            f"another program is downloading {repository.name.removeprefix('models--').replace('--', '/')}",
            "wait for it to end, or stop it",
        ) from None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
