"""The models on this computer's disks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath

from localspec.errors import UserError
from localspec.models import gguf
from localspec.models.caches import Place, PlaceKind, known_places
from localspec.models.local_headers import Headers
from localspec.models.local_walk import SHORT_COMMIT, UNFINISHED, Candidate, candidates
from localspec.models.names import Reference, close_names, looks_like_reference, of_quant, parse, quant_of
from localspec.models.shape_m import ModelShape
from localspec.storage.paths import data_dir


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on disk; without a shape, `problem` says what is wrong with it.

    `name` is what `-m` takes. `also` are other names for the same files, which are on the disk once.
    """

    name: str
    path: Path  # of its first file
    files: tuple[Path, ...]
    bytes: int  # on disk
    source: PlaceKind
    shape: ModelShape | None
    problem: str = ""
    also: tuple[str, ...] = ()
    also_files: tuple[tuple[Path, ...], ...] = ()  # what each of them leads to

    def called(self, name: str) -> LocalModel:
        """Return the model with the files that one of its names leads to."""
        for other, files in zip(self.also, self.also_files, strict=True):
            if other.lower() == name.lower():
                return replace(self, name=other, path=files[0], files=files)
        return self


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
    headers = Headers(data_dir() / "models.json", gguf.read_shape)
    found: dict[Path, LocalModel] = {}
    for place in all_places:
        for candidate in candidates(place):
            _add(found, candidate, headers)
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
    of_file = [model for model in sound if wanted.removesuffix(".gguf") == model.path.stem.lower()]
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
    close = close_names(text, (model.name for model in models))
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
    if revision and not (len(revision) >= SHORT_COMMIT and _is_of_commit(model.path, revision)):
        return False
    beginnings = (f"{repository}:", f"{repository}/", *([f"{repository}@"] if revision else []))
    names = (name.lower() for name in (model.name, *model.also))
    return any(name == repository or name.startswith(beginnings) for name in names)


def _is_of_commit(path: Path, beginning: str) -> bool:
    steps = pairwise(path.parts)
    return any(folder == "snapshots" and commit.startswith(beginning) for folder, commit in steps)


def _check_folder(folder: Path) -> None:
    try:
        if not folder.is_file():
            os.scandir(folder).close()
    except FileNotFoundError:
        raise UserError(f"there is no folder {folder}", "check the spelling of the path") from None
    except OSError as error:
        raise UserError(
            f"{folder} cannot be looked into: {error.strerror or error}", "check its permissions"
        ) from error


def _add(found: dict[Path, LocalModel], candidate: Candidate, headers: Headers) -> None:
    path = candidate.files[0]
    real = Path(os.path.realpath(path))
    first = found.get(real)
    if first is not None:
        if candidate.plain_name not in (first.name, *first.also):
            found[real] = replace(
                first,
                also=(*first.also, candidate.plain_name),
                also_files=(*first.also_files, candidate.files),
            )
        return
    shape, problem = None, candidate.problem
    if not problem:
        shape, problem = headers.shape(path, candidate.files)
    found[real] = LocalModel(
        name=candidate.name,
        path=path,
        files=candidate.files,
        bytes=_bytes_on_disk(candidate.files),
        source=candidate.source,
        shape=shape,
        problem=problem,
    )


def _bytes_on_disk(files: Iterable[Path]) -> int:
    total = 0
    for file in files:
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue
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
