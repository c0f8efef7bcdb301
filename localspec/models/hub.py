"""Models on the Hugging Face Hub: looking them up, and downloading them with resumption and checksums.

huggingface_hub looks repositories up, but its own downloads neither resume nor check checksums.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

from localspec import units
from localspec.errors import Cancelled, ModelFileError, UnreachableError, UnsupportedError, UserError
from localspec.gguf import FileKind, check_file, file_kind, header_of
from localspec.models import hub_session as session
from localspec.models.caches import current_commit, hub_cache, known_places, repository_folder
from localspec.models.local import LocalModel, find_models, is_of, of_reference
from localspec.models.names import Reference, choose, kind_by_name, needs_header
from localspec.models.shape import ModelShape, shape_of_parts
from localspec.models.verified import checksum, is_checksum, is_verified, remember, verify
from localspec.storage.paths import write_atomically
from localspec.values import InvalidValueError, read

if TYPE_CHECKING:
    from hashlib import _Hash

_ASK_TIMEOUT_S = 20.0
_MAX_ANSWER = 64 << 20  # a repository of 100,000 files takes half of it
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # after consecutive failures; the connection may recover
_MAX_REQUEST = 32 << 30  # the Hub's network serves at most 50 GB at once
_READ = 4 << 20
_TELL_S = 0.1
_PART_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_RATE_WINDOW_S = 8.0
_COMMIT = re.compile("[0-9a-z_-]{7,64}")  # of any kind of repository, and safe in a path


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """How far a download is; bytes of all its files together. None: not known yet."""

    file: str
    done: int
    total: int
    rate: float | None = None  # bytes per second
    left_s: float | None = None
    is_check: bool = False  # a check of a local file that was never verified

    def __str__(self) -> str:
        share = self.done / self.total if self.total else 1.0
        what = "checking " if self.is_check else ""
        parts = [f"{what}{share:4.0%}  {units.size(self.done)} of {units.size(self.total)}"]
        if self.rate:
            parts.append(f"{units.size(self.rate)}/s")
        if self.left_s is not None:
            parts.append(f"{units.duration(self.left_s)} left")
        return "  ".join(parts)


OnProgress = Callable[[DownloadProgress], bool]
"""Called ten times a second at most; returning False stops the download and keeps the data so far."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository with its checksum, which is also the name of its blob."""

    name: str
    bytes: int
    blob: str  # SHA-256 by Git LFS, or Git's own of small files


class Meter:
    """Counts downloaded bytes and reports them."""

    def __init__(
        self, total: int, done: int, on_progress: OnProgress | None, *, is_check: bool = False
    ) -> None:
        self._total = total
        self._is_check = is_check
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
        """Report the progress; raises Cancelled if the callback returns False."""
        self._told = now = time.monotonic()
        if self._on_progress is None:
            return
        while self._arrived and now - self._arrived[0][0] > _RATE_WINDOW_S:
            self._arrived.popleft()
        since = self._arrived[0][0] if self._arrived else now
        later = sum(count for _, count in islice(self._arrived, 1, None))  # the first only starts the clock
        rate = later / (now - since) if later and now > since else None
        left = (self._total - self._done) / rate if rate else None
        progress = DownloadProgress(file, self._done, self._total, rate, left, self._is_check)
        if not self._on_progress(progress):
            raise Cancelled("the download was stopped; the part so far is saved")


def download(url: str, file: RemoteFile, part: Path, blob: Path, meter: Meter) -> None:
    """Download the rest of a file into `part`, and rename it to `blob` once its checksum is right."""
    with only_one(blob):
        if is_here(file, blob):  # another program was faster
            meter.add(file.name, file.bytes - min(_size(part), file.bytes))
            part.unlink(missing_ok=True)
            return
        try:
            digest = _complete(url, file, part, meter)
        except BaseException:
            if _size(part) == 0:  # nothing that one could continue with
                part.unlink(missing_ok=True)
            raise
        if digest.hexdigest() != file.blob:
            part.unlink()
            raise UnreachableError(
                f"{file.name} was damaged in transit: its checksum differs from the one on Hugging Face",
                "it was deleted; pull again. If this happens again, check the network and the disk",
            )
        part.replace(blob)
        remember(blob, file.blob)


def _complete(url: str, file: RemoteFile, part: Path, meter: Meter) -> _Hash:
    """Download the rest of a partial file, and return its checksum."""
    digest = checksum(file.blob, file.bytes)
    with open_part(part) as out:
        if out.tell() > file.bytes:
            meter.add(file.name, -file.bytes)
            out.truncate(0)
        out.seek(0)
        while piece := out.read(_READ):
            digest.update(piece)
            meter.add(file.name, 0)
        digest = _receive(url, file, out, digest, meter)
        out.flush()
        os.fsync(out.fileno())  # its new name must not survive a power cut that its bytes do not
    return digest


def is_here(file: RemoteFile, *places: Path, on_progress: OnProgress | None = None) -> bool:
    """Return whether a file is in one of the places, whole and undamaged."""
    for path in {Path(os.path.realpath(place)) for place in places}:
        if path.is_file() and path.stat().st_size == file.bytes:
            meter = Meter(file.bytes, 0, on_progress, is_check=True)
            if is_verified(path, file.blob, partial(meter.add, file.name)):
                return True
    return False


def open_part(part: Path) -> BinaryIO:
    """Open the partial file at its end; anything else in its place (such as a link) is replaced."""
    if not _size(part):
        part.unlink(missing_ok=True)
    return os.fdopen(os.open(part, _PART_FLAGS, 0o666), "a+b")


def _receive(url: str, file: RemoteFile, out: BinaryIO, digest: _Hash, meter: Meter) -> _Hash:
    """Append what is missing, however often the connection breaks; return the checksum of all."""
    failures = 0
    furthest = out.tell()
    while out.tell() < file.bytes:
        try:
            digest = _receive_once(url, file, out, digest, meter)
        except Exception as error:
            out.flush()
            failures = 1 if out.tell() > furthest else failures + 1
            furthest = max(furthest, out.tell())
            if failures > min(len(PAUSES_S), session.retries(error)):
                raise
            _wait(PAUSES_S[failures - 1], file.name, meter)
    return digest


def _receive_once(url: str, file: RemoteFile, out: BinaryIO, digest: _Hash, meter: Meter) -> _Hash:
    start = out.tell()
    end = min(file.bytes, start + _MAX_REQUEST)
    with request_range(url, start, end) as (response, first):
        if first != start:  # the server sends all of it, whatever is asked for
            meter.add(file.name, first - start)
            out.seek(first)
            out.truncate()
            digest = checksum(file.blob, file.bytes)
        for piece in response.iter_bytes():
            kept = piece[: file.bytes - out.tell()]
            out.write(kept)
            digest.update(kept)
            meter.add(file.name, len(kept))
            if len(kept) < len(piece):
                raise UserError(
                    f"{file.name} is longer than on Hugging Face",
                    "pull again; the file may be changing just now",
                )
    if out.tell() <= start:
        raise UserError(f"the server sends nothing of {file.name}", "try again later")
    return digest


@contextmanager
def request_range(url: str, start: int, end: int) -> Iterator[tuple[Any, int]]:
    """Ask for a range of bytes; give the response and where it really starts, which may be 0."""
    from huggingface_hub import constants

    wanted = {"Range": f"bytes={start}-{end - 1}"}
    with session.answer(url, constants.HF_HUB_DOWNLOAD_TIMEOUT, wanted) as response:
        if response.status_code != 206:
            start = 0
        elif not response.headers.get("Content-Range", f"bytes {start}-").startswith(f"bytes {start}-"):
            raise session.unlike_the_hub("it sends another part of the file than it was asked for")
        yield response, start


def _wait(seconds: float, name: str, meter: Meter) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        meter.tell(name)  # the callback may stop the download
        time.sleep(min(left, _TELL_S))


@contextmanager
def only_one(blob: Path) -> Iterator[None]:
    """Lock a file against other programs that use the Hub's cache."""
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
            "wait until it ends, or stop it",
        ) from None


def begun_bytes(repository: str) -> int:
    """Return the bytes of partial files of a repository, whichever program began them."""
    blobs = repository_folder(hub_cache(), repository) / "blobs"
    parts = [part for part in blobs.glob("*.*") if part.suffix.startswith((".incomplete", ".parts-"))]
    return sum(_size(part) for part in parts if part.name.count(".") == 1)  # others have names of two dots


def _size(part: Path) -> int:
    """Return the size of a partial file; 0 if a link or another user's file is in its place."""
    try:
        found = part.lstat()
    except FileNotFoundError:
        return 0
    is_own = found.st_nlink == 1 and found.st_uid == getattr(os, "geteuid", int)()
    return found.st_size if is_own and stat.S_ISREG(found.st_mode) else 0


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model on the Hub: its commit, and its files in order."""

    repository: str
    commit: str
    files: tuple[RemoteFile, ...]

    @property
    def bytes(self) -> int:
        """Return the size of all its files."""
        return sum(file.bytes for file in self.files)


def look_up(reference: Reference) -> RemoteModel:
    """Ask the Hub for the files of a reference; raises UserError if there are none, or no hub answers."""
    session.session()
    with session.plain_errors(reference.repository):
        answer = _ask(reference)
    try:
        listing = json.loads(answer)
        commit = read(str, listing["sha"], "its answer.sha")
        listed = {file.name: file for file in map(_file, listing["siblings"])}
        spelled = listing.get("id")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise session.unlike_the_hub(str(error) if isinstance(error, InvalidValueError) else "") from error
    repository = reference.repository
    if isinstance(spelled, str) and spelled.isascii() and spelled.lower() == repository.lower():
        repository = spelled  # the Hub accepts names in any case

    def remote(names: Sequence[str]) -> RemoteModel:
        files = tuple(listed[name] for name in names)
        if _COMMIT.fullmatch(commit) is None or not all(map(_is_safe, files)):
            raise UserError(
                f"{session.endpoint()} lists {reference.repository} without safe names and checksums",
                "this server cannot be used for downloads",
            )
        return RemoteModel(repository, commit, files)

    def kind_of(name: str) -> FileKind:
        return _kind_of(remote((name,))) if needs_header(name) else kind_by_name(name)

    return remote(choose(reference, tuple(listed), kind_of))


def _kind_of(model: RemoteModel) -> FileKind:
    """Return the kind of a file on the Hub by its header; a model if it cannot be read."""
    [file] = model.files
    with suppress(ModelFileError), session.plain_errors(file.name):
        return file_kind(header_of(_reader(model, file), file.bytes, Path(file.name)))
    return "model"


@dataclass(frozen=True, slots=True)
class _LargeFile:
    size: int
    sha256: str


def _file(entry: Mapping[str, object]) -> RemoteFile:
    """Read a file of the Hub's answer; large files have their size and checksum in `lfs`."""
    size = entry.get("size", -1)
    blob = entry.get("blobId", "")
    if of_large := entry.get("lfs"):
        large = read(_LargeFile, of_large, "a file.lfs")
        size = large.size
        blob = large.sha256
    return read(RemoteFile, {"name": entry["rfilename"], "bytes": size, "blob": blob}, "a file")


def _ask(reference: Reference) -> bytes:
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    validate_repo_id(reference.repository)
    at = f"/revision/{quote(reference.revision, safe='')}" if reference.revision else ""
    url = f"{session.endpoint()}/api/models/{reference.repository}{at}?blobs=true"
    body = bytearray()
    with session.answer(url, _ASK_TIMEOUT_S) as response:
        for piece in response.iter_bytes():
            body += piece
            if len(body) > _MAX_ANSWER:
                raise session.unlike_the_hub("it never ends")
    return bytes(body)


def pull(
    reference: Reference,
    *,
    on_progress: OnProgress | None = None,
    on_found: Callable[[RemoteModel, int], None] | None = None,
) -> Path:
    """Download a model, or its missing parts, and return its (first) file.

    Interrupted downloads resume. `on_found` is called with the Hub's listing and the number of
    missing bytes before the download starts.
    Raises UserError, and Cancelled when `on_progress` returns False.
    """
    model = look_up(reference)
    folder = repository_folder(hub_cache(), model.repository)
    with session.plain_errors(str(reference), folder):
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        missing = [
            file
            for file in model.files
            if not is_here(
                file, _blob(folder, file), pointer_of(folder, model.commit, file), on_progress=on_progress
            )
        ]
        to_come = sum(file.bytes - min(_size(_part(folder, file)), file.bytes) for file in missing)
        check_space(str(reference), folder, to_come)
        if on_found is not None:
            on_found(model, to_come)
        meter = Meter(model.bytes, model.bytes - to_come, on_progress)
        for file in missing:
            download(_url(model, file), file, _part(folder, file), _blob(folder, file), meter)
        for file in model.files:
            link(folder, model.commit, file)
        if reference.revision is None and current_commit(folder) != model.commit:
            newest = folder / "refs" / "main"
            newest.parent.mkdir(exist_ok=True)
            if newest.is_symlink():  # whatever it leads to is not ours
                newest.unlink()
            write_atomically(newest, model.commit, mode=0o644)
    return pointer_of(folder, model.commit, model.files[0])


def resolve(
    reference: Reference,
    fetch: Callable[[Reference], Path] = pull,
    check: Callable[[Sequence[Path]], None] = verify,
) -> Path:
    """Return the file of a model: the one on disk if it passes `check`, else downloaded by `fetch`.

    Raises UserError for an ambiguous name, and offline for a model that is not on this machine.
    """
    places = [place for place in known_places() if place.kind in ("hub", "lmstudio")]
    sound = [model for model in find_models(places=places) if not model.problem]
    model = of_reference(reference, sound, has_all=session.is_offline())
    if model is None:
        if session.is_offline():
            raise session.offline(str(reference), _others_of(reference, sound))
        return fetch(reference)
    check(model.files)
    return model.path


def _others_of(reference: Reference, models: Sequence[LocalModel]) -> list[str]:
    """Return the names of local models of the same repository."""
    whole = replace(reference, quant=None, file=None, revision=None)
    return [model.name for model in models if is_of(model, whole)]


def remote_shape(reference: Reference) -> ModelShape:
    """Return the shape of a model on the Hub from its header, which takes a few megabytes."""
    model = look_up(reference)
    try:
        with session.plain_errors(str(reference)), _on_the_hub():
            return shape_of_parts(
                [(_reader(model, file), file.bytes) for file in model.files], str(reference)
            )
    except ModelFileError as error:
        raise UserError(error.message, error.hint) from error


def check_remote(model: RemoteModel) -> None:
    """Read the headers of a model's files on the Hub, a few megabytes each.

    Raises `ModelFileError` for files that llama.cpp could not open.
    """
    with session.plain_errors(model.repository), _on_the_hub():
        for file in model.files:
            path = Path(model.repository, file.name)
            check_file(header_of(_reader(model, file), file.bytes, path))


@contextmanager
def _on_the_hub() -> Iterator[None]:
    """Reword hints for files that are not downloaded yet."""
    try:
        yield
    except UnsupportedError:
        raise
    except ModelFileError as error:
        raise ModelFileError(error.message, "choose another file or repository") from error


def _reader(model: RemoteModel, file: RemoteFile) -> Callable[[int, int], bytes]:
    def read(start: int, count: int) -> bytes:
        got = bytearray()
        with request_range(_url(model, file), start, start + count) as (response, first):
            for piece in response.iter_bytes():
                got += piece
                if first + len(got) >= start + count:
                    break
        return bytes(got[start - first : start - first + count])

    return read


def _url(model: RemoteModel, file: RemoteFile) -> str:
    from huggingface_hub import hf_hub_url

    return hf_hub_url(model.repository, file.name, revision=model.commit, endpoint=session.endpoint())


def _is_safe(file: RemoteFile) -> bool:
    """Return whether a listed file can be checked, and stays inside the folder of its repository."""
    path = PurePosixPath(file.name)
    is_inside = str(path) == file.name and not path.is_absolute() and ".." not in path.parts
    is_plain = file.name.isprintable() and "\\" not in file.name and not PureWindowsPath(file.name).drive
    return is_inside and is_plain and file.bytes >= 0 and is_checksum(file.blob)


def _blob(folder: Path, file: RemoteFile) -> Path:
    return folder / "blobs" / file.blob


def _part(folder: Path, file: RemoteFile) -> Path:
    return folder / "blobs" / f"{file.blob}.incomplete"


def pointer_of(folder: Path, commit: str, file: RemoteFile) -> Path:
    """Return the path of a commit's file in a repository's folder."""
    return folder / "snapshots" / commit / file.name


def check_space(what: str, folder: Path, needed: int) -> None:
    """Raise UserError if a disk has less than `size` bytes free."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{what} needs {units.size(needed)} more, but only {units.size(free)} are free"
            f" in {folder.parent}",
            "free some space, choose a smaller quant, or set HF_HUB_CACHE to a folder on another disk",
        )


def link(folder: Path, commit: str, file: RemoteFile) -> None:
    """Put a file into a commit's folder: a link to its blob, or the blob if links are not supported."""
    pointer = pointer_of(folder, commit, file)
    blob = _blob(folder, file)
    if is_here(file, pointer):
        return
    pointer.parent.mkdir(parents=True, exist_ok=True)
    pointer.unlink(missing_ok=True)
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except (OSError, NotImplementedError):
        blob.replace(pointer)
        remember(pointer, file.blob)
