"""Paths as shells and file managers spell them: quoted, with escaped blanks, or as `file://` addresses."""

from __future__ import annotations

import os
import re

_ADDRESS = re.compile(r"file://([^/\s]*)(/[^\s\"'<>]*)", re.IGNORECASE)
_DRIVE = re.compile(r"/[A-Za-z]:")  # before a drive of Windows
_SHELL_WORD = re.compile(r"""(?:'[^'\n]*' | "(?:\\.|[^"\\\n])*" | \\. | [^\s'"\\])+(?=\s|\Z)""", re.VERBOSE)
_SHELL_PART = re.compile(r"""'([^']*)' | "((?:\\.|[^"\\])*)" | \\(.) | ([^'"\\]+)""", re.VERBOSE)
Spelled = tuple[str, int]
"""A path, and where its spelling ends in the text."""


def address_at(text: str, at: int) -> Spelled | None:
    """Return the path of a `file://` address on this machine that begins at a place."""
    found = _ADDRESS.match(text, at)
    if found is None:
        return None
    import socket  # 5 ms
    from urllib.parse import unquote_to_bytes

    if found[1].lower() not in {"", "localhost", socket.gethostname().lower()}:
        return None
    path = os.fsdecode(unquote_to_bytes(found[2]))
    return (path[1:] if _DRIVE.match(path) else path), found.end()


def shell_word_at(text: str, at: int) -> Spelled | None:
    """Return the word that a shell would read at a place, without its quotes and backslashes."""
    found = _SHELL_WORD.match(text, at)
    if found is None:
        return None
    parts = (
        part[1] if part[1] is not None else _unescaped(part[2]) if part[2] is not None else part[3] or part[4]
        for part in _SHELL_PART.finditer(found[0])
    )
    return "".join(parts), found.end()


def without_backslashes(path: str) -> str:
    """Return a path without the backslash before each sign that has one."""
    return re.sub(r"\\(.)", r"\1", path)


def _unescaped(quoted: str) -> str:
    """Return the text between double quotes, where a backslash only escapes a few signs."""
    return re.sub(r'\\(["\\$`])', r"\1", quoted)
