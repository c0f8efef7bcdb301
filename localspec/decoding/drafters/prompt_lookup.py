"""Find repetitions in a text of tokens."""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST_MATCH = 32
_OCCURRENCES_TRIED = 64


class SuffixIndex:
    """The earlier occurrences of what the text ends with.

    Every run of `minimum` tokens points at the run before it that is equal, so that
    a token is added and taken back in constant time, and a match of any length is found along the chain.
    """

    def __init__(self, minimum: int = 3) -> None:
        self._minimum = minimum
        self._tokens: list[int] = []
        self._before: list[int | None] = []  # for the run that ends here: the end of the equal run before
        self._latest: dict[tuple[int, ...], int] = {}  # run -> its last end

    def __len__(self) -> int:
        return len(self._tokens)

    def sync(self, tokens: Sequence[int]) -> None:
        """Hold exactly `tokens`, keeping what is already there of them."""
        held = len(self._tokens)
        tokens = list(tokens)
        if tokens[:held] != self._tokens:
            self.truncate(_common_length(self._tokens, tokens))
        self.extend(tokens[len(self._tokens) :])

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self._tokens.append(token)
            end = len(self._tokens) - 1
            run = self._run(end)
            self._before.append(self._latest.get(run) if run else None)
            if run:
                self._latest[run] = end

    def truncate(self, length: int) -> None:
        """Forget the tokens from position `length` on."""
        for end in range(len(self._tokens) - 1, length - 1, -1):
            run = self._run(end)
            before = self._before.pop()
            if before is not None:
                self._latest[run] = before
            elif run:
                del self._latest[run]
            self._tokens.pop()

    def propose(self, limit: int) -> tuple[tuple[int, ...], int]:
        """Return up to `limit` tokens that may follow, and the length of the match that says so.

        They follow the most recent of the longest earlier occurrences of the text's end; a text that
        has been repeating itself goes on doing so. Without an occurrence the answer is `((), 0)`.
        """
        source, length = self._longest_match()
        if source is None or limit < 1:
            return (), 0
        period = len(self._tokens) - 1 - source
        following = self._tokens[source + 1 : source + 1 + limit]
        return tuple(following[place % period] for place in range(limit)), length

    def propose_after(self, tokens: Sequence[int], limit: int) -> tuple[tuple[int, ...], int]:
        """Return what `propose` would if the text went on with some tokens; it stays as it is."""
        held = len(self._tokens)
        self.extend(tokens)
        found = self.propose(limit)
        self.truncate(held)
        return found

    def _run(self, end: int) -> tuple[int, ...]:
        start = end + 1 - self._minimum
        return tuple(self._tokens[start : end + 1]) if start >= 0 else ()

    def _longest_match(self) -> tuple[int | None, int]:
        best: int | None = None
        longest = 0
        candidate = self._before[-1] if self._before else None
        for _ in range(_OCCURRENCES_TRIED):
            if candidate is None or longest >= _LONGEST_MATCH:
                break
            length = self._match_length(candidate)
            if length > longest:
                best, longest = candidate, length
            candidate = self._before[candidate]
        return best, longest

    def _match_length(self, end: int) -> int:
        """Return how far back the text up to `end` equals the text's own end."""
        tokens = self._tokens
        length = self._minimum
        while length < _LONGEST_MATCH and length <= end and tokens[end - length] == tokens[-1 - length]:
            length += 1
        return length


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return min(len(first), len(second))
