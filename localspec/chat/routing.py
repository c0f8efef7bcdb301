"""Tell from a message whether it asks for help with a program; pure, and a fraction of a millisecond.

What programs look like decides at once; else points are added for their signs and for their words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Literal

from localspec.chat.routing_words import (
    CONNECTING,
    ELSEWHERE,
    LANGUAGES,
    NAMES,
    NEW_TOPIC,
    PROSE,
    REFERRING,
    UNSPACED,
    UNSPACED_PROSE,
    UNSPACED_REFERRING,
    UNSPACED_WORDS,
    WORDS,
    either,
)

Route = Literal["coding", "general"]

ENOUGH = 1.5  # points that make a message one about programs,
ENOUGH_ALREADY = 0.75  # and after another such one
NAME, SIGN, WORD = 2.0, 1.0, 0.75
SHORT = 4  # words of a message that can only mean what came before
FOLLOWS_WITHIN = 25  # words of one that may refer to it
READ = 4_000  # characters of a message that are looked at

_SOURCES = frozenset(
    "asm bash bat c cc cl clj cmake cpp cs css cu cxx dart el erl ex exs f90 go gradle groovy h hpp hs html "
    "ipynb java jl js jsx kt lua m ml nix php pl proto ps1 py pyi r rb rs s scala scss sh sql svelte swift "
    "tf ts tsx v vb vhd vue xml zig".split()
)
_LONG_ENDINGS = "|".join(sorted(ending for ending in _SOURCES if len(ending) > 1))
_CERTAIN = re.compile(
    r"""
    ^[ \t]*(?:```|~~~)
    | Traceback\ \(most | \b[A-Z]\w*(?:Error|Exception)\b | \berror(?:\[E\d+\]|:\s) | \bnpm\ ERR!
    | \bundefined\ reference\b | \bsegmentation\ fault\b | \bsegfault | \bstack\ ?trace\b | \bexit\ code\ \d
    | ^[ \t]*(?:\#include\s*[<"] | import\ [\w.{*]+(?:\ from\b|;|[ \t]*$|\ as\ ) | from\ [\w.]+\ import\ )
    | ^[ \t]*(?:async\ )?(?:def|class|fn|func|function|struct|interface|enum)\ \w+[ \t]*[({:<]
    | \b(?:public|private|protected)\s+(?:static\s+)?\w+[\w<>\[\]]*\s+\w+\s*\(
    | \b(?:let|const|var|int|float|double|char|auto|bool|string)\s+(?:mut\s+)?[*&]?\w+(?:\s*:\s*[\w<>]+)?\s*=
    | \bfunction\s+\w*\s*\( | \bSELECT\b.+\bFROM\b | \b(?:INSERT\ INTO|CREATE\ TABLE|DELETE\ FROM)\b
    | ^[ \t]*(?:for|while|if|elif)\b.+:[ \t]*$ | \bwhile\s+True\b | \bfor\s+\w+\s+in\s+range\(
    | \b(?:System\.out|console\.log|printf?|println!?|len|std::\w+)\s*\(
    | </?(?:div|ul|li|span|body|html|head|script|table|tr|td|img|a|p|h[1-6]|button|input|form)\b[^>\n]*>
    | ^[ \t]*\$\ \w+
    | \b(?:git|docker|kubectl|cargo|npm|pip|apt|curl|chmod|grep|sed|awk)\ (?:-{1,2}\w|[a-z]+\ -)
    | \b(?:git|docker|kubectl)\ (?:rebase|merge|commit|push|pull|clone|stash|reset|run|build|get|compose)\b
    | \b(?:Dockerfile|package\.json|Cargo\.toml|pyproject\.toml|CMakeLists)\b
    """
    rf"| \b[\w-]+\.(?:{_LONG_ENDINGS})\b | \b[\w-]+\.[ch](?=[\s:,)]|$)",
    re.VERBOSE | re.MULTILINE,
)
_QUOTED = re.compile(r"^(```+|~~~+) *(?:text|txt|markdown|md)\n.*?^\1", re.MULTILINE | re.DOTALL)
_SIGNS = re.compile(  # groups are kinds of signs
    r"(`[^`\n]+`)"
    r"|(\b[a-z]+_[a-z\d]\w*|\b__\w+__\b)"
    r"|(\b(?!iPhone|iPad|iMac|iOS|iCloud|iTunes|macOS|eBay|eMail|vCard|pH)[a-z]+[A-Z][a-z]\w*)"
    r"|(\w\((?!s\))[\w\"'., =\[\]*]*\)(?=[\s;.,?!:)]|$))"
    r"|(==|!=|=>|->|::|&&|\|\||\+=|<=|>=|\*\*|;[ \t]*$|\{[ \t]*$|^[ \t]*\}|\[\d+\]|[\[{]['\"])"
    r"|(^[ \t]*\w+ = (?=\S))"
    r"|((?<!\S)--?[a-z][\w-]*=?(?!\S))"
    r"|(^(?: {4}|\t)[^\n]*[=(){};:]\s?\S*$)",
    re.MULTILINE,
)
_NAMED = (
    re.compile(rf"(?<![A-Za-z0-9_.-])(?:{either(NAMES)})(?![A-Za-z0-9_])|{either(UNSPACED)}", re.IGNORECASE),
    re.compile(
        rf"\b(?:in|en|em|na|на|w|в) (?:{LANGUAGES})\b|\b(?:{LANGUAGES})(?:で| (?:project|code|program|"
        r"module|package|app|component|class)\b)"
    ),
    re.compile(
        r"\b(?:write|implement|create|make|build|develop|generate|design|give me|need|my|this) (?:\w+ ){0,3}"
        r"(?:function|program|script|class|method|query|code|parser|website|web (?:page|site|app)|app)\b",
        re.IGNORECASE,
    ),
)
_WORDS = re.compile(rf"\b(?:{either(WORDS)})\b|{either(UNSPACED_WORDS)}", re.IGNORECASE)
_ELSEWHERE = re.compile(rf"\b(?:{either(ELSEWHERE)})\b", re.IGNORECASE)
_PROSE = re.compile(rf"\b(?:{either(PROSE)})\b|{either(UNSPACED_PROSE)}", re.IGNORECASE)
_REFERRING = re.compile(
    rf"\b(?:{either(REFERRING)})\b|^\W*(?:{either(CONNECTING)})\b|{either(UNSPACED_REFERRING)}", re.IGNORECASE
)
_NEW_TOPIC = re.compile(rf"^\W*(?:{either(NEW_TOPIC)})\b", re.IGNORECASE)
_COUNTED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]{2}|[^\W\d_\u3040-\u30ff\u3400-\u9fff]+")


def route(message: str, files: Sequence[str] = (), before: Route | None = None) -> Route:
    """Return what a message with these files is about; a short follow-up stays with the one before."""
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
    """Return how much a text looks like one about programs."""
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
    """Tell whether a message can be read as one that goes on with what was said."""
    if _NEW_TOPIC.search(text) or _PROSE.search(text):
        return False
    words = len(_COUNTED.findall(text))
    return words <= SHORT or (words <= FOLLOWS_WITHIN and _REFERRING.search(text) is not None)
