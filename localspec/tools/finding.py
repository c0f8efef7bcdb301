"""The tools that list a folder and find files by a pattern; what git ignores is left out."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event
from typing import Annotated

from localspec.errors import os_errors_as
from localspec.folders.contents import MAX_LOOKED_AT, listing, matches
from localspec.folders.patterns import PathPattern, path_pattern
from localspec.safe_text import safe_line, whole_text
from localspec.tools.workspace import Workspace

MAX_FOUND = 200
Folder = Annotated[str, "folder in the workspace"]


@dataclass(frozen=True, slots=True)
class ListArguments:
    """Arguments of `list_folder`."""

    path: Folder = "."


@dataclass(frozen=True, slots=True)
class FindArguments:
    """Arguments of `find_files`."""

    pattern: Annotated[str, "*.py finds at any depth; src/**/test_*.py below src"]
    path: Folder = "."


@dataclass(frozen=True, slots=True)
class FileFinder:
    """Looks at folders of a workspace."""

    workspace: Workspace

    def list(self, wanted: ListArguments, _stop: Event) -> str:
        """Return the names and sizes of what is in a folder and below it; raises UserError."""
        place = self.workspace.folder(wanted.path)
        with os_errors_as(f"cannot read `{place.shown}`"):
            return listing(place.path)

    def find(self, wanted: FindArguments, _stop: Event) -> str:
        """Return the paths of files that a pattern matches; raises UserError."""
        place = self.workspace.folder(wanted.path)
        found = matches(place.path, anywhere(wanted.pattern))
        lines = [safe_line(whole_text(path)) for path in sorted((*found.paths, *found.links))]
        notes = []
        if len(lines) > MAX_FOUND:
            notes.append(f"[... {len(lines) - MAX_FOUND:,} more ...]")
        if found.is_cut:
            notes.append(f"[... only {MAX_LOOKED_AT:,} entries were looked at ...]")
        if not lines:
            hidden = f"; {found.ignored:,} ignored by git" if found.ignored else ""
            notes.insert(0, f"no file matches{hidden}")
        return "\n".join(lines[:MAX_FOUND] + notes)


def anywhere(pattern: str, *, finds_hidden: bool = False) -> PathPattern:
    """Return a pattern of paths; one without a folder finds names at any depth."""
    pattern = pattern.removeprefix("./")
    return path_pattern(pattern if "/" in pattern else f"**/{pattern}", finds_hidden=finds_hidden)
