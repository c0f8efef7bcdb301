"""The words of the screen that not everybody knows: `glossary.toml` holds them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def glossary() -> dict[str, str]:
    """Return each word and what it means."""
    path = Path(__file__).with_suffix(".toml")
    words: dict[str, str] = tomllib.loads(path.read_text(encoding="utf-8"))
    return words


@cache
def _pattern() -> re.Pattern[str]:
    """Return what finds the words in a text, the longest first, also at the start of a sentence."""
    longest = sorted(glossary(), key=len, reverse=True)
    found = "|".join(f"[{word[0]}{word[0].upper()}]{re.escape(word[1:])}" for word in longest)
    return re.compile(rf"(?<!\w)(?:{found})(?=s?(?!\w))")


def explained(text: str) -> Iterator[tuple[range, str]]:
    """Yield the places of such words in a text, with what they mean."""
    words = glossary()
    for found in _pattern().finditer(text):
        word = found[0] if found[0] in words else found[0][0].lower() + found[0][1:]
        yield range(*found.span()), f"{found[0]}: {words[word]}"
