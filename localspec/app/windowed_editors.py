"""Editors with windows of their own, most of which return at once unless a flag tells them to wait."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from localspec.errors import UserError

_WAIT: Final = ("--wait", "-w")
_OF_CODE = "antigravity code code-insiders code-oss codium codium-insiders cursor kiro trae vscodium windsurf"
_OF_JETBRAINS = "clion datagrip fleet goland idea phpstorm pycharm rider rubymine rustrover webstorm"
_OTHERS = "atom bbedit gedit lapce mate nova pluma pulsar subl sublime_text xed zed zedit zeditor"
_WAITING: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(f"{_OF_CODE} {_OF_JETBRAINS} {_OTHERS}".split(), _WAIT),
    "geany": ("--new-instance", "-i"),
    "gedit": (*_WAIT, "--standalone", "-s"),
    "gnome-text-editor": ("--standalone", "-s"),
    "gvim": ("--nofork", "-f"),
    "kate": ("--block", "-b"),
    "mousepad": ("--disable-server",),
    "mvim": ("--nofork", "-f"),
    "open": ("--wait-apps", "-W"),
    "texteditor": ("--standalone", "-s"),
    "xdg-open": (),
}
"""Flags of which one is needed, the first to be recommended; empty for programs that never wait."""
_LEAVING: Final[dict[str, tuple[str, ...]]] = {"emacsclient": ("--no-wait", "-n")}
_STARTERS = frozenset({"command", "env", "exec", "flatpak", "nice", "nohup", "run", "setsid", "snap"})
_ENDINGS = re.compile(r"\.(?:app|bat|cmd|exe)$")


def check_waits(command: Sequence[str]) -> None:
    """Raise `UserError` for an editor that would return before anything is written, with what it needs."""
    name = _program(command)
    leaves = any(_has(command, flag) for flag in _LEAVING.get(name, ()))
    flags = _WAITING.get(name)
    if not leaves and (flags is None or any(_has(command, flag) for flag in flags)):
        return
    problem = f"`{shlex.join(command)}` returns at once, so what you save there later would be lost"
    if leaves:
        raise UserError(problem, "leave that flag out")
    if not flags:
        raise UserError(problem, "name an editor that waits, for instance `EDITOR=nano`")
    raise UserError(problem, f'let it wait: EDITOR="{shlex.join(command)} {flags[0]}"')


def _program(command: Sequence[str]) -> str:
    """Return the name of the program that a command starts, also by way of another."""
    for word in command:
        name = _ENDINGS.sub("", PurePath(word.replace("\\", "/")).name.lower())
        if name not in _STARTERS and not word.startswith("-") and "=" not in word:
            return name if name in _WAITING else name.rpartition(".")[2]  # as in com.visualstudio.code
    return ""


def _has(command: Sequence[str], flag: str) -> bool:
    if flag.startswith("--"):
        return any(word == flag or word.startswith(f"{flag}=") for word in command[1:])
    return any(re.fullmatch(rf"-[a-zA-Z]*{flag[1]}[a-zA-Z]*", word) for word in command[1:])
