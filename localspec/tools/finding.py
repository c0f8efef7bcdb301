"""The tools that list a folder and find files and folders by a pattern; what git ignores is left out."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event
from typing import Annotated, Literal

from localspec.errors import os_errors_as
from localspec.folders.contents import MAX_LOOKED_AT, listing, matches
from localspec.folders.patterns import PathPattern, path_pattern
from localspec.safe_text import safe_line, whole_text
from localspec.tools.tool import ToolOutput
from localspec.tools.workspace import Workspace
from localspec.values import Range

MAX_FOUND = 200
ALL = "**"
Folder = Annotated[str, "folder in the workspace"]
_SOUGHT = {"file": "file", "dir": "folder", "all": "file or folder"}


@dataclass(frozen=True, slots=True)
class ListArguments:
    """Arguments of `list_folder`."""

    path: Folder = "."


@dataclass(frozen=True, slots=True)
class FindArguments:
    """Arguments of `find_files`."""

    pattern: Annotated[str, "*.py finds at any depth; src/**/test_*.py below src"] = ALL
    path: Folder = "."
    type: Annotated[Literal["file", "dir", "all"], "what to find"] = "file"
    max_depth: Annotated[Annotated[int, Range(0, 10**9)] | None, "1 is the folder alone"] = None
    limit: Annotated[int, Range(1, MAX_FOUND), "most results"] = MAX_FOUND


@dataclass(frozen=True, slots=True)
class FileFinder:
    """Looks at folders of a workspace."""

    workspace: Workspace

    def list(self, wanted: ListArguments, _stop: Event) -> str:
        """Return the names and sizes of what is in a folder and below it; raises UserError."""
        place = self.workspace.existing_folder(wanted.path)
        with os_errors_as(f"cannot read `{place.shown}`"):
            return listing(place.path)

    def find(self, wanted: FindArguments, _stop: Event) -> ToolOutput:
        """Return the paths of files and folders that a pattern matches; raises UserError."""
        place = self.workspace.existing_folder(wanted.path)
        found = matches(place.path, anywhere(wanted.pattern or ALL), wanted.max_depth or None)
        files = () if wanted.type == "dir" else (*found.paths, *found.links)
        folders = () if wanted.type == "file" else found.folders
        every = [*files, *(f"{path}/" for path in folders)]
        shown = [safe_line(whole_text(path)) for path in sorted(every)[: wanted.limit]]
        notes = []
        if len(every) > len(shown):
            notes.append(f"[... {len(every) - len(shown):,} more ...]")
        if found.is_cut:
            notes.append(f"[... only {MAX_LOOKED_AT:,} entries were looked at ...]")
        if not every:
            hidden = f"; {found.ignored:,} ignored by git" if found.ignored else ""
            notes.insert(0, f"no {_SOUGHT[wanted.type]} matches{hidden}")
        entries = [{"path": path.rstrip("/"), "type": _kind(path)} for path in shown]
        data = {"base": str(place.path), "entries": entries, "matches": len(every)}
        return ToolOutput("\n".join(shown + notes), data=data)


def _kind(path: str) -> str:
    return "dir" if path.endswith("/") else "file"


def anywhere(pattern: str, *, finds_hidden: bool = False) -> PathPattern:
    """Return a pattern of paths; one without a folder finds names at any depth."""
    pattern = pattern.removeprefix("./")
    return path_pattern(pattern if "/" in pattern else f"**/{pattern}", finds_hidden=finds_hidden)
