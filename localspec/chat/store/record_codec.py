"""The stored form of an answer's record: JSON with a schema number, compressed by zlib.

The rounds, which only a timeline needs, are next to the rest. Both they and the spans are kept in columns,
for these squeeze well. Times are kept to the microsecond. A new field needs nothing here but a default,
unless it belongs to a round.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache

from localspec.chat.messages import AnswerRecord, Span
from localspec.types.drafts import DraftOrigin, Provenance
from localspec.types.events import RoundDone, RoundStats
from localspec.values import InvalidValueError, read

SCHEMA = 1
MAX_BYTES = 64 * 2**20  # unpacked
MAX_DRAFTED = 4096  # tokens in one round
_MICRO = 1_000_000
_LETTERS = {provenance.value[0]: provenance for provenance in Provenance}
_span = lru_cache(4096)(Span)  # a chat of many answers has many equal ones


@dataclass(frozen=True, slots=True)
class _Rounds:
    """The rounds of an answer, one column for each figure; columns of one answer are equally long."""

    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    origin: tuple[DraftOrigin, ...] = ()
    tokens: tuple[int, ...] = ()
    verify_us: tuple[int, ...] = ()
    draft_us: tuple[int, ...] = ()
    wait_us: tuple[int, ...] = ()
    python_us: tuple[int, ...] = ()
    ahead_us: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Spans:
    """Who wrote how many characters, in the order of the text; who is one letter of `_LETTERS`."""

    length: tuple[int, ...] = ()
    provenance: str = ""


def pack(record: AnswerRecord) -> tuple[bytes, bytes]:
    """Squeeze a record: its outline, and its rounds."""
    plain = to_plain(record)
    rounds = plain.pop("rounds")
    return _squeeze(plain), _squeeze(rounds)


def unpack(outline: bytes, rounds: bytes | None = None) -> AnswerRecord | None:
    """Return a stored record, without its rounds if they are not given; None if it cannot be read."""
    try:
        plain = _unsqueeze(outline)
        if isinstance(plain, dict) and rounds is not None:
            plain["rounds"] = _unsqueeze(rounds)
        return from_plain(plain, "record")
    except (zlib.error, ValueError, RecursionError):  # also of bytes that are not text, and of wrong values
        return None


def to_plain(record: AnswerRecord) -> dict[str, object]:
    """Return a record as values that JSON knows."""
    short = replace(record, rounds=(), spans=())
    return {
        **asdict(short),
        "schema": SCHEMA,
        "rounds": _round_columns(record.rounds),
        "spans": {
            "length": [span.length for span in record.spans],
            "provenance": "".join(span.provenance.value[0] for span in record.spans),
        },
    }


def from_plain(value: object, where: str) -> AnswerRecord:
    """Return the record that `to_plain` described; raises InvalidValueError with the place."""
    if not isinstance(value, Mapping):
        raise InvalidValueError(f"{where} is not an object")
    if value.get("schema") != SCHEMA:
        raise InvalidValueError(f"{where}.schema is not {SCHEMA}")
    rounds = read(_Rounds, value.get("rounds", {}), f"{where}.rounds")
    spans = read(_Spans, value.get("spans", {}), f"{where}.spans")
    rest = {name: part for name, part in value.items() if name not in {"rounds", "spans"}}
    return replace(
        read(AnswerRecord, rest, where),
        rounds=_rounds(rounds, f"{where}.rounds"),
        spans=_spans(spans, f"{where}.spans"),
    )


def _squeeze(value: object) -> bytes:
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode())


def _unsqueeze(data: bytes) -> object:
    unpacker = zlib.decompressobj()
    text = unpacker.decompress(data, MAX_BYTES)
    if not unpacker.eof:
        raise InvalidValueError("the record is cut off, or too large")
    value: object = json.loads(text)
    return value


def _round_columns(rounds: tuple[RoundDone, ...]) -> dict[str, list[int | str]]:
    rows = []
    for mark in rounds:
        stats = mark.stats
        times_s = (stats.verify_s, stats.draft_s, stats.wait_s, stats.python_s, stats.ahead_s)
        times_us = (round(time_s * _MICRO) for time_s in times_s)
        rows.append((stats.drafted, stats.accepted, stats.origin.value, mark.tokens, *times_us))
    return {column.name: [row[at] for row in rows] for at, column in enumerate(fields(_Rounds))}


def _rounds(columns: _Rounds, where: str) -> tuple[RoundDone, ...]:
    drafts = zip(columns.accepted, columns.drafted, strict=False)
    if not all(0 <= accepted <= drafted <= MAX_DRAFTED for accepted, drafted in drafts):
        raise InvalidValueError(f"{where}: too many drafted or accepted tokens for a round")
    columns = replace(columns, ahead_us=columns.ahead_us or (0,) * len(columns.tokens))
    try:
        rows = zip(*(getattr(columns, column.name) for column in fields(columns)), strict=True)
        return tuple(
            RoundDone(RoundStats(drafted, accepted, origin, *(us / _MICRO for us in times)), tokens)
            for drafted, accepted, origin, tokens, *times in rows
        )
    except ValueError:
        raise InvalidValueError(f"{where}: columns differ in length") from None


def _spans(columns: _Spans, where: str) -> tuple[Span, ...]:
    if len(columns.length) != len(columns.provenance):
        raise InvalidValueError(f"{where}: columns differ in length")
    if min(columns.length, default=0) < 0:
        raise InvalidValueError(f"{where}.length has a negative length")
    if not _LETTERS.keys() >= {*columns.provenance}:
        raise InvalidValueError(f"{where}.provenance has other letters than {''.join(_LETTERS)}")
    return tuple(map(_span, columns.length, map(_LETTERS.__getitem__, columns.provenance)))
