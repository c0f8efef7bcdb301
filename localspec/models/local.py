"""The models on this computer's disks."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from localspec.errors import ModelFileError, StoreError, UnsupportedError, UserError
from localspec.gguf import FileKind, file_kind, read_header, read_model
from localspec.models import shape
from localspec.models.caches import FolderKind, ModelFolder, current_commit, known_places, repository_of
from localspec.models.names import (
    Reference,
    all_parts,
    ambiguous,
    close_names,
    files_among,
    fitting,
    kind_by_name,
    label_of,
    looks_like_reference,
    of_best_kind,
    parse,
    quant_of,
    stem_of,
    usual,
    variants,
    with_name,
)
from localspec.models.ollama import is_store, models_in
from localspec.models.shape import ModelShape
from localspec.safe_text import whole_text
from localspec.storage.json_file import JsonFile
from localspec.storage.paths import data_dir
from localspec.version import __version__

_NO_MODEL: dict[FileKind, str] = {
    "projector": "it is an image or audio encoder (mmproj), which goes with a model",
    "imatrix": "it has statistics for quantizing a model (imatrix)",
    "adapter": "it is an adapter, which changes a model",
    "vocabulary": "it has a vocabulary but no weights",
    "other": "it is not a model",
}


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on disk, or a companion of one; without a shape, `problem` says why it cannot be used."""

    name: str  # that `-m` takes
    path: Path  # of its first file
    files: tuple[Path, ...]
    bytes: int  # on disk
    source: FolderKind
    shape: ModelShape | None = None
    problem: str = ""
    others: tuple[LocalModel, ...] = ()  # the same files, which are on the disk once, under other names
    kind: FileKind = "model"  # by its header
    file: str = ""  # what its repository calls its first file, where it is from one

    @property
    def also(self) -> tuple[str, ...]:
        """Return its other names."""
        return tuple(other.name for other in self.others)

    def called(self, name: str) -> LocalModel:
        """Return the model with the files that one of its names leads to."""
        names = (name.lower(), f"{name}:latest".lower())
        return next((other for other in self.others if other.name.lower() in names), self)


def find_models(
    folders: Sequence[Path] = (),
    *,
    bundled: Sequence[Path] = (),
    places: Sequence[ModelFolder] | None = None,
) -> tuple[LocalModel, ...]:
    """Return the models in given folders, in the caches of this computer (or `places`) and bundled ones.

    Raises UserError if a given folder is missing or closed. Broken and unfinished files are listed with the
    reason.
    """
    for folder in folders:
        _check_folder(folder)
    all_places = (
        *(known_places() if places is None else places),
        *(ModelFolder(folder, "folder") for folder in folders),
        *(ModelFolder(file, "bundled") for file in bundled),
    )
    headers = Headers(data_dir() / "models.json", shape.read_shape)
    found: dict[Path, LocalModel] = {}
    for place in all_places:
        for model, plain_name in candidates(place, headers):
            _add(found, model, plain_name, headers)
    headers.save()
    return _with_unique_names(found.values())


def named(text: str, models: Iterable[LocalModel]) -> LocalModel | None:
    """Return the model of a name: one of its names, its file, or a repository's default quant.

    Raises UserError for a name that fits several models.
    """
    models = tuple(models)
    wanted = text.lower()
    of_path = (model for model in models if text == str(model.path))
    by_name = {name.lower(): model for model in reversed(models) for name in (model.name, *model.also)}
    found = by_name.get(wanted) or by_name.get(f"{wanted}:latest")  # which Ollama leaves out
    if found := found or next(of_path, None):
        return found
    sound = [model for model in models if not model.problem]
    stem = wanted.removesuffix(".gguf")
    of_file = [model for model in sound if stem == model.path.stem.lower()]
    of_file = of_file or [model for model in models if stem == model.path.stem.lower()]
    if len(of_file) > 1:
        names = ", ".join(model.name for model in of_file)
        raise UserError(f"`{text}` is the file of {len(of_file)} models: {names}", "take one of these names")
    if of_file:
        return of_file[0]
    if not looks_like_reference(text):
        return None
    wanted_model = parse(text)
    unfinished = (model for model in models if model.name.lower() == f"{wanted}{UNFINISHED}")
    return of_reference(wanted_model, sound) or of_reference(wanted_model, models) or next(unfinished, None)


def no_such_model(text: str, models: Iterable[LocalModel]) -> UserError:
    """Return the error that says that no model of this name is on disk."""
    problems = {model.name: model.problem for model in models}
    close = close_names(text, problems)
    problem = next((problem for name, problem in problems.items() if problem and f" {name}?" in close), "")
    close += f" It cannot be used: {problem}" if problem else ""
    hint = "`localspec models` lists what is there"
    if looks_like_reference(text):
        hint += f"; `localspec pull {text}` downloads it"
    return UserError(f"no model `{text}` is on this computer" + (f"; {close}" if close else ""), hint)


def of_reference(
    wanted: Reference, models: Iterable[LocalModel], *, has_all: bool = False
) -> LocalModel | None:
    """Return the model on disk of a reference; the default quant if it names none.

    `has_all` also accepts variants of the quant, as the Hub does if there is no better file. Raises
    UserError if several models fit.
    """
    every = [name for model in models for name in (model, *model.others) if is_of(name, wanted)]
    own = {model.file or model.path.name: model for model in reversed(every)}
    files = [*reversed(own)]
    if wanted.file is not None:
        parts = {name: file for file in files for name in _names_of_parts(own[file], file)}
        found = [*dict.fromkeys(parts[name] for name in with_name(wanted.file, parts))]
    else:
        groups = usual(files) if wanted.quant is None else fitting(wanted, files)
        groups += variants(wanted, files) if wanted.quant is not None and has_all else []
        found = of_best_kind(groups, lambda file: own[file].kind)
    if len({os.path.realpath(own[file].path) for file in found}) > 1:
        raise ambiguous(wanted, [own[file].name for file in found])
    return own[found[0]] if found else None


def _names_of_parts(model: LocalModel, file: str) -> list[str]:
    return [PurePosixPath(file).with_name(part.name).as_posix() for part in model.files]


def is_of(model: LocalModel, wanted: Reference) -> bool:
    """Return whether a model is of the repository, and the commit, of a reference."""
    if model.source == "ollama":  # its names may look alike
        return False
    repository = wanted.repository.lower()
    revision = (wanted.revision or "").lower()
    is_in_commit = f"/snapshots/{revision}" in model.path.as_posix()
    if revision and not (len(revision) >= SHORT_COMMIT and is_in_commit):
        return False
    beginnings = (f"{repository}:", f"{repository}/", *([f"{repository}@"] if revision else []))
    name = model.name.lower()
    return name == repository or name.startswith(beginnings)


def _check_folder(folder: Path) -> None:
    try:
        if not folder.is_file():
            os.scandir(folder).close()
    except FileNotFoundError:
        if folder.is_symlink():
            raise UserError(f"{folder} links to a folder that is gone", "name another folder") from None
        raise UserError(f"there is no folder {folder}", "check the spelling of the path") from None
    except OSError as error:
        raise UserError(
            f"{folder} cannot be read: {error.strerror or error}", "check its permissions"
        ) from error


def _add(found: dict[Path, LocalModel], model: LocalModel, plain_name: str, headers: Headers) -> None:
    real = Path(os.path.realpath(model.path))
    first = found.get(real)
    if first is None:
        shape, problem = (None, model.problem) if model.problem else headers.shape(model.path, model.files)
        found[real] = replace(model, bytes=_bytes_on_disk(model.files), shape=shape, problem=problem)
    elif plain_name not in (first.name, *first.also):
        other = replace(first, name=plain_name, path=model.path, files=model.files, source=model.source,
                        file=model.file, others=())  # fmt: skip
        found[real] = replace(first, others=(*first.others, other))


def _bytes_on_disk(files: Iterable[Path]) -> int:
    total = 0
    for file in files:
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def _with_unique_names(models: Iterable[LocalModel]) -> tuple[LocalModel, ...]:
    """Give models that share a name their paths as names, except the first."""
    taken: set[str] = set()
    unique = []
    for model in models:
        clash = model.name.lower() in taken
        taken.add(model.name.lower())
        unique.append(replace(model, name=str(model.path)) if clash else model)
    return tuple(unique)


PARTIAL_ENDINGS = (".incomplete", ".downloadInProgress")  # of huggingface_hub and us, and of llama.cpp
UNFINISHED = " (unfinished)"
MAX_ENTRIES = 200_000
SHORT_COMMIT = 8  # digits of a commit in names
_DEEPEST = 12
_OF_REPOSITORY = 2  # folders deep, in LM Studio's layout: USER/REPO


_Found = tuple[LocalModel, str]
"""A model by the names of its files, not yet looked into, and its name without the commit that it is of."""


def candidates(place: ModelFolder, headers: Headers) -> Iterator[_Found]:
    """Yield the models of a place; those of a repository's newest commit before older ones."""
    mode = _mode(place.path)
    if stat.S_ISDIR(mode):
        yield from _Walk(place, headers).models()
    elif stat.S_ISREG(mode):
        name = whole_text(stem_of(place.path.name))
        files = _all_of(place.path)
        kind = headers.kind(place.path, files) or "model"
        yield (
            LocalModel(name, place.path, files, 0, place.kind, problem=_NO_MODEL.get(kind, ""), kind=kind),
            name,
        )


def _all_of(path: Path) -> tuple[Path, ...]:
    """Return all files of the model that a file belongs to, as far as they are there."""
    try:
        beside = [file.name for file in path.parent.iterdir()]
        return tuple(path.with_name(part) for part in all_parts(path.name, beside))
    except (OSError, UserError):
        return (path,)


def _mode(path: Path) -> int:
    """Return the identity of a path's target; 0 if it is missing or not accessible."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0


class _Walk:
    """One walk through a place, which ends when it has seen too much."""

    def __init__(self, place: ModelFolder, headers: Headers) -> None:
        self._place = place
        self._headers = headers
        self._seen: set[str] = set()
        self._left = MAX_ENTRIES

    def models(self) -> Iterator[_Found]:
        place = self._place.path
        kind = self._place.kind
        for folder, folders, files in self._folders(place):
            depth = len(folder.relative_to(place).parts)
            if is_store(folder):
                yield from self._ollama(folder)
                folders.clear()
                continue
            if kind == "lmstudio" and depth == _OF_REPOSITORY:
                yield from self._user_and_repository(folder, folders, files)
                folders.clear()
                continue
            if kind != "hub":  # whose root contains only repositories
                yield from _Named(folder, kind, self._headers).models(files)
            repositories = {
                name: repository
                for name in folders
                if (repository := repository_of(name)) and stat.S_ISDIR(_mode(folder / name / "blobs"))
            }
            for name, repository in repositories.items():
                yield from self._repository(folder / name, repository)
            is_end = kind in ("hub", "llama.cpp") or depth >= _DEEPEST
            left = (name for name in folders if name not in repositories and not name.startswith("."))
            folders[:] = () if is_end else left
        if self._left <= 1:
            text = f"has more than {MAX_ENTRIES:,} files; only some were looked at"
            yield LocalModel(str(place), place, (place,), 0, kind, problem=text), str(place)

    def _folders(self, root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
        """Yield a folder and those below it, none twice, with the names of their folders and files.

        The caller may remove names of folders. Inaccessible folders are skipped.
        """
        for folder, folders, files in os.walk(root, followlinks=True):
            real = os.path.realpath(folder)  # links may form cycles
            if real not in self._seen and self._left > 1:
                self._seen.add(real)
                names = sorted(files)[: self._left - 1]
                folders.sort()
                self._left -= len(folders) + len(names)
                yield Path(folder), folders, names
            else:
                folders.clear()

    def _ollama(self, store: Path) -> Iterator[_Found]:
        for model in models_in(store):
            found = LocalModel(model.name, model.blob, (model.blob,), 0, "ollama", problem=model.problem)
            yield found, model.name

    def _user_and_repository(self, root: Path, folders: list[str], files: list[str]) -> Iterator[_Found]:
        """Yield the models of a repository in LM Studio's layout, which may have subfolders."""
        names = [*files]
        for name in folders:
            for folder, below, inside in self._folders(root / name):
                names += [(folder / each).relative_to(root).as_posix() for each in inside]
                if len(folder.relative_to(root).parts) >= _DEEPEST:
                    below.clear()
        repository = f"{root.parent.name}/{root.name}"
        yield from _Named(root, self._place.kind, self._headers, repository).models(names)

    def _repository(self, folder: Path, repository: str) -> Iterator[_Found]:
        newest = current_commit(folder)
        kind = self._place.kind
        commits = sorted((folder / "snapshots").glob("*"))
        for root in sorted(commits, key=lambda commit: commit.name != newest):
            paths = (folder / name for folder, _, names in self._folders(root) for name in names)
            names = [path.relative_to(root).as_posix() for path in paths]
            revision = "" if newest in (None, root.name) else f"@{root.name[:SHORT_COMMIT]}"
            yield from _Named(root, kind, self._headers, repository, revision).models(names)
        for path in sorted((folder / "blobs").glob("*")):
            is_own_file = path.is_file() and not path.is_symlink()  # no download leaves a link or a folder
            if path.name.endswith(PARTIAL_ENDINGS) and is_own_file:
                text = f"its download is not finished; `localspec pull {repository}:QUANT` resumes it"
                name = f"{repository}{UNFINISHED}"
                yield LocalModel(name, path, (path,), 0, kind, problem=text), repository


@dataclass(frozen=True, slots=True)
class _Named:
    """A folder of files, and what is needed to name the models among them."""

    root: Path
    source: FolderKind
    headers: Headers
    repository: str | None = None
    revision: str = ""  # where it is not the newest, with an @

    def models(self, names: Sequence[str]) -> Iterator[_Found]:
        """Yield the models among some files, and their companions."""
        found = {
            file: self._found(file, names)
            for file in files_among(filter(self._may_be_model, names), headless=True)
        }
        tags = Counter(self._tag(file) for file, model in found.items() if model.kind == "model")
        for file, model in found.items():
            is_told = model.kind == "model" and tags[self._tag(file)] == 1
            name, plain = (self._name(file, revision, is_told) for revision in (self.revision, ""))
            yield replace(model, name=name), plain

    def _found(self, file: str, names: Sequence[str]) -> LocalModel:
        """Return the model that begins with a file, without its name."""
        try:
            parts = all_parts(file, names)
            missing = ""
        except UserError as error:
            parts = (file,)
            missing = str(error)
        paths = tuple(self.root / part for part in parts)
        kind = self.headers.kind(paths[0], paths) or kind_by_name(file)
        problem = missing or _NO_MODEL.get(kind, "")
        inside = file if self.repository else ""
        return LocalModel("", paths[0], paths, 0, self.source, problem=problem, kind=kind, file=inside)

    def _may_be_model(self, name: str) -> bool:
        """Return whether to read a file's header: in the user's folders also of one without a suffix."""
        if name.lower().endswith(".gguf"):
            return True
        return self.source == "folder" and "." not in name and _starts_like_gguf(self.root / name)

    def _tag(self, file: str) -> str:
        return quant_of(file) or label_of(file, self.repository or "")

    def _name(self, file: str, revision: str, is_told: bool) -> str:
        """Return the shortest printable name that distinguishes a model from its neighbours."""
        if self.repository is None:
            name = stem_of(file)
        elif not is_told:
            name = f"{self.repository}{revision}/{file}"
        else:
            name = ":".join(filter(None, (f"{self.repository}{revision}", self._tag(file))))
        return whole_text(name)


def _starts_like_gguf(path: Path) -> bool:
    """Return whether a regular file starts like a GGUF file."""
    try:
        if not stat.S_ISREG(_mode(path)):  # opening a pipe waits for its other end
            return False
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class _Known:
    """What was read of a model when its files had these sizes and times of change."""

    path: str
    stamp: str
    kind: FileKind | None  # None: it has no header
    shape: ModelShape | None
    problem: str


@dataclass(frozen=True, slots=True)
class _Remembered:
    """The cached headers of a version of LocalSpec."""

    version: str
    models: tuple[_Known, ...]


class Headers:
    """The kinds and shapes of files, or why they have none, by path, size and time of change."""

    def __init__(self, file: Path, read: Callable[[Path], ModelShape]) -> None:
        self._file = JsonFile(file, _Remembered, largest=2**24)
        self._read = read
        held = self._file.read()
        models = held.models if held and held.version == __version__ else ()
        self._known = {each.path: each for each in models}
        self._changed = False

    def kind(self, path: Path, files: Sequence[Path]) -> FileKind | None:
        """Return the kind of a file by its header, None if it cannot be read."""
        return self._look(path, files).kind

    def shape(self, path: Path, files: Sequence[Path]) -> tuple[ModelShape | None, str]:
        """Return the shape of a model, or None and what is wrong with it."""
        known = self._look(path, files)
        return known.shape, known.problem

    def _look(self, path: Path, files: Sequence[Path]) -> _Known:
        try:
            stats = [file.stat() for file in files]
        except FileNotFoundError:
            return _Known(str(path), "", None, None, "it links to a file that is gone; download it again")
        except OSError as error:
            return _Known(str(path), "", None, None, f"it cannot be read: {error.strerror or error}")
        stamp = " ".join(f"{stat.st_size}:{stat.st_mtime_ns}" for stat in stats)
        known = self._known.get(str(path))
        if known is None or known.stamp != stamp:
            kind = _kind_of(path)
            shape = None
            problem = ""
            try:
                shape = self._read(path)
            except ModelFileError as error:
                problem = error.message.removeprefix(f"{path} ") + (f"; {error.hint}" if error.hint else "")
                if kind == "draft head":
                    problem = f"it is a draft head, and {problem}"
                if isinstance(error, UnsupportedError) or isinstance(error.__cause__, OSError):
                    # which may pass while the file stays as it is
                    return _Known(str(path), stamp, kind, None, problem)
            known = self._known[str(path)] = _Known(str(path), stamp, kind, shape, problem)
            self._changed = True
        return known

    def save(self) -> None:
        """Write what was learned; a disk that takes no more costs only time, the next time."""
        if self._changed:
            there = (known for path, known in self._known.items() if os.access(path, os.F_OK))
            with suppress(StoreError):
                self._file.write(_Remembered(__version__, tuple(there)))


def _kind_of(path: Path) -> FileKind | None:
    """Return the kind of a file by its header, None if it cannot be read; parts may be missing."""
    for read in (read_model, read_header):
        with suppress(ModelFileError):
            return file_kind(read(path))
    return None
