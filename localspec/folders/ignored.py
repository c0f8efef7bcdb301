"""What a repository ignores: the rules of `.gitignore` files and of `.git/info/exclude`, as git reads them.

The rules nearest to a path decide, and among those of one file the last. What is in an ignored folder is
ignored, so a walk does not look into it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import UserError
from localspec.folders.patterns import PathPattern, path_pattern
from localspec.storage.regular_file import read_regular

_FILE = ".gitignore"
_EXCLUDE = (".git", "info", "exclude")
_LONGEST = 256 * 1024  # bytes of a file of rules that are read
_TRAILING_BLANKS = re.compile(r"(?<!\\) +\Z")


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    """One line: which paths below its folder it is about, and whether it ignores them."""

    pattern: PathPattern
    of_folders: bool
    ignores: bool


@dataclass(frozen=True, slots=True)
class FolderRules:
    """The rules of one folder, in the order of the lines; `path` is the folder, with no slash at its end."""

    path: str
    rules: tuple[IgnoreRule, ...]

    def verdict(self, path: str, *, is_folder: bool) -> bool | None:
        """Return whether a path below the folder is ignored, None if no rule is about it."""
        names = path[len(self.path) + 1 :].split("/")
        for rule in reversed(self.rules):
            if (is_folder or not rule.of_folders) and rule.pattern.matches(names):
                return rule.ignores
        return None


Rules = tuple[FolderRules, ...]
"""The rules that count in a folder, those of the outermost folder first."""


def rules_above(folder: Path) -> Rules:
    """Return the rules that the repository around a folder has for it; none if it ignores the folder itself.

    Outside of a repository only the folder's own rules count, which `rules_in` adds.
    """
    above = [*folder.parents]
    root = next((each for each in (folder, *above) if (each / ".git").exists()), None)
    if root is None:
        return ()
    rules: Rules = _read(root.joinpath(*_EXCLUDE), root)
    for outer in reversed([each for each in above if each.is_relative_to(root)]):
        rules = rules_in(outer, rules)
        below = outer / folder.relative_to(outer).parts[0]
        if is_ignored(below.as_posix(), rules, is_folder=True):
            return ()
    return rules


def rules_in(folder: Path, rules: Rules) -> Rules:
    """Return the rules above a folder with its own."""
    return (*rules, *_read(folder / _FILE, folder))


def is_ignored(path: str, rules: Rules, *, is_folder: bool) -> bool:
    """Return whether the rules ignore a path, given with the same beginning as their folders."""
    for each in reversed(rules):
        if (verdict := each.verdict(path, is_folder=is_folder)) is not None:
            return verdict
    return False


def _read(file: Path, folder: Path) -> Rules:
    try:
        text = read_regular(file, file.name, _LONGEST).decode("utf-8", "surrogateescape")
    except (OSError, UserError):
        return ()
    rules = tuple(_rules(text.removeprefix("\ufeff")))
    return (FolderRules(folder.as_posix().rstrip("/"), rules),) if rules else ()


def _rules(text: str) -> Iterator[IgnoreRule]:
    for line in text.split("\n"):
        pattern = _TRAILING_BLANKS.sub("", line.removesuffix("\r"))
        if not pattern or pattern.startswith("#"):
            continue
        ignores = not pattern.startswith("!")
        pattern = pattern[not ignores :]
        of_folders = pattern.endswith("/")
        path = pattern.rstrip("/")
        if not path:
            continue
        where = "" if "/" in path else "**/"  # a name alone counts in every folder below
        yield IgnoreRule(path_pattern(where + path, finds_hidden=True), of_folders, ignores)
