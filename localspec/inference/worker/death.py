"""Why a process has ended, in plain words."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from itertools import takewhile

_MEANINGS = {
    "SIGBUS": "crashed: a file that it reads became shorter, or memory is faulty",
    "SIGFPE": "crashed: it divided by zero",
    "SIGILL": "crashed: llama.cpp was built for another processor than this",
    "SIGKILL": "was ended by the system, probably for lack of memory",
    "SIGSEGV": "crashed: it reached for memory that is not its own",
    "SIGTERM": "was ended by another program",
}
_WINDOWS_NAMES = {0xC0000005: "SIGSEGV", 0xC000001D: "SIGILL", 0xC0000094: "SIGFPE"}
_DUMP = "Fatal Python error: "  # how faulthandler begins, after what the library itself has said
_FOLDER = re.compile(r"^\S*[/\\](?=[^/\\\s]+:\d+: )")  # in which somebody built the library
_TELLING = re.compile(r"assert|error|exception|failed|what\(\):|abort", re.IGNORECASE)


def explain(code: int, output: Iterable[str]) -> str:
    """Return one line that says what an exit code means; `output` is what the process printed last."""
    name = _WINDOWS_NAMES.get(code % 2**32, "") if code >= 0 else _signal_name(-code)
    line = _telling_line(output)
    if name == "SIGABRT":
        return f"the engine stopped itself: {line or 'it gave no reason'} (SIGABRT)"
    if name:
        return f"the engine {_MEANINGS.get(name, 'was ended')} ({name})"
    return f"the engine ended with exit code {code}" + (f": {line}" if line else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _telling_line(output: Iterable[str]) -> str:
    """Return the last line that speaks of a failure, else the last of all."""
    lines = [line.strip() for line in takewhile(lambda line: not line.startswith(_DUMP), output)]
    telling = [line for line in lines if _TELLING.search(line)] or lines
    return _FOLDER.sub("", telling[-1]) if telling else ""
