"""Options by which commands that otherwise only read write a file or run a program.

A rule such as `git log*` does not mean these, so a call with one of them needs consent. The list has what is
known of usual commands; it is not complete.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

_LONG = (
    "--output", "--ext-diff", "--textconv", "--open-files-in-pager", "--exec", "--exec-path", "--config-env",
    "--upload-pack", "--receive-pack", "--in-place", "--pre", "--hostname-bin", "--use-compress-program",
    "--to-command", "--checkpoint-action", "--rsh", "--compress-program", "--files0-from", "--init-file",
    "--rcfile",
)  # fmt: skip
_LEAST = len("--ou")  # git and others take a beginning of an option for it
_WORDS = frozenset("-exec -execdir -ok -okdir -delete -fprint -fprint0 -fprintf -fls".split())  # of find
_SHORT = {"git": ("-c", "-O", "-o"), "sed": ("-i",), "sort": ("-o", "-T"), "tar": ("-I", "-F"), "rg": ("-z",)}


def has_risky_option(words: Sequence[str]) -> bool:
    """Return whether a command has an option that may write a file or run a program."""
    short = _SHORT.get(posixpath.basename(words[0]), ()) if words else ()
    return any(word in _WORDS or word.startswith(short) or _is_long(word) for word in words[1:])


def _is_long(word: str) -> bool:
    name = word.partition("=")[0]
    return len(name) >= _LEAST and any(option.startswith(name) for option in _LONG)
