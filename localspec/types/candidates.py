"""The likeliest tokens after a text, whether from a whole row of logits or chosen on the device.

Sampling, verification, drafts and their confidence read `Candidates` alone. Of equal logits the lower token
id comes first. A device that chooses may prefer any of the tokens that tie for its last place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from math import exp, inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.errors import EngineError, LogitsError
from localspec.types.drafts import TokenMask

Logits = NDArray[np.float32]
Ids = NDArray[np.int64]

RIVALS = 16
"""Tokens among which a share is that of nearly all: the next ones hardly change it."""
MOST = 128
"""Candidates that a device gives: a top-k of 40 beside penalties on 64 tokens needs 104 of them."""

_LARGE_ROW = 16384  # from here on, entries are looked up by column
_FOLDS = 32  # entries of a column
_COLUMNS = MOST  # whose maxima give a threshold, at least


class Candidates(ABC):
    """What a model says about the token after a text; valid until the model's next call."""

    __slots__ = ()

    @abstractmethod
    def best(self) -> int:
        """Return the likeliest token; raise `LogitsError` where logits are not numbers."""

    @abstractmethod
    def top(self, count: int) -> tuple[list[int], list[float]]:
        """Return the `count` likeliest tokens with their logits, best first; fewer if there are no more.

        Raises `LogitsError` where logits are not numbers.
        """

    @abstractmethod
    def among(self, mask: TokenMask, count: int) -> tuple[list[int], list[float]]:
        """Return the `count` likeliest tokens that a mask allows, as `top` does; possibly none.

        Of a row that stayed on a device, these are of the tokens that it chose.
        """

    @abstractmethod
    def lead(self, sharpness: float) -> tuple[int, float]:
        """Return the likeliest token and its share among about `RIVALS`, with logits times `sharpness`.

        The share says how sure the model is; calibration makes a chance of it. It costs less than `top`, and
        of equal logits any may be the best.
        Raises `LogitsError` where logits are not numbers.
        """

    @property
    @abstractmethod
    def logits(self) -> Logits:
        """Return all logits, float32 (vocabulary,); raise `EngineError` if they stayed on the device."""


class Rows(ABC):
    """The candidates after each of some texts; valid until the model's next call."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of texts."""

    @abstractmethod
    def __getitem__(self, index: int) -> Candidates:
        """Return the candidates after one text."""

    def __iter__(self) -> Iterator[Candidates]:
        """Yield the candidates after each text."""
        return (self[index] for index in range(len(self)))

    @property
    @abstractmethod
    def logits(self) -> Logits:
        """Return all logits, float32 (n, vocabulary); raise `EngineError` if they stayed on the device."""

    @abstractmethod
    def part(self, first: int, count: int) -> Rows:
        """Return `count` rows from one on."""

    def last(self, count: int) -> Rows:
        """Return the last `count` rows."""
        return self.part(len(self) - count, count)


class TokenRun(NamedTuple):
    """Tokens to append to a sequence, and after how many of the last of them candidates are wanted."""

    sequence: int
    tokens: Sequence[int]
    rows: int


class FullRow(Candidates):
    """A whole row of logits, which is read once for each question."""

    __slots__ = ("_row",)

    def __init__(self, row: Logits) -> None:
        self._row = row

    @property
    def logits(self) -> Logits:
        """Return the row."""
        return self._row

    def best(self) -> int:
        """Return the likeliest token."""
        return _best(self._row)

    def top(self, count: int) -> tuple[list[int], list[float]]:
        """Return the likeliest tokens with their logits, best first."""
        ids, logits = top_entries(self._row, count)
        return ids.tolist(), logits.tolist()

    def among(self, mask: TokenMask, count: int) -> tuple[list[int], list[float]]:
        """Return the likeliest tokens that a mask allows, with their logits, best first."""
        left, ids = masked(self._row, mask)
        if not len(left):
            return [], []
        places, values = top_entries(left, count)
        return (places if ids is None else ids.take(places)).tolist(), values.tolist()

    def lead(self, sharpness: float) -> tuple[int, float]:
        """Return the likeliest token and its share; of tokens in one column only the likeliest is a rival."""
        token, maxima = _best_and_column_maxima(self._row)
        place = max(len(maxima) - RIVALS, 0)
        maxima.partition(place)
        return token, share_of(self._row.item(token), maxima[place:].tolist(), sharpness)


class FullRows(Rows):
    """Whole rows of logits."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Logits) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> FullRow:
        return FullRow(self._rows[index])

    def __iter__(self) -> Iterator[FullRow]:
        return map(FullRow, self._rows)

    @property
    def logits(self) -> Logits:
        """Return the rows."""
        return self._rows

    def part(self, first: int, count: int) -> FullRows:
        """Return `count` rows from one on."""
        return FullRows(self._rows[first : first + count])


class ChosenRow(Candidates):
    """The likeliest tokens of a row, in any order, as a device chose them."""

    __slots__ = ("_ids", "_values")

    def __init__(self, ids: NDArray[np.int32], values: Logits) -> None:
        self._ids = ids
        self._values = values

    @property
    def logits(self) -> Logits:
        """Raise `EngineError`: the other logits stayed on the device."""
        raise EngineError("the logits of other tokens than the likeliest stayed on the device")

    def best(self) -> int:
        """Return the likeliest token."""
        values = self._values.tolist()  # few: Python's own are faster than three calls of numpy
        if not sum(values) < inf:  # also of a NaN
            raise LogitsError
        best = max(values)
        if values.count(best) > 1:
            return int(self._ids[self._values == best].min())
        return self._ids.item(values.index(best))

    def top(self, count: int) -> tuple[list[int], list[float]]:
        """Return the likeliest tokens with their logits, best first; at most those that were chosen."""
        order = np.lexsort((self._ids, -self._values))[:count]
        largest(self._values)
        return self._ids.take(order).tolist(), self._values.take(order).tolist()

    def among(self, mask: TokenMask, count: int) -> tuple[list[int], list[float]]:
        """Return the likeliest of the chosen tokens that a mask allows, best first."""
        listed = np.isin(self._ids, mask.ids, assume_unique=True)
        places = np.flatnonzero(listed != mask.are_refused)
        return ChosenRow(self._ids.take(places), self._values.take(places)).top(count)

    def lead(self, sharpness: float) -> tuple[int, float]:
        """Return the likeliest token and its share."""
        ids, logits = self.top(RIVALS)
        return ids[0], share_of(logits[0], logits, sharpness)


class ChosenRows(Rows):
    """The likeliest tokens of some rows, int32 and float32 (n, count)."""

    __slots__ = ("_ids", "_values")

    def __init__(self, ids: NDArray[np.int32], values: Logits) -> None:
        self._ids = ids
        self._values = values

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> ChosenRow:
        return ChosenRow(self._ids[index], self._values[index])

    @property
    def logits(self) -> Logits:
        """Raise `EngineError`: the other logits stayed on the device."""
        return self[0].logits

    def part(self, first: int, count: int) -> ChosenRows:
        """Return `count` rows from one on."""
        return ChosenRows(self._ids[first : first + count], self._values[first : first + count])


def masked(row: Logits, mask: TokenMask) -> tuple[Logits, Ids | None]:
    """Apply a mask to a row: return its entries with ids, or the whole row with minus infinity elsewhere."""
    ids = mask.ids[: mask.ids.searchsorted(len(row))]
    if not mask.are_refused:
        return row.take(ids), ids
    row = row.copy()
    row[ids] = -inf
    return row, None


def largest(logits: Logits) -> float:
    """Return the largest of some logits; raises `LogitsError` for NaN.

    Minus infinity is allowed: it means impossible.
    """
    found: float = logits.item(logits.argmax())  # a NaN, if there is any
    if not found < inf:
        raise LogitsError
    return found


def top_candidates(rows: Logits, count: int) -> tuple[Ids, Logits]:
    """Return ids and logits of the `count` largest entries of each row, best first.

    `rows` float32 (n, vocabulary); the results are (n, count), narrower if the vocabulary is smaller.
    Raises `LogitsError` when the logits are not numbers.
    """
    found = [top_entries(row, count) for row in rows]
    return np.stack([ids for ids, _ in found]), np.stack([logits for _, logits in found])


def top_entries(row: Logits, count: int) -> tuple[Ids, Logits]:
    """Return ids and logits of the `count` largest entries of a row, best first.

    All of a large row is read only once: the maxima of its columns say where large entries can be.
    """
    count = min(count, len(row))
    if len(row) >= _LARGE_ROW and count <= len(row) // _FOLDS:
        maxima = _folded(row, _FOLDS)
        threshold = _threshold(maxima, count)
        ids = _entries_of(row, (maxima >= threshold).nonzero()[0], len(maxima), threshold)
    else:
        ids = (row >= _threshold(row, count)).nonzero()[0]
    values = row.take(ids)
    order = (-values).argsort(kind="stable")[:count]  # ids ascend
    return ids.take(order), values.take(order)


def _entries_of(row: Logits, columns: Ids, width: int, threshold: float) -> Ids:
    """Return the ids of entries in some columns that reach a threshold; entry i is in column i % width."""
    whole = _FOLDS * width
    block = row[:whole].reshape(_FOLDS, width).take(columns, axis=1).ravel()
    lines, places = divmod((block >= threshold).nonzero()[0], len(columns))
    ids: Ids = lines * width + columns.take(places)
    if whole == len(row):
        return ids
    return np.concatenate([ids, (row[whole:] >= threshold).nonzero()[0] + whole])


def share_of(logit: float, rivals: Sequence[float], sharpness: float) -> float:
    """Return the share of the best logit among some, itself one of them."""
    return 1.0 / sum([exp((rival - logit) * sharpness) for rival in rivals])


def columns(vocabulary: int) -> int:
    """Return the number of columns in which `FullRow.lead` looks for rivals; i is in about i modulo that."""
    if vocabulary >= _LARGE_ROW:
        vocabulary //= _FOLDS
    return vocabulary // max(vocabulary // _COLUMNS, 1)


def _best_and_column_maxima(row: Logits) -> tuple[int, Logits]:
    """Return the best token and the maxima of `columns`; raise `LogitsError` where they are not numbers."""
    if len(row) < _LARGE_ROW:
        return _best(row), _folded(row, len(row) // _COLUMNS or 1)
    folded = _folded(row, _FOLDS)
    width = len(row) // _FOLDS
    column = _best(folded)  # its entries are few among those that had to be read again
    return column + width * int(row[column::width].argmax()), _folded(folded, width // _COLUMNS)


def _best(row: Logits) -> int:
    token = row.argmax()  # of a NaN, if there is any
    if not row.item(token) < inf:
        raise LogitsError
    return int(token)


def _threshold(row: Logits, count: int) -> float:
    """Return a value that at least `count` of a row's entries reach, and few more."""
    maxima = _folded(row, len(row) // _COLUMNS or 1) if count <= _COLUMNS else row.copy()
    largest(maxima)
    place = len(maxima) - count
    maxima.partition(place)
    threshold: float = maxima.item(place)
    return threshold


def _folded(values: Logits, folds: int) -> Logits:
    """Return the maxima of columns: entry i belongs to column i modulo their number.

    Entries that are neighbours, and often alike, belong to different columns.
    """
    width = len(values) // folds
    whole = width * folds
    if whole == len(values):
        maxima: Logits = np.maximum.reduce(values.reshape(folds, width))
        return maxima
    maxima = np.maximum.reduce(values[:whole].reshape(folds, width))
    for start in range(whole, len(values), width):
        rest = values[start : start + width]
        np.maximum(maxima[: len(rest)], rest, out=maxima[: len(rest)])
    return maxima
