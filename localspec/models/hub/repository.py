"""Models on the Hugging Face hub: what is there, and how it gets here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path, PurePosixPath

from localspec.errors import ModelFileError, UserError
from localspec.models.caches import current_commit, hub_cache, known_places, repository_folder
from localspec.models.hub import session
from localspec.models.hub.download import Meter, OnProgress, RemoteFile, download, is_whole, request_range
from localspec.models.local import find_models, of_reference
from localspec.models.names import Reference, choose
from localspec.models.shape import ModelShape
from localspec.version import __version__

_ASK_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model on the hub: the commit it is of, and its files in order."""

    repository: str
    commit: str
    files: tuple[RemoteFile, ...]

    @property
    def bytes(self) -> int:
        """Return the size of all its files."""
        return sum(file.bytes for file in self.files)


def look_up(reference: Reference) -> RemoteModel:
    """Ask the hub which files a reference means; raises UserError where there are none, or no hub."""
    session.session()
    with session.plain_errors(reference.repository):
        from huggingface_hub import HfApi

        try:
            api = HfApi(session.endpoint(), library_name="localspec", library_version=__version__)
            info = api.model_info(
                reference.repository,
                revision=reference.revision,
                files_metadata=True,
                timeout=_ASK_TIMEOUT_S,
            )
        except (JSONDecodeError, KeyError, TypeError) as error:
            raise UserError(
                f"{session.endpoint()} does not answer like the hub",
                "log in to this network in a browser first, or correct HF_ENDPOINT",
            ) from error
    listed = {
        sibling.rfilename: RemoteFile(
            sibling.rfilename,
            sibling.lfs.size if sibling.lfs else sibling.size or 0,
            sibling.lfs.sha256 if sibling.lfs else None,
            sibling.blob_id,
        )
        for sibling in info.siblings or ()
    }
    files = tuple(listed[name] for name in choose(reference, tuple(listed)))
    if not info.sha or not all(_is_safe(file) for file in files):
        raise UserError(
            f"{session.endpoint()} lists {reference.repository} without safe names and checksums",
            "this server cannot be used for downloads",
        )
    return RemoteModel(reference.repository, info.sha, files)


def pull(
    reference: Reference,
    *,
    on_progress: OnProgress | None = None,
    on_found: Callable[[RemoteModel, int], None] | None = None,
    cache: Path | None = None,
) -> Path:
    """Download a model, or what is missing of it, and return its (first) file.

    What was broken off goes on where it stopped. `on_found` hears what the hub lists, and how many
    bytes are still to come, before the first does.
    Raises UserError, and Cancelled when `on_progress` returns False.
    """
    model = look_up(reference)
    folder = repository_folder(cache or hub_cache(), model.repository)
    with session.plain_errors(str(reference), folder):
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        missing = [file for file in model.files if not _is_present(folder, model.commit, file)]
        _check_space(reference, folder, missing)
        to_come = sum(file.bytes - min(_part_size(folder, file), file.bytes) for file in missing)
        if on_found is not None:
            on_found(model, to_come)
        meter = Meter(model.bytes, model.bytes - to_come, on_progress)
        for file in missing:
            blob = folder / "blobs" / file.blob
            if not is_whole(blob, file):
                download(_url(model, file), file, _part(folder, file), blob, meter)
        for file in model.files:
            _link(folder, model.commit, file)
        if reference.revision is None and current_commit(folder) != model.commit:
            _remember_commit(folder, model.commit)
    return _pointer(folder, model.commit, model.files[0])


def resolve(reference: Reference, fetch: Callable[[Reference], Path] = pull) -> Path:
    """Return the file of a model: where it is on disk without asking anybody, else as `fetch` gets it."""
    places = [place for place in known_places() if place.kind in ("hub", "lmstudio")]
    sound = [model for model in find_models(places=places) if not model.problem]
    model = of_reference(reference, sound, loosely=session.is_offline())
    return fetch(reference) if model is None else model.path


def remote_shape(reference: Reference) -> ModelShape:
    """Return the shape of a model on the hub, from its header alone: a few megabytes of it are read."""
    model = look_up(reference)
    from localspec.models.shape import shape_of_parts

    try:
        with session.plain_errors(str(reference)):
            return shape_of_parts(
                [(_reader(model, file), file.bytes) for file in model.files], str(reference)
            )
    except ModelFileError as error:
        raise UserError(error.message, "choose another file or repository") from error


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
    """Tell whether a listed file can be checked, and stays inside the folder of its repository."""
    path = PurePosixPath(file.name)
    hexadecimal = len(file.blob) in (40, 64) and all(digit in "0123456789abcdef" for digit in file.blob)
    return hexadecimal and not path.is_absolute() and ".." not in path.parts and "\\" not in file.name


def _part(folder: Path, file: RemoteFile) -> Path:
    return folder / "blobs" / f"{file.blob}.incomplete"


def _part_size(folder: Path, file: RemoteFile) -> int:
    part = _part(folder, file)
    return part.stat().st_size if part.exists() else 0


def _pointer(folder: Path, commit: str, file: RemoteFile) -> Path:
    return folder / "snapshots" / commit / file.name


def _is_present(folder: Path, commit: str, file: RemoteFile) -> bool:
    return is_whole(_pointer(folder, commit, file), file) or is_whole(folder / "blobs" / file.blob, file)


def _check_space(reference: Reference, folder: Path, missing: Sequence[RemoteFile]) -> None:
    needed = sum(max(0, file.bytes - _part_size(folder, file)) for file in missing)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{reference} needs {-(-needed // 10**6):,} MB more, but only {free // 10**6:,} MB are free"
            f" in {folder.parent}",
            "free some space, choose a smaller quant, or let HF_HUB_CACHE name a folder on another disk",
        )


def _link(folder: Path, commit: str, file: RemoteFile) -> None:
    """Put a file where a commit has it: a link to its blob, or the blob where there are no links."""
    pointer, blob = _pointer(folder, commit, file), folder / "blobs" / file.blob
    if is_whole(pointer, file):
        return
    pointer.parent.mkdir(parents=True, exist_ok=True)
    pointer.unlink(missing_ok=True)
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except (OSError, NotImplementedError):
        blob.replace(pointer)


def _remember_commit(folder: Path, commit: str) -> None:
    refs = folder / "refs"
    refs.mkdir(exist_ok=True)
    temporary = refs / f".main.{os.getpid()}"
    try:
        temporary.write_text(commit, encoding="ascii")
        temporary.replace(refs / "main")
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
