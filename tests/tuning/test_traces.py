"""Traces in files that survive whatever happens to the process."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from localspec.decoding.measurements import TraceRequest, TraceSegment
from localspec.errors import ContextFullError, EngineDied, StoreError
from localspec.tuning.plan import ReopenedModels
from localspec.tuning.traces import append, load, record, with_tokens
from localspec.types import Request
from tests.tuning.fake_models import FakeModels

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


class Failing(FakeModels):
    """Trace an answer of as many tokens as the prompt says, and fail at other prompts."""

    def trace(self, wish: TraceRequest) -> TraceSegment:
        prompt = str(wish.request.prompt)
        if prompt == "long":
            raise ContextFullError("too long")
        if prompt == "bad":
            raise EngineDied("the engine crashed (SIGSEGV)")
        return segment_of(0, tokens=int(prompt))


def recorded(*prompts: str) -> Iterator[int]:
    """Yield the lengths of the traced answers, and at last how often the models were opened."""
    opened: list[Failing] = []

    def open_models() -> Failing:
        opened.append(Failing())
        return opened[-1]

    with ReopenedModels(open_models) as models:
        for segment in record(models, map(Request, prompts)):
            yield len(segment.tokens)
    yield len(opened)


def test_a_prompt_that_does_not_fit_has_no_tokens() -> None:
    assert list(recorded("1", "long", "2", "long", "long", "3")) == [1, 0, 2, 0, 0, 3, 1]


def test_a_prompt_at_which_the_models_fail_has_no_tokens_and_they_are_opened_again() -> None:
    assert list(recorded("bad", "1", "bad", "2")) == [0, 1, 0, 2, 3]


def test_two_failures_in_a_row_are_an_error() -> None:
    found = recorded("1", "bad", "bad", "2")
    assert [next(found), next(found)] == [1, 0]
    with pytest.raises(EngineDied, match="SIGSEGV"):
        next(found)


def test_an_answer_that_failed_keeps_its_place_among_the_others(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with ReopenedModels(Failing) as models:
        for segment in record(models, map(Request, ("1", "bad", "2"))):
            append(path, "k", segment)
    assert [len(segment.tokens) for segment in load(path, "k")] == [1, 0, 2]
    assert [len(segment.tokens) for segment in with_tokens(load(path, "k"))] == [1, 2]
