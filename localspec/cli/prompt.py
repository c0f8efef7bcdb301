"""Find the question: in the arguments, on standard input, or in both."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from localspec.cli.shared.console import is_terminal, read_utf8
from localspec.errors import UserError

MOST_BYTES = 64 * 2**20  # of standard input: far more than any context holds
_HOW = 'write `localspec run "question"`, or pipe a text into it'


def read_prompt(words: Sequence[str]) -> str:
    """Return the words of the arguments with the text of standard input, if any, below them."""
    argument = " ".join(words)
    if not _is_text(argument):
        raise UserError(
            "the prompt is not valid text", "write it in the terminal's encoding, or pipe it as UTF-8"
        )
    has_input = sys.stdin is not None and not sys.stdin.closed and not is_terminal(sys.stdin)
    piped = read_utf8(sys.stdin, MOST_BYTES).rstrip("\r\n") if has_input else ""
    if argument.strip():
        return f"{argument}\n\n{piped}" if piped.strip() else argument
    if piped.strip():
        return piped
    if words:
        raise UserError("the prompt is empty", _HOW)
    if has_input:
        raise UserError("standard input is empty, and there is no prompt", _HOW)
    raise UserError("there is no prompt", f"{_HOW}; `localspec chat` talks line by line")


def _is_text(argument: str) -> bool:
    try:
        argument.encode("utf-8")
    except UnicodeEncodeError:  # bytes that the terminal's encoding could not make sense of
        return False
    return True
