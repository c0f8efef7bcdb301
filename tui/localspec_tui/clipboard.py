"""Clipboards other than the terminal's, which never reports whether it took a text."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass

import pyperclip
from textual.message import Message

_TMUX_S = 2.0


@dataclass
class CopyAsked(Message):
    """A text, called so, is to be copied."""

    text: str
    what: str


def put(text: str) -> bool:
    """Copy text to the clipboards of tmux and the desktop; return whether one took it. For a thread."""
    is_taken = "TMUX" in os.environ and (_load(text, "-w") or _load(text))  # -w: tmux 3.2 and later
    with suppress(pyperclip.PyperclipException, OSError):  # no desktop
        pyperclip.copy(text)
        is_taken = True
    return is_taken


def _load(text: str, *flags: str) -> bool:
    """Make text the newest buffer of tmux; `-w` passes it on to the clipboard of the terminal around it."""
    command = ["tmux", "load-buffer", *flags, "-"]
    try:
        done = subprocess.run(
            command, input=text.encode("utf-8", "replace"), capture_output=True, timeout=_TMUX_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
