"""What is in a folder: its entries without what git ignores, as a listing or as the files of a pattern.

Links are named and not followed. Hidden and generated folders are named and not opened.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from localspec import units
from localspec.folders.ignored import Rules, is_ignored, rules_above, rules_in
from localspec.folders.patterns import PathPattern
from localspec.safe_text import safe_line, whole_text

MAX_LISTED = 300  # entries of a listing: some thousand tokens
MAX_LISTED_EACH = 100  # of one folder
MAX_LOOKED_AT = 10_000  # entries in all: some tenths of a second
_GENERATED = frozenset({"__pycache__", "node_modules"})  # often there without a .gitignore
_BUILT = frozenset({"build", "dist", "target", "venv"})  # which a .gitignore names, where there is one


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a folder; `path` is relative to where the walk began, `target` that of a link."""

    path: str
    is_folder: bool
    size: int
    target: str | None = None
    is_generated: bool = False

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]

    @property
    def is_closed(self) -> bool:
        """Whether a walk does not look into it unasked."""
        return self.name.startswith(".") or self.is_generated


@dataclass(slots=True)
class Scan:
    """A folder that was looked at, its entries by name; `problem` says why they could not be read."""

    path: str
    entries: list[Entry] = field(default_factory=list)
    ignored: int = 0
    is_cut: bool = False  # there are more entries than can be looked at
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Matches:
    """The files, links and folders that a pattern matches, relative to its base.

    `ignored` counts the entries on the way that git ignores; `is_cut` says that not all were looked at.
    """

    paths: tuple[str, ...]
    links: tuple[str, ...] = ()
    ignored: int = 0
    is_cut: bool = False
    folders: tuple[str, ...] = ()


def generated_names(base: Path) -> frozenset[str]:
    """Return the names of folders that a walk from a folder does not look into unasked.

    Where no rule of git says which folders a build has made, their usual names do.
    """
    return _GENERATED if rules_in(base, rules_above(base)) else _GENERATED | _BUILT


def walk(base: Path, enters: Callable[[Entry], bool]) -> Iterator[Scan]:
    """Yield a folder and the folders below it that `enters` wants, those nearest to it first."""
    base = base.resolve()
    generated = generated_names(base)
    waiting = deque([("", rules_above(base))])
    left = MAX_LOOKED_AT
    while waiting and left > 0:
        path, above = waiting.popleft()
        rules = rules_in(base / path, above)
        scan = _scan(base, path, rules, generated, left)
        left -= len(scan.entries) + scan.ignored
        yield scan
        waiting.extend((entry.path, rules) for entry in scan.entries if entry.is_folder and enters(entry))
    if waiting:
        yield Scan(waiting[0][0], is_cut=True)


def matches(base: Path, pattern: PathPattern, max_depth: int | None = None) -> Matches:
    """Return the files, links and folders below a folder that a pattern matches, at most so deep."""
    found: list[Entry] = []
    ignored = 0
    is_cut = False
    deepest = min(inf if each is None else each for each in (pattern.depth, max_depth))

    def enters(entry: Entry) -> bool:
        is_deep_enough = entry.path.count("/") + 1 >= deepest
        return not is_deep_enough and (not entry.is_closed or pattern.names_itself(entry.name))

    for scan in walk(base, enters):
        ignored = ignored + scan.ignored
        is_cut = is_cut or scan.is_cut
        found += [each for each in scan.entries if pattern.matches(each.path.split("/"))]
    files = tuple(each.path for each in found if each.target is None and not each.is_folder)
    links = tuple(each.path for each in found if each.target is not None)
    return Matches(files, links, ignored, is_cut, tuple(each.path for each in found if each.is_folder))


def listing(base: Path) -> str:
    """Return the names and sizes of what is in a folder and below it; raises OSError if it cannot be read."""
    scans: dict[str, Scan] = {}
    shown: dict[str, Entry] = {}

    def enters(entry: Entry) -> bool:
        return entry.path in shown and not entry.is_closed

    for scan in walk(base, enters):
        if scan.problem and not scan.path:
            raise OSError(0, scan.problem)
        scans[scan.path] = scan
        most = min(MAX_LISTED_EACH, MAX_LISTED - len(shown))
        shown.update((entry.path, entry) for entry in scan.entries[:most])
        if len(shown) >= MAX_LISTED:
            break
    return "\n".join(_lines("", scans, shown, ""))


def _lines(path: str, scans: Mapping[str, Scan], shown: Mapping[str, Entry], indent: str) -> Iterator[str]:
    """Yield the lines of a folder, with those of the folders in it below their names."""
    scan = scans[path]
    if scan.problem:
        yield f"{indent}({scan.problem})"
    for entry in scan.entries:
        if entry.path not in shown:
            continue
        name = safe_line(whole_text(entry.name))
        if entry.target is not None:
            yield f"{indent}{name} -> {safe_line(whole_text(entry.target))}"
        elif not entry.is_folder:
            yield f"{indent}{name}  {units.size(entry.size)}"
        elif entry.path in scans:
            yield f"{indent}{name}/"
            yield from _lines(entry.path, scans, shown, f"{indent}  ")
        else:
            yield f"{indent}{name}/  (not listed)"
    hidden = sum(entry.path not in shown for entry in scan.entries)
    if hidden:
        yield f"{indent}({hidden:,} more)"
    if scan.is_cut:
        yield f"{indent}(and others: {MAX_LOOKED_AT:,} entries were looked at)"
    if scan.ignored:
        yield f"{indent}({scan.ignored} ignored by git)"
    if not (scan.entries or scan.ignored or scan.problem or scan.is_cut):
        yield f"{indent}(empty)"


def _scan(base: Path, path: str, rules: Rules, generated: frozenset[str], most: int) -> Scan:
    """Look at most at that many entries of a folder."""
    found = Scan(path)
    root = base.as_posix().rstrip("/")
    try:
        with os.scandir(base / path) as entries:
            for count, each in enumerate(entries):
                if count >= most:
                    found.is_cut = True
                    break
                entry = _entry(each, f"{path}/{each.name}" if path else each.name, generated)
                if is_ignored(f"{root}/{entry.path}", rules, is_folder=entry.is_folder):
                    found.ignored += 1
                else:
                    found.entries.append(entry)
    except OSError as error:
        found.problem = f"cannot be read: {error.strerror}"
    found.entries.sort(key=lambda entry: (entry.name.casefold(), entry.name))
    return found


def _entry(each: os.DirEntry[str], path: str, generated: frozenset[str]) -> Entry:
    try:
        target = os.readlink(each.path) if each.is_symlink() else None  # noqa: PTH115 - as it is written
        is_folder = each.is_dir(follow_symlinks=False)
        size = 0 if is_folder else each.stat(follow_symlinks=False).st_size
        return Entry(path, is_folder, size, target, is_folder and each.name in generated)
    except OSError:  # it is gone meanwhile
        return Entry(path, is_folder=False, size=0)
