"""The models on this computer's disks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.errors import UserError
from localspec.models import gguf
from localspec.models.cache import Place, PlaceKind, known_places
from localspec.models.local_headers import Headers
from localspec.models.local_walk import UNFINISHED, Candidate, candidates
from localspec.models.names import Reference, close_names, looks_like_reference, parse, quant_of
from localspec.models.shape import ModelShape
from localspec.paths import data_dir


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


def find_models(
    folders: Sequence[Path] = (),
    *,
    bundled: Sequence[Path] = (),
    places: Sequence[Place] | None = None,
) -> tuple[LocalModel, ...]:
    """Return the models in given folders, in the caches of this computer (or `places`) and bundled ones.

    Raises UserError if a given folder is missing. Broken and unfinished files are listed with the reason.
    """
    for folder in folders:
        if not folder.exists():
            raise UserError(f"there is no folder {folder}", "check the spelling of the path")
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
    """Return the model that a name means: one of its names, its file, or a repository's usual quant."""
    models = tuple(models)
    wanted = text.lower()
    for model in models:
        if wanted in (name.lower() for name in (model.name, *model.also)) or text == str(model.path):
            return model
    sound = [model for model in models if not model.problem]
    for model in sound:
        if wanted.removesuffix(".gguf") == model.path.stem.lower():
            return model
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


def of_reference(wanted: Reference, models: Iterable[LocalModel]) -> LocalModel | None:
    """Return the model on disk that a reference means; the usual quant where it names none."""
    revision = f"@{wanted.revision[:8]}" if wanted.revision else ""
    prefix = f"{wanted.repository}{revision}".lower()
    own = [model for model in models if _is_of(model, prefix)]
    if wanted.file is not None:
        base = wanted.file.rpartition("/")[2].lower()
        return next((model for model in own if model.path.name.lower() == base), None)
    if wanted.quant is not None:
        return next((model for model in own if quant_of(model.path.name) == wanted.quant.upper()), None)
    quants = {quant_of(model.path.name): model for model in reversed(own)}
    return quants.get("Q4_K_M") or quants.get("Q8_0") or (own[0] if own else None)


def _is_of(model: LocalModel, repository: str) -> bool:
    names = (name.lower() for name in (model.name, *model.also))
    return any(name == repository or name.startswith((f"{repository}:", f"{repository}/")) for name in names)


def _add(found: dict[Path, LocalModel], candidate: Candidate, headers: Headers) -> None:
    path = candidate.files[0]
    real = Path(os.path.realpath(path))
    first = found.get(real)
    if first is not None:
        if candidate.plain_name not in (first.name, *first.also):
            found[real] = replace(first, also=(*first.also, candidate.plain_name))
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
