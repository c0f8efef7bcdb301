"""Decide whether a message asks for help with a program; pure, and a fraction of a millisecond.

Text that looks like a program decides at once; otherwise points are added for its signs and words.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Literal

Route = Literal["coding", "general"]

ENOUGH = 1.5  # points that make a message one about programs,
ENOUGH_ALREADY = 0.75  # and after another such one
NAME = 2.0
SIGN = 1.0
WORD = 0.75
SHORT = 4  # words of a message that can only mean what came before
FOLLOWS_WITHIN = 25  # words of one that may refer to it
READ = 4_000  # characters of a message that are looked at

_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ENTRIES: dict[str, list[str]] = _DATA["entries"]
_PATTERNS = _DATA["patterns"]
_SOURCES = frozenset(_DATA["sources"])
_ANY = {kind: f"(?:{'|'.join(entries)})" for kind, entries in ENTRIES.items()}

_CERTAIN = re.compile(
    _PATTERNS["certain"].replace("ENDINGS", "|".join(end for end in _DATA["sources"] if len(end) > 1)),
    re.VERBOSE | re.MULTILINE,
)
_QUOTED = re.compile(r"^(```+|~~~+) *(?:text|txt|markdown|md)\n.*?^\1", re.MULTILINE | re.DOTALL)
_SIGNS = re.compile("|".join(f"({sign})" for sign in _PATTERNS["signs"]), re.MULTILINE)
_NAMED = (
    re.compile(rf"(?<![a-z0-9_.-]){_ANY['names']}(?![a-z0-9_])|{_ANY['unspaced_names']}", re.IGNORECASE),
    re.compile(
        rf"\b(?:in|en|em|na|на|w|в) {_ANY['languages']}\b"
        rf"|\b{_ANY['languages']}(?:で| (?:project|code|program|module|package|app|component|class)\b)"
    ),
    re.compile(_PATTERNS["asked_for"], re.IGNORECASE),
)
_WORDS = re.compile(rf"\b{_ANY['words']}\b|{_ANY['unspaced_words']}", re.IGNORECASE)
_ELSEWHERE = re.compile(rf"\b{_ANY['elsewhere']}\b", re.IGNORECASE)
_PROSE = re.compile(rf"\b{_ANY['prose']}\b|{_ANY['unspaced_prose']}", re.IGNORECASE)
_REFERRING = re.compile(
    rf"\b{_ANY['referring']}\b|^\W*{_ANY['connecting']}\b|{_ANY['unspaced_referring']}", re.IGNORECASE
)
_NEW_TOPIC = re.compile(rf"^\W*{_ANY['new_topic']}\b", re.IGNORECASE)
_COUNTED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]{2}|[^\W\d_\u3040-\u30ff\u3400-\u9fff]+")


def route(message: str, files: Sequence[str] = (), before: Route | None = None) -> Route:
    """Return the task of a message with these files; a short follow-up keeps the previous one."""
    text = _QUOTED.sub("", message[:READ])
    points = _points(text)
    if points >= ENOUGH or any(_is_source(name) for name in files):
        return "coding"
    if before == "coding" and points >= ENOUGH_ALREADY:
        return "coding"
    return before if before is not None and _follows(text) else "general"


def _is_source(name: str) -> bool:
    path = PurePath(name)
    return path.suffix.lstrip(".").lower() in _SOURCES or path.name in {"Dockerfile", "Makefile"}


@lru_cache(maxsize=512)  # of a long chat, again with every question
def _points(text: str) -> float:
    """Return a score for how much a text is about programs."""
    if _CERTAIN.search(text):
        return 2 * NAME
    plain = _ELSEWHERE.sub(" ", text)
    named = next((found for names in _NAMED if (found := names.search(plain))), None)
    prose = _PROSE.search(plain)
    if prose is not None and (named is None or prose.start() < named.end()):
        return 0.0
    signs = {match.lastindex for match in _SIGNS.finditer(text)}
    words = {match[0].lower() for match in _WORDS.finditer(plain)}
    return (NAME if named else 0.0) + SIGN * len(signs) + WORD * len(words)


def _follows(text: str) -> bool:
    """Return whether a message can be a follow-up to the one before."""
    if _NEW_TOPIC.search(text) or _PROSE.search(text):
        return False
    words = len(_COUNTED.findall(text))
    return words <= SHORT or (words <= FOLLOWS_WITHIN and _REFERRING.search(text) is not None)
