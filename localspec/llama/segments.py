"""A long text to tokens, of which only the parts that were not in the last text are tokenised.

llama.cpp first cuts a text at its special tokens and then tokenises what lies between, each piece by itself.
So a text may be cut before a special token and its parts tokenised apart, if every occurrence of that token's
text is surely taken as the token: no other special token may reach into it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

from localspec.llama.vocabulary import BPE, SPM, Vocabulary

WORTH_IT = 2048  # characters; shorter texts are tokenised in less time than it takes to look for cuts


class Segments:
    """The tokens of one text after the other; a conversation's turns are mostly those of the time before."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._marks: re.Pattern[str] | None = None
        self._looked = False
        self._known: dict[str, list[int]] = {}

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text that is read with its special ones, as if it were read in one go."""
        if len(text) < WORTH_IT:
            return self._vocabulary.tokenize(text, special=True)
        if not self._looked:
            self._marks, self._looked = _marks(self._vocabulary, text), True
        found = [] if self._marks is None else self._marks.finditer(text)
        cuts = [0, *(match.start() for match in found if match.start()), len(text)]
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


def _marks(vocabulary: Vocabulary, text: str) -> re.Pattern[str] | None:
    """Return a pattern of the control tokens in a text before which it and its like may be cut."""
    if vocabulary.type not in (SPM, BPE):
        return None
    specials = {token: vocabulary.text(token) for token in vocabulary.special_tokens}
    raw, safe = text.encode("utf-8", "replace"), []
    for token in vocabulary.control_tokens - vocabulary.stripping_tokens:
        mark = specials[token]
        others = (other for each, other in specials.items() if each != token)
        if _is_text(mark) and mark in raw and _is_apart(mark, others):
            safe.append(re.escape(mark.decode("utf-8")))
    return re.compile("|".join(safe)) if safe else None


def _is_text(mark: bytes) -> bool:
    try:
        mark.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _is_apart(text: bytes, others: Iterable[bytes]) -> bool:
    """Tell whether every occurrence of a special token's text becomes the token.

    The longer ones are looked for first, so that a shorter one takes nothing from it.
    """
    parts = range(1, len(text))
    heads, tails = tuple(text[:part] for part in parts), tuple(text[part:] for part in parts)
    if not heads or any(text.endswith(head) for head in heads):
        return False
    return not any(
        len(other) >= len(text) and (text in other or other.endswith(heads) or other.startswith(tails))
        for other in others
    )
