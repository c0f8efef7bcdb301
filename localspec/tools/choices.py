"""What the user chose in chats to always allow, by workspace; kept in LocalSpec's data folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localspec.storage.json_file import JsonFile
from localspec.storage.paths import data_dir

_PATIENCE_S = 2.0  # until another program has written its choice


@dataclass(frozen=True, slots=True)
class WorkspaceChoices:
    """The rules that were chosen for one workspace."""

    workspace: str
    allow: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToolChoices:
    """The choices for all workspaces."""

    workspaces: tuple[WorkspaceChoices, ...] = ()

    def of(self, workspace: Path) -> tuple[str, ...]:
        """Return the rules for a workspace."""
        return next((each.allow for each in self.workspaces if each.workspace == str(workspace)), ())


def chosen(workspace: Path) -> tuple[str, ...]:
    """Return the rules that were chosen for a workspace; none if the file is missing or damaged."""
    return (_file().read() or ToolChoices()).of(workspace)


def choose(workspace: Path, rule: str) -> None:
    """Save one more rule for a workspace; raises StoreError."""
    _change(workspace, lambda rules: (*rules, rule) if rule not in rules else rules)


def forget(workspace: Path) -> None:
    """Delete all rules that were chosen for a workspace; raises StoreError."""
    _change(workspace, lambda _: ())


def _change(workspace: Path, changed: Callable[[tuple[str, ...]], tuple[str, ...]]) -> None:
    file = _file()
    with file.locked(_PATIENCE_S):
        choices = file.read() or ToolChoices()
        others = [each for each in choices.workspaces if each.workspace != str(workspace)]
        own = changed(choices.of(workspace))
        file.write(ToolChoices((*others, *([WorkspaceChoices(str(workspace), own)] if own else []))))


def _file() -> JsonFile[ToolChoices]:
    return JsonFile(data_dir() / "tool_choices.json", ToolChoices, schema=1)
