from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from localspec.chat.messages import AnswerRecord, Span
from localspec.chat.store.record_codec import from_plain, pack, to_plain, unpack
from localspec.types.drafts import DraftOrigin, Provenance
from localspec.types.events import RoundDone, RoundStats
from localspec.values import InvalidValueError
from tests.chat.sample_record import RECORD


def plain(record: AnswerRecord = RECORD) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(json.dumps(to_plain(record)))
    return value


def squeezed(value: object) -> bytes:
    return zlib.compress(json.dumps(value).encode())


def test_a_record_comes_back_as_it_was() -> None:
    outline, rounds = pack(RECORD)
    assert unpack(outline, rounds) == RECORD
    assert unpack(outline) == replace(RECORD, rounds=())
    bare = replace(RECORD, draft=None, plain=None, rounds=(), spans=(), changes=())
    assert unpack(*pack(bare)) == bare


def test_the_sample_uses_every_field() -> None:
    assert all(getattr(RECORD, field.name) for field in fields(RECORD))


def test_a_long_answer_stays_small() -> None:
    stats = [
        RoundStats(6, i % 5, DraftOrigin.AHEAD, round(0.025 + i * 7e-6, 6), 0.0, i * 3 / 1e6, 4e-4, 0.02)
        for i in range(700)
    ]
    long = replace(
        RECORD,
        rounds=tuple(RoundDone(each, each.accepted + 1) for each in stats),
        spans=tuple(Span(3 + i % 9, Provenance.PREPARED) for i in range(1400)),
    )
    outline, rounds = pack(long)
    assert unpack(outline, rounds) == long
    assert len(outline) + len(rounds) < 16_000


def test_what_a_newer_program_added_is_ignored_and_what_an_older_one_lacked_has_its_default() -> None:
    value = plain()
    value["mood"] = "good"
    value["settings"]["colour"] = "blue"
    value["rounds"]["heat"] = [1, 2]
    del value["settings"]["fallback"], value["changes"], value["rounds"]["ahead_us"]
    record = from_plain(value, "record")
    assert record.settings == RECORD.settings
    assert record.changes == ()
    assert [mark.stats.ahead_s for mark in record.rounds] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda v: v.update(schema=2), "record.schema is not 1"),
        (lambda v: v.update(mode="\x1b]0;warp\x07"), "record.mode is not one of off, ngram, sd, ssd"),
        (lambda v: v.pop("seed"), "record.seed is missing"),
        (lambda v: v.update(seed="1"), "record.seed is not a whole number"),
        (lambda v: v.update(seed=True), "record.seed is not a whole number"),
        (lambda v: v.update(seed=10**30), "record.seed is not a whole number from -9223372"),
        (lambda v: v.update(settings=[]), "record.settings is not an object"),
        (
            lambda v: v["settings"].update(mode="warp"),
            "settings.mode is not one of off, ngram, sd, ssd",
        ),
        (
            lambda v: v["sampling"].update(temperature=float("nan")),
            "temperature is not a number from 0 to 100",
        ),
        (lambda v: v["sampling"].update(temperature=10**400), "temperature is not a number from 0 to 100"),
        (lambda v: v["summary"].update(accepted_at=[1, "2"]), r"summary.accepted_at\[1\] is not a whole"),
        (lambda v: v["rounds"]["tokens"].pop(), "record.rounds: columns differ in length"),
        (lambda v: v["rounds"].update(drafted=[10**9, 0]), "record.rounds: too many drafted or accepted"),
        (lambda v: v["rounds"].update(accepted=[5, 0]), "record.rounds: too many drafted or accepted"),
        (lambda v: v["rounds"].update(accepted=[-1, 0]), "record.rounds: too many drafted or accepted"),
        (
            lambda v: v["rounds"].update(origin=["moon", "none"]),
            r"origin\[0\] is not one of none, fresh",
        ),
        (lambda v: v["spans"]["length"].pop(), "record.spans: columns differ in length"),
        (lambda v: v["spans"].update(provenance="ptxa"), "spans.provenance has other letters than tapb"),
        (lambda v: v["spans"].update(length=[-1, 2, 3, 4]), "a negative length"),
        (lambda v: v.update(spans=None), "record.spans is not an object"),
        (lambda v: v.update(changes={}), "record.changes is not a list"),
    ],
)
def test_a_record_that_is_wrong_is_none_and_the_complaint_says_where(
    change: Callable[[dict[str, Any]], object], complaint: str
) -> None:
    value = plain()
    change(value)
    with pytest.raises(InvalidValueError, match=complaint):
        from_plain(value, "record")
    rounds = value.pop("rounds", {})
    assert unpack(squeezed(value), squeezed(rounds)) is None


@pytest.mark.parametrize(
    "data", [b"", b"junk", zlib.compress(b"\xff"), zlib.compress(b"[" * 100_000), squeezed([1])]
)
def test_bytes_that_are_not_record(data: bytes) -> None:
    outline, rounds = pack(RECORD)
    assert unpack(data) is None
    assert unpack(data, rounds) is None
    assert unpack(outline, data) is None
    assert unpack(outline[:-5], rounds) is None
