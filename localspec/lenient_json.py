"""JSON as models and clients write it: cut, with half a character, or no object where one is needed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

_Pairs = list[tuple[str, object]]  # of an object

_DEEPEST = 100  # objects and lists inside each other; templates and other programs recurse
_CUT_ESCAPE = re.compile(r"((?:^|[^\\])(?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?\Z")
_CUT_WORD = re.compile(r"[a-z]+\Z")
_CUT_NUMBER = re.compile(r"(?:(?<=\d)(?:\.|[eE][+-]?)|-)\Z")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.?)*+("?)|[\[\]{}]', re.DOTALL)
_ENDS = {"{": "}", "[": "]"}
_FIRST, _SECOND, _EITHER = (
    rf"\\u[dD][{digits}][0-9a-fA-F]{{2}}" for digits in ("89abAB", "c-fC-F", "89a-fA-F")
)
_HALF = re.compile(rf"(\\\\|{_FIRST}{_SECOND})|{_EITHER}")


def with_whole_characters(text: str) -> str:
    """Return JSON text with U+FFFD for each escape that is half of a surrogate pair without the other."""
    return _HALF.sub(lambda found: found[1] or r"\ufffd", text)


def read_object(text: str) -> dict[str, object] | None:
    """Read the arguments of a call; None if they are not a JSON object, or one that is nested too deeply.

    No arguments and null are an empty object. Numbers that JSON does not have become texts.
    """
    if text.strip() in ("", "null"):
        return {}
    value = _loaded(text)
    if isinstance(value, str):  # encoded twice
        value = _loaded(value)
    return value if isinstance(value, dict) else None


def completed_object(text: str) -> dict[str, object]:
    """Read the arguments of a call also if they were cut; what is no object comes as the text that it is."""
    found = read_object(text)
    if found is None and text.lstrip().startswith("{"):
        endings = (_loaded(closed, _first_given) for closed in _closed(text))
        found = next((value for value in endings if isinstance(value, dict)), None)
    return {"arguments": text} if found is None else found


def _loaded(text: str, members: Callable[[_Pairs], dict[str, object]] = dict) -> object:
    """Return the value of JSON text; None if it cannot be read."""
    if text.count("{") + text.count("[") > _DEEPEST and _nesting(text).deepest > _DEEPEST:
        return None
    try:
        return json.loads(
            with_whole_characters(text),
            strict=False,
            parse_constant=str,
            parse_float=_finite_or_text,
            object_pairs_hook=members,
        )
    except ValueError:
        return None


def _first_given(pairs: _Pairs) -> dict[str, object]:
    """Return the members of an object that was cut: the beginning of a last key may be a key before it."""
    found = dict[str, object]()
    for key, value in pairs:
        if value is not None or key not in found:
            found[key] = value
    return found


def _finite_or_text(digits: str) -> float | str:
    number = float(digits)
    return number if isfinite(number) else digits


@dataclass(frozen=True, slots=True)
class _Nesting:
    """What is open at the end of JSON text, such as a string, with the brackets that close the rest."""

    closing: str
    in_string: bool
    deepest: int


def _nesting(text: str) -> _Nesting:
    open_ = list[str]()
    deepest = 0
    in_string = False
    for found in _STRING_OR_BRACKET.finditer(text):
        mark = found[0]
        if mark in _ENDS:
            open_.append(_ENDS[mark])
            deepest = max(deepest, len(open_))
        elif mark.startswith('"'):
            in_string = not found[1]
        elif open_:
            open_.pop()
    return _Nesting("".join(reversed(open_)), in_string, deepest)


def _closed(text: str) -> list[str]:
    """Return ways to complete JSON that was cut; a key without a value gets null."""
    nesting = _nesting(text)
    if nesting.deepest > _DEEPEST:
        return []
    if nesting.in_string:
        text = _CUT_ESCAPE.sub(r"\1", text) + '"'
    else:
        text = _CUT_WORD.sub(lambda cut: _word(cut[0]), text.rstrip())
        text = _CUT_NUMBER.sub("", text).removesuffix(",")
    return [f"{text}{value}{nesting.closing}" for value in ("", ": null", "null")]


def _word(beginning: str) -> str:
    return next((word for word in ("true", "false", "null") if word.startswith(beginning)), beginning)
