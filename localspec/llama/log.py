"""llama.cpp's log, sent to Python's logging and never to the terminal."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("localspec.llama.cpp")
logger.addHandler(logging.NullHandler())

# ggml.h, enum ggml_log_level; the table in llama-cpp-python's own logger is out of date.
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUE = 5


class _Stream(threading.local):
    """What one thread has received: the unfinished line, and who wants to hear of problems."""

    def __init__(self) -> None:
        self.level = logging.INFO
        self.pending = ""
        self.listeners: list[list[str]] = []


_stream = _Stream()


def receive(level: int, text: bytes | None, _user_data: object = None) -> None:
    """Take one fragment from `llama_log_set`; lines are logged when their newline arrives."""
    if level != _CONTINUE:
        _flush()
        _stream.level = _LEVELS.get(level, logging.INFO)
    *lines, _stream.pending = (_stream.pending + (text or b"").decode("utf-8", "replace")).split("\n")
    for line in lines:
        _emit(line)


def _flush() -> None:
    line, _stream.pending = _stream.pending, ""
    _emit(line)


def _emit(line: str) -> None:
    line = line.rstrip()
    if not line:
        return
    if _stream.level >= logging.WARNING:
        for problems in _stream.listeners:
            problems.append(line)
    logger.log(_stream.level, "%s", line)


@contextmanager
def problems_of_this_thread() -> Iterator[list[str]]:
    """Collect the warnings and errors that llama.cpp logs on this thread meanwhile."""
    problems: list[str] = []
    _stream.listeners.append(problems)
    try:
        yield problems
    finally:
        _flush()
        # list.remove() would take the first list that compares equal
        _stream.listeners[:] = [other for other in _stream.listeners if other is not problems]


def last_problem(problems: list[str], otherwise: str = "llama.cpp gives no reason") -> str:
    """Return the most telling of the collected lines: the last one that speaks of an error."""
    errors = [line for line in problems if "error" in line.lower() or "failed" in line.lower()]
    # llama.cpp repeats a failed load as "failed to load model"; the line before has the reason
    telling = [line for line in errors if "failed to load model" not in line] or errors or problems
    return telling[-1] if telling else otherwise
