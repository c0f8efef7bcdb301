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
from localspec.gguf import part_name
from localspec.models import shape
from localspec.models.caches import Place, PlaceKind, current_commit, known_places, repository_of
from localspec.models.names import (
    Reference,
    all_parts,
    close_names,
    looks_like_reference,
    models_among,
    of_quant,
    parse,
    quant_of,
)
from localspec.models.shape import ModelShape
from localspec.storage.json_file import JsonFile
from localspec.storage.paths import data_dir
from localspec.version import __version__


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on disk; without a shape, `problem` says what is wrong with it."""

    name: str  # that `-m` takes
    path: Path  # of its first file
    files: tuple[Path, ...]
    bytes: int  # on disk
    source: PlaceKind
    shape: ModelShape | None = None
    problem: str = ""
    others: tuple[LocalModel, ...] = ()  # the same files, which are on the disk once, under other names

    @property
    def also(self) -> tuple[str, ...]:
        """Return its other names."""
        return tuple(other.name for other in self.others)

    def called(self, name: str) -> LocalModel:
        """Return the model with the files that one of its names leads to."""
        return next((other for other in self.others if other.name.lower() == name.lower()), self)


def find_models(
    folders: Sequence[Path] = (),
    *,
    bundled: Sequence[Path] = (),
    places: Sequence[Place] | None = None,
) -> tuple[LocalModel, ...]:
    """Return the models in given folders, in the caches of this computer (or `places`) and bundled ones.

    Raises UserError if a given folder is missing or closed. Broken and unfinished files are listed with the
    reason.
    """
    for folder in folders:
        _check_folder(folder)
    all_places = (
        *(known_places() if places is None else places),
        *(Place(folder, "folder") for folder in folders),
        *(Place(file, "bundled") for file in bundled),
    )
    headers = Headers(data_dir() / "models.json", shape.read_shape)
    found: dict[Path, LocalModel] = {}
    for place in all_places:
        for model, plain_name in candidates(place):
            _add(found, model, plain_name, headers)
    headers.save()
    return _with_unique_names(found.values())


def named(text: str, models: Iterable[LocalModel]) -> LocalModel | None:
    """Return the model that a name means: one of its names, its file, or a repository's usual quant.

    Raises UserError for the name of a file that several models have.
    """
    models = tuple(models)
    wanted = text.lower()
    for model in models:
        if wanted in (name.lower() for name in (model.name, *model.also)) or text == str(model.path):
            return model
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
    wanted: Reference, models: Iterable[LocalModel], *, loosely: bool = False
) -> LocalModel | None:
    """Return the model on disk that a reference means; the usual quant where it names none.

    `loosely` takes a quant that merely holds what was named, as the hub does where there is no better one.
    """
    own = [model for model in models if _is_of(model, wanted)]
    if wanted.file is not None:
        steps = PurePosixPath(wanted.file.lower()).parts
        return next((model for model in own if _steps(model, len(steps)) == steps), None)
    names = {"/".join(_steps(model, 2)): model for model in reversed(own)}  # a folder may tell the quant
    if wanted.quant is not None:
        fitting = of_quant(wanted.quant, reversed(names), loosely=loosely)
        return names[fitting[0]] if fitting else None
    quants = {quant_of(name): model for name, model in names.items()}
    return quants.get("Q4_K_M") or quants.get("Q8_0") or (own[0] if own else None)


def _steps(model: LocalModel, count: int) -> tuple[str, ...]:
    return tuple(step.lower() for step in model.path.parts[-count:])


def _is_of(model: LocalModel, wanted: Reference) -> bool:
    repository, revision = wanted.repository.lower(), (wanted.revision or "").lower()
    is_in_commit = f"/snapshots/{revision}" in model.path.as_posix()
    if revision and not (len(revision) >= SHORT_COMMIT and is_in_commit):
        return False
    beginnings = (f"{repository}:", f"{repository}/", *([f"{repository}@"] if revision else []))
    names = (name.lower() for name in (model.name, *model.also))
    return any(name == repository or name.startswith(beginnings) for name in names)


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
            f"{folder} cannot be looked into: {error.strerror or error}", "check its permissions"
        ) from error


def _add(found: dict[Path, LocalModel], model: LocalModel, plain_name: str, headers: Headers) -> None:
    real = Path(os.path.realpath(model.path))
    first = found.get(real)
    if first is None:
        shape, problem = (None, model.problem) if model.problem else headers.shape(model.path, model.files)
        found[real] = replace(model, bytes=_bytes_on_disk(model.files), shape=shape, problem=problem)
    elif plain_name not in (first.name, *first.also):
        other = replace(first, name=plain_name, path=model.path, files=model.files, others=())
        found[real] = replace(first, others=(*first.others, other))


def _bytes_on_disk(files: Iterable[Path]) -> int:
    total = 0
    for file in files:
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def _with_unique_names(models: Iterable[LocalModel]) -> tuple[LocalModel, ...]:
    """Let models that share a name go by their paths, all but the first."""
    taken: set[str] = set()
    unique = []
    for model in models:
        clash = model.name.lower() in taken
        taken.add(model.name.lower())
        unique.append(replace(model, name=str(model.path)) if clash else model)
    return tuple(unique)


PARTIAL_ENDINGS = (".incomplete", ".downloadInProgress")  # of huggingface_hub and us, and of llama.cpp
UNFINISHED = " (unfinished)"
MOST_ENTRIES = 200_000
SHORT_COMMIT = 8  # so many digits of it stand in names
_DEEPEST = 12


_Found = tuple[LocalModel, str]
"""A model by the names of its files, not yet looked into, and its name without the commit that it is of."""


def _found(name: str, files: tuple[Path, ...], source: PlaceKind, problem: str = "") -> LocalModel:
    return LocalModel(name, files[0], files, 0, source, problem=problem)


def candidates(place: Place) -> Iterator[_Found]:
    """Yield the models of a place; those of a repository's newest commit before older ones."""
    mode = _mode(place.path)
    if stat.S_ISDIR(mode):
        yield from _Walk(place).models()
    elif stat.S_ISREG(mode):
        yield _found(place.path.stem, (place.path,), place.kind), place.path.stem


def _mode(path: Path) -> int:
    """Return what a path leads to; 0 where there is nothing, or nobody may look."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0


class _Walk:
    """One walk through a place, which ends when it has seen too much."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._seen: set[str] = set()
        self._left = MOST_ENTRIES

    def models(self) -> Iterator[_Found]:
        place, kind = self._place.path, self._place.kind
        for folder, folders, files in self._folders(place):
            yield from self._loose(folder, files)
            repositories = {
                name: repository
                for name in folders
                if (repository := repository_of(name)) and stat.S_ISDIR(_mode(folder / name / "blobs"))
            }
            for name, repository in repositories.items():
                yield from self._repository(folder / name, repository)
            is_end = kind in ("hub", "llama.cpp") or len(folder.relative_to(place).parts) >= _DEEPEST
            left = (name for name in folders if name not in repositories and not name.startswith("."))
            folders[:] = () if is_end else left
        if self._left <= 1:
            text = f"has more than {MOST_ENTRIES:,} files; only some were looked at"
            yield _found(str(place), (place,), kind, text), str(place)

    def _folders(self, root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
        """Yield a folder and those below it, none twice, with the names of their folders and files.

        Whoever walks may take names out of the folders. What cannot be looked into holds no model for us.
        """
        for folder, folders, files in os.walk(root, followlinks=True):
            real = os.path.realpath(folder)  # links may lead in circles
            if real not in self._seen and self._left > 1:
                self._seen.add(real)
                names = sorted(files)[: self._left - 1]
                folders.sort()
                self._left -= len(folders) + len(names)
                yield Path(folder), folders, names
            else:
                folders.clear()

    def _loose(self, folder: Path, files: list[str]) -> Iterator[_Found]:
        if self._place.kind == "hub":  # whose root holds repositories alone
            return
        repository = None
        if self._place.kind == "lmstudio":
            steps = folder.relative_to(self._place.path).parts
            repository = f"{steps[0]}/{steps[1]}" if len(steps) >= 2 else None
        yield from _named(folder, files, repository, "", self._place.kind)

    def _repository(self, folder: Path, repository: str) -> Iterator[_Found]:
        newest, kind = current_commit(folder), self._place.kind
        commits = sorted((folder / "snapshots").glob("*"))
        for root in sorted(commits, key=lambda commit: commit.name != newest):
            paths = (folder / name for folder, _, names in self._folders(root) for name in names)
            names = [path.relative_to(root).as_posix() for path in paths]
            revision = "" if newest in (None, root.name) else f"@{root.name[:SHORT_COMMIT]}"
            yield from _named(root, names, repository, revision, kind)
        for path in sorted((folder / "blobs").glob("*")):
            if path.name.endswith(PARTIAL_ENDINGS):
                text = f"its download is not finished; `localspec pull {repository}:QUANT` goes on with it"
                yield _found(f"{repository}{UNFINISHED}", (path,), kind, text), repository


def _named(
    root: Path, names: Sequence[str], repository: str | None, revision: str, source: PlaceKind
) -> Iterator[_Found]:
    firsts = models_among(names, headless=True)
    quants = Counter(quant_of(name) for name in firsts)
    for name in firsts:
        try:
            parts, problem = all_parts(name, names), ""
        except UserError as error:
            parts, problem = (name,), str(error)
        shown, plain = (_name(name, repository, at, quants) for at in (revision, ""))
        yield _found(shown, tuple(root / part for part in parts), source, problem), plain


def _name(file: str, repository: str | None, revision: str, quants: Counter[str]) -> str:
    """Return the shortest name that tells a model from its neighbours."""
    if repository is None:
        part = part_name(file)
        return part.prefix if part else file[: -len(".gguf")]
    quant = quant_of(file)
    if quants[quant] > 1:
        return f"{repository}{revision}/{file}"
    return f"{repository}{revision}:{quant}" if quant else f"{repository}{revision}"


@dataclass(frozen=True, slots=True)
class _Known:
    """What was read of a model when its files had these sizes and times of change."""

    path: str
    stamp: str
    shape: ModelShape | None
    problem: str


@dataclass(frozen=True, slots=True)
class _Remembered:
    """What a version of LocalSpec has read."""

    version: str
    models: tuple[_Known, ...]


class Headers:
    """The shapes of files, or why they have none, by path, size and time of change."""

    def __init__(self, file: Path, read: Callable[[Path], ModelShape]) -> None:
        self._file, self._read = JsonFile(file, _Remembered, largest=2**24), read
        held = self._file.read()
        models = held.models if held and held.version == __version__ else ()
        self._known = {each.path: each for each in models}
        self._changed = False

    def shape(self, path: Path, files: Sequence[Path]) -> tuple[ModelShape | None, str]:
        """Return the shape of a model, or None and what is wrong with it."""
        try:
            stats = [file.stat() for file in files]
        except FileNotFoundError:
            return None, "it links to a file that is gone; download it again"
        except OSError as error:
            return None, f"it cannot be read: {error.strerror or error}"
        stamp = " ".join(f"{stat.st_size}:{stat.st_mtime_ns}" for stat in stats)
        known = self._known.get(str(path))
        if known is None or known.stamp != stamp:
            shape, problem = None, ""
            try:
                shape = self._read(path)
            except ModelFileError as error:
                problem = error.message.removeprefix(f"{path} ") + (f"; {error.hint}" if error.hint else "")
                if isinstance(error, UnsupportedError) or isinstance(error.__cause__, OSError):
                    # which may pass while the file stays as it is
                    return None, problem
            known = self._known[str(path)] = _Known(str(path), stamp, shape, problem)
            self._changed = True
        return known.shape, known.problem

    def save(self) -> None:
        """Write what was learned; a disk that takes no more costs only time, the next time."""
        if self._changed:
            there = (known for path, known in self._known.items() if os.access(path, os.F_OK))
            with suppress(StoreError):
                self._file.write(_Remembered(__version__, tuple(there)))
