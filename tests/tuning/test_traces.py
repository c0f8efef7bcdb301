"""Traces in files that survive whatever happens to the process."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from localspec.errors import ContextFullError, StoreError
from localspec.evidence import TraceSegment, TraceWish
from localspec.interface import TunableModels
from localspec.tuning.traces import append, load, record
from localspec.types import Request

ENDLESS_APPENDING = """
import sys
from pathlib import Path
from localspec.tuning.traces import append
from tests.tuning.test_traces import segment_of
number = 0
while True:
    append(Path(sys.argv[1]), "k", segment_of(number))
    print(number, flush=True)
    number += 1
"""


def segment_of(seed: int, tokens: int = 96, candidates: int = 32) -> TraceSegment:
    """Return a made-up answer in which no number repeats."""
    rng, shape = np.random.default_rng(seed), (tokens, candidates)
    return TraceSegment(
        prompt=tuple(rng.integers(0, 150_000, 20).tolist()),
        tokens=rng.integers(0, 150_000, tokens, np.int32),
        target_ids=rng.integers(-1, 150_000, shape, np.int32),
        target_probs=rng.random(shape, np.float32),
        target_of_token=rng.random(tokens, np.float32),
        draft_ids=rng.integers(-1, 150_000, shape, np.int32),
        draft_logits=-10 * rng.random(shape, np.float32),
        target_of_draft=rng.random(shape, np.float32),
        decode_s=rng.random(),
        ended=bool(seed % 2),
    )


def same(one: TraceSegment, other: TraceSegment) -> bool:
    pairs = [(getattr(one, each.name), getattr(other, each.name)) for each in fields(TraceSegment)]
    return all(np.array_equal(left, right) and type(left) is type(right) for left, right in pairs)


def written(path: Path, count: int) -> list[TraceSegment]:
    segments = [segment_of(seed) for seed in range(count)]
    for segment in segments:
        append(path, "k", segment)
    return segments


def assert_holds(path: Path, segments: list[TraceSegment]) -> None:
    found = load(path, "k")
    assert len(found) == len(segments)
    assert all(same(one, other) for one, other in zip(found, segments, strict=True))


def test_what_was_added_is_found_bit_by_bit(tmp_path: Path) -> None:
    path = tmp_path / "coding.traces"
    assert load(path, "k") == ()
    segments = written(path, 4)
    assert_holds(path, segments)
    assert load(path, "k")[0].tokens.dtype == np.int32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_size < 4 * 96 * 700  # of numbers that nothing can compress


def test_another_key_finds_nothing_and_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "t"
    written(path, 2)
    assert load(path, "other") == load(path, "k2") == ()
    append(path, "other", segment_of(9))
    assert load(path, "k") == ()
    assert same(load(path, "other")[0], segment_of(9))


def test_an_answer_without_a_draft_model_can_be_kept(tmp_path: Path) -> None:
    segment = segment_of(1, tokens=1, candidates=0)
    append(tmp_path / "t", "k", segment)
    assert_holds(tmp_path / "t", [segment])


def test_a_file_that_was_cut_off_anywhere_keeps_what_is_whole_and_grows_on(tmp_path: Path) -> None:
    path = tmp_path / "t"
    first, second = (segment_of(seed, tokens=3, candidates=4) for seed in (1, 2))
    append(path, "k", first)
    size = path.stat().st_size
    append(path, "k", second)
    data = path.read_bytes()
    for end in range(0, len(data), 37):
        path.write_bytes(data[:end])
        whole = [first] if end >= size else []
        assert_holds(path, whole)
        append(path, "k", second)
        assert_holds(path, [*whole, second])


def test_a_damaged_answer_is_left_out_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "t"
    written(path, 1)
    start = path.stat().st_size
    _, _, third = written(tmp_path / "whole", 3)
    data = bytearray((tmp_path / "whole").read_bytes())
    for place in (start, start + 5, start + 9, start + 4000):  # mark, length, checksum, content
        damaged = bytearray(data)
        damaged[place] ^= 0x40
        path.write_bytes(damaged)
        assert_holds(path, [segment_of(0), third])
        append(path, "k", segment_of(7))
        assert_holds(path, [segment_of(0), third, segment_of(7)])
    path.write_bytes(b"something else")
    assert load(path, "k") == ()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
def test_a_process_that_is_killed_loses_at_most_the_answer_that_it_was_writing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for rounds in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", ENDLESS_APPENDING, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        with process:
            lines = [process.stdout.readline() for _ in range(3 + rounds)]
            process.send_signal(signal.SIGKILL)
        assert lines
        found = load(path, "k")
        assert len(found) >= sum(3 + each for each in range(rounds + 1))
        assert any(same(each, segment_of(2)) for each in found)


def test_a_file_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot write"):
        append(tmp_path / "missing" / "t", "k", segment_of(1))
    path = tmp_path / "t"
    append(path, "k", segment_of(1))
    if os.name == "posix" and os.geteuid():
        path.chmod(0o400)
        with pytest.raises(StoreError, match="cannot write"):
            append(path, "k", segment_of(2))


def test_prompts_that_do_not_fit_are_left_out() -> None:
    class Tracing:
        def trace(self, wish: TraceWish) -> TraceSegment:
            if wish.request.prompt == "long":
                raise ContextFullError("too long")
            return segment_of(wish.request.seed or 0)

    requests = [Request(prompt, seed=seed) for seed, prompt in enumerate(("one", "long", "two"))]
    found = list(record(cast(TunableModels, Tracing()), requests))
    assert [same(one, segment_of(seed)) for one, seed in zip(found, (0, 2), strict=True)] == [True, True]
