"""Walk through folders and name the models in them, without opening any."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import UserError
from localspec.models.caches import Place, PlaceKind, current_commit, repository_of
from localspec.models.names import all_parts, is_model_file, models_among, quant_of, split_name

PARTIAL_ENDINGS = (".incomplete", ".downloadInProgress")  # of huggingface_hub and us, and of llama.cpp
UNFINISHED = " (unfinished)"
MOST_ENTRIES = 200_000
SHORT_COMMIT = 8  # so many digits of it stand in names
_DEEPEST = 12


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model's files as found by their names; `plain_name` leaves out which commit they are of."""

    name: str
    plain_name: str
    files: tuple[Path, ...]
    source: PlaceKind
    problem: str = ""


def candidates(place: Place) -> Iterator[Candidate]:
    """Yield the models of a place; those of a repository's newest commit before older ones."""
    mode = _mode(place.path)
    if stat.S_ISDIR(mode):
        yield from _Walk(place).folder(place.path, 0)
    elif stat.S_ISREG(mode):
        yield Candidate(place.path.stem, place.path.stem, (place.path,), place.kind)


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
        self._seen: set[tuple[int, int]] = set()
        self._left = MOST_ENTRIES

    def folder(self, folder: Path, depth: int) -> Iterator[Candidate]:
        files, folders = self._entries(folder)
        yield from self._loose(folder, files)
        for name in folders:
            path = folder / name
            if (repository := repository_of(name)) and stat.S_ISDIR(_mode(path / "blobs")):
                yield from self._repository(path, repository)
            elif self._goes_into(name, depth):
                yield from self.folder(path, depth + 1)
        if depth == 0 and self._left <= 0:
            text = f"has more than {MOST_ENTRIES:,} files; only some were looked at"
            yield Candidate(str(folder), str(folder), (folder,), self._place.kind, text)

    def _goes_into(self, name: str, depth: int) -> bool:
        if self._place.kind in ("hub", "llama.cpp") or depth >= _DEEPEST:
            return False
        return not name.startswith(".")

    def _entries(self, folder: Path) -> tuple[list[str], list[str]]:
        """Return the names of the files and folders in a folder; none of one that was seen or is closed."""
        files: list[str] = []
        folders: list[str] = []
        try:
            status = folder.stat()
            if (status.st_dev, status.st_ino) in self._seen:  # links may lead in circles
                return files, folders
            self._seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._left -= 1
                    if self._left <= 0:
                        break
                    is_folder = False
                    with suppress(OSError):  # a link in a circle, or into a closed folder
                        is_folder = entry.is_dir()
                    (folders if is_folder else files).append(entry.name)
        except OSError:
            pass  # what cannot be looked into holds no model for us
        return sorted(files), sorted(folders)

    def _loose(self, folder: Path, files: list[str]) -> Iterator[Candidate]:
        if self._place.kind == "hub":  # whose root holds repositories alone
            return
        repository = None
        if self._place.kind == "lmstudio":
            steps = folder.relative_to(self._place.path).parts
            repository = f"{steps[0]}/{steps[1]}" if len(steps) >= 2 else None
        yield from _named(folder, files, repository, "", self._place.kind)

    def _repository(self, folder: Path, repository: str) -> Iterator[Candidate]:
        newest = current_commit(folder)
        commits = self._entries(folder / "snapshots")[1]
        for commit in sorted(commits, key=lambda commit: commit != newest):
            root = folder / "snapshots" / commit
            revision = "" if newest in (None, commit) else f"@{commit[:SHORT_COMMIT]}"
            yield from _named(root, self._below(root, ""), repository, revision, self._place.kind)
        for name in self._entries(folder / "blobs")[0]:
            if name.endswith(PARTIAL_ENDINGS):
                path = folder / "blobs" / name
                text = f"its download is not finished; `localspec pull {repository}:QUANT` goes on with it"
                yield Candidate(f"{repository}{UNFINISHED}", repository, (path,), self._place.kind, text)

    def _below(self, folder: Path, prefix: str) -> list[str]:
        files, folders = self._entries(folder)
        names = [prefix + name for name in files]
        for name in folders:
            names += self._below(folder / name, f"{prefix}{name}/")
        return names


def _named(
    root: Path, names: Iterable[str], repository: str | None, revision: str, source: PlaceKind
) -> Iterator[Candidate]:
    names = [name for name in names if is_model_file(name)]
    firsts = (*models_among(names), *_headless(names))
    quants = Counter(quant_of(name) for name in firsts)
    for name in firsts:
        try:
            parts, problem = all_parts(name, names), ""
        except UserError as error:
            parts, problem = (name,), str(error)
        plain = _name(name, repository, "", quants)
        shown = _name(name, repository, revision, quants)
        yield Candidate(shown, plain, tuple(root / part for part in parts), source, problem)


def _headless(names: Iterable[str]) -> tuple[str, ...]:
    """Return a file of each split model whose first part is missing."""
    lowest: dict[tuple[str, int], str] = {}
    for name in sorted(names):
        part = split_name(name)
        if part is not None:
            lowest.setdefault((part.prefix, part.count), name)
    return tuple(
        name for name in lowest.values() if (part := split_name(name)) is not None and part.number != 1
    )


def _name(file: str, repository: str | None, revision: str, quants: Counter[str]) -> str:
    """Return the shortest name that tells a model from its neighbours."""
    if repository is None:
        part = split_name(file)
        return part.prefix if part else file[: -len(".gguf")]
    quant = quant_of(file)
    if quants[quant] > 1:
        return f"{repository}{revision}/{file}"
    return f"{repository}{revision}:{quant}" if quant else f"{repository}{revision}"
