"""Search chats: the index, the query, and the excerpt of each hit.

The index is FTS5 with the tokenizer unicode61, accents removed. It splits words at spaces, so characters of
scripts without spaces (and emoji) are indexed one by one and searched as phrases. Trigrams would also find
parts of words, but neither two Chinese characters nor words without their accents.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import chain, islice

MAX_WORDS = 16
MAX_WORD_CHARACTERS = 64
EXCERPT_BEFORE = 48
EXCERPT_AFTER = 144
_SOON = 96  # characters: so far apart, found words still share an excerpt
_MAX_PLACES = 50  # of each word that compete for the excerpt

_ALONE = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029"
    "\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_EACH_ALONE = re.compile(f"[{_ALONE}]")
_TOKEN = re.compile(rf"[{_ALONE}]|[^\W_{_ALONE}]+")
_ASKED = re.compile(r'"([^"]*)"|(\S+)')
_MARKS = "[\u0300-\u036f]*"  # accents written as separate characters
_NOT_TEXT = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029), " ")


class _Folding(dict[int, int]):
    """Maps a character to one lower-case letter without accents, so positions stay the same."""

    def __missing__(self, code: int) -> int:
        letter = chr(code)
        base = letter if _EACH_ALONE.match(letter) else unicodedata.normalize("NFD", letter)[0].lower()
        self[code] = folded = ord(base) if len(base) == 1 else code
        return folded


_FOLDING = _Folding()


def search_text(text: str) -> str:
    """Return a text as the index reads it."""
    return text if text.isascii() else _EACH_ALONE.sub(r" \g<0> ", text)


def parse(query: str) -> tuple[str, tuple[re.Pattern[str], ...]]:
    """Return a query as an FTS5 expression and a pattern for each word, None without words.

    All words must be found, the last one may be the beginning of a word, and quotes keep words together.
    """
    text = unicodedata.normalize("NFC", query.translate(_NOT_TEXT).encode("utf-8", "replace").decode())
    asked = [(quoted or word)[:MAX_WORD_CHARACTERS] for quoted, word in _ASKED.findall(text)]
    found = [tokens for word in asked if (tokens := _TOKEN.findall(word))][:MAX_WORDS]
    unfinished = text[-1:].isalnum()
    phrases = [f'"{" ".join(tokens)}"' for tokens in found]
    words = tuple(_pattern(tokens, unfinished=unfinished and tokens is found[-1]) for tokens in found)
    return " ".join(phrases) + "*" * unfinished, words


def _pattern(tokens: Sequence[str], *, unfinished: bool) -> re.Pattern[str]:
    parts = ["".join(re.escape(letter) + _MARKS for letter in token.translate(_FOLDING)) for token in tokens]
    inner = r"[\W_]*".join(parts)
    before = "" if _EACH_ALONE.match(tokens[0]) else r"(?<![^\W_])"
    after = "" if unfinished or _EACH_ALONE.match(tokens[-1]) else r"(?![^\W_])"
    return re.compile(before + inner + after)


def excerpt(text: str, words: Sequence[re.Pattern[str]]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return the excerpt of a text with most of the words, and their positions in it."""
    folded = text.translate(_FOLDING)
    place = _best_place(folded, words)
    start = max(0, place - EXCERPT_BEFORE)
    end = min(len(text), place + EXCERPT_AFTER)
    if start and (space := text.find(" ", start, place)) >= 0:  # it begins with a whole word,
        start = space + 1
    if end < len(text) and (space := text.rfind(" ", place + EXCERPT_AFTER // 2, end)) >= 0:  # and ends so
        end = space
    before = "…" * (start > 0)
    after = "…" * (end < len(text))
    shift = len(before) - start
    marks = tuple((a + shift, b + shift) for a, b in _spans(folded, words, start, end))
    return before + text[start:end].translate(_NOT_TEXT) + after, marks


def found_in(text: str, words: Sequence[re.Pattern[str]]) -> tuple[tuple[int, int], ...]:
    """Return the positions of the words of a query, as `parse` returns them, in a text."""
    return _spans(text.translate(_FOLDING), words, 0, len(text)) if words else ()


def _spans(
    folded: str, words: Sequence[re.Pattern[str]], start: int, end: int
) -> tuple[tuple[int, int], ...]:
    return _merged(sorted(match.span() for word in words for match in word.finditer(folded, start, end)))


def _best_place(folded: str, words: Sequence[re.Pattern[str]]) -> int:
    """Return the first place of those after which most of the words come soon."""
    starts = [[match.start() for match in islice(word.finditer(folded), _MAX_PLACES)] for word in words]

    def variety(place: int) -> int:
        return sum(bisect_left(each, place) < bisect_right(each, place + _SOON) for each in starts)

    return max(sorted(chain.from_iterable(starts)), key=variety, default=0)


def _merged(marks: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    result: list[tuple[int, int]] = []
    for start, end in marks:
        if result and start < result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return tuple(result)
