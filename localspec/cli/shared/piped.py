"""Standard input of a command: whether there is any, and what is said while nothing comes."""

from __future__ import annotations

import sys

from localspec.cli.shared.console import is_terminal, say
from localspec.storage.standard_input import MAX_BYTES, StandardInput

_SILENCE_S = 3.0  # input usually begins within that time


def is_piped() -> bool:
    """Return whether standard input is open and not a terminal."""
    return sys.stdin is not None and not sys.stdin.closed and not is_terminal(sys.stdin)


def read_aloud(most: int = MAX_BYTES, *, otherwise: str = "") -> StandardInput:
    """Start reading standard input; report once if nothing comes for some seconds.

    `otherwise` is a hint for doing without it.
    """
    text = f"waiting for standard input{otherwise and '; '}{otherwise}"
    return StandardInput(most, silence_s=_SILENCE_S, on_silence=lambda: say(text))
