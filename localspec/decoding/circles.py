"""Notice an answer that goes in circles: small models may, and would until the context is full."""

from __future__ import annotations

COPIES = 3  # of one stretch of text, one right after the other, ...
TOKENS = 256  # ... and so many tokens at least: tables and rows of zeros repeat themselves for good reasons
_LATEST = 8  # tokens by which an earlier copy is found


class Circles:
    """Watch the tokens of an answer as they come."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}  # of the latest tokens, wherever they stood last
        self._length = 0  # of the stretch that is repeated; 0: none
        self._repeated = 0  # tokens that equal those a stretch earlier

    def add(self, token: int) -> bool:
        """Take the next token; tell whether the text up to it ends with nothing but copies of one stretch."""
        tokens, length = self._tokens, self._length
        goes_on = length > 0 and tokens[-length] == token
        tokens.append(token)
        latest, end = tuple(tokens[-_LATEST:]), len(tokens)
        if goes_on:
            self._repeated += 1
        elif earlier := self._ends.get(latest):
            self._length, self._repeated = end - earlier, _LATEST
        else:
            self._length = self._repeated = 0
        self._ends[latest] = end
        whole = self._length + self._repeated
        return self._length > 0 and whole >= max(COPIES * self._length, TOKENS)
