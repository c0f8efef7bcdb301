"""Tokenise a conversation that mostly repeats the one before."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

from localspec.llama.vocabulary import BPE, SPM, Vocabulary

_NEVER = re.compile("(?!)")
WORTH_IT = 2048  # characters; shorter texts are tokenised in less time than it takes to look for cuts


class Segments:
    """The tokens of one text after the other; a conversation's turns are mostly those of the time before."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._marks: re.Pattern[str] | None = None  # not looked for yet
        self._known: dict[str, list[int]] = {}

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text that is read with its special ones, as if it were read in one go."""
        if len(text) < WORTH_IT:
            return self._vocabulary.tokenize(text, special=True)
        if self._marks is None:
            self._marks = _marks(self._vocabulary, text)
        cuts = [0, *(match.start() for match in self._marks.finditer(text) if match.start()), len(text)]
        now: dict[str, list[int]] = {}
        tokens: list[int] = []
        for start, end in pairwise(cuts):
            segment = text[start:end]
            known = self._known.get(segment)
            if known is None:
                known = self._vocabulary.tokenize(segment, special=True)
            now[segment] = known
            tokens += known
        self._known = now
        return tokens


def _marks(vocabulary: Vocabulary, text: str) -> re.Pattern[str]:
    """Return a pattern of the control tokens in a text before which it and its like may be cut."""
    if vocabulary.type not in (SPM, BPE):
        return _NEVER
    specials = {token: vocabulary.text(token) for token in vocabulary.special_tokens}
    safe = []
    for token in vocabulary.control_tokens - vocabulary.stripping_tokens:
        mark = specials[token].decode("utf-8", "surrogateescape")  # invalid UTF-8 is in none
        others = (other for each, other in specials.items() if each != token)
        if mark in text and _is_apart(specials[token], others):
            safe.append(re.escape(mark))
    return re.compile("|".join(safe)) if safe else _NEVER


def _is_apart(text: bytes, others: Iterable[bytes]) -> bool:
    """Return whether every occurrence of a special token's text becomes the token.

    Longer ones are searched first, so a shorter one takes nothing from them.
    """
    parts = range(1, len(text))
    heads = tuple(text[:part] for part in parts)
    tails = tuple(text[part:] for part in parts)
    if not heads or any(text.endswith(head) for head in heads):
        return False
    return not any(
        len(other) >= len(text) and (text in other or other.endswith(heads) or other.startswith(tails))
        for other in others
    )
