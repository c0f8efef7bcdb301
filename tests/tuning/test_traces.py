"""Traces in files that survive whatever happens to the process."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from localspec.decoding.measurements import TraceSegment
from localspec.errors import ContextFullError, EngineDied
from localspec.tuning.plan import ReopenedModels
from localspec.tuning.run_folder import digest, record, with_tokens
from localspec.types.request import Request
from tests.tuning.fake_models import FakeModels


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


def test_saved_traces_are_read_bit_by_bit(tmp_path: Path) -> None:
    asked = [Request("5"), Request("long"), Request("7", seed=1)]
    with ReopenedModels(Failing) as models:
        first = list(record(models, asked, tmp_path / "traces"))
        assert isinstance(models.now, Failing)
        before = models.now.traced
        again = list(record(models, asked, tmp_path / "traces"))
        assert models.now.traced == before == 3
        other = list(record(models, [Request("5", seed=2)], tmp_path / "traces"))
        assert models.now.traced == before + 1
    assert all(same(one, other) for one, other in zip(first, again, strict=True))
    assert [len(segment.tokens) for segment in with_tokens(again)] == [5, 7]
    assert len(other[0].tokens) == 5
    files = list((tmp_path / "traces").iterdir())
    assert len(files) == 4
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


@pytest.mark.parametrize("damage", [b"", b"something else", b"PK\x03\x04"])
def test_a_damaged_answer_is_traced_again(tmp_path: Path, damage: bytes) -> None:
    with ReopenedModels(Failing) as models:
        (whole,) = record(models, [Request("5")], tmp_path)
        (file,) = tmp_path.iterdir()
        data = file.read_bytes()
        for content in (damage, data[: len(data) // 2], data[:200] + b"x" + data[201:]):
            file.write_bytes(content)
            (found,) = record(models, [Request("5")], tmp_path)
            assert same(found, whole)


class Failing(FakeModels):
    """Trace an answer of as many tokens as the prompt says, and fail at other prompts."""

    def trace(self, request: Request) -> TraceSegment:
        self.traced += 1
        prompt = str(request.prompt)
        if prompt == "long":
            raise ContextFullError("too long")
        if prompt in {"bad", "worse"}:
            raise EngineDied("the engine crashed (SIGSEGV)")
        return segment_of(0, tokens=int(prompt))


def recorded(folder: Path, *prompts: str) -> Iterator[int]:
    """Yield the lengths of the traced answers, and at last how often the models were opened."""
    opened: list[Failing] = []

    def open_models() -> Failing:
        opened.append(Failing())
        return opened[-1]

    with ReopenedModels(open_models) as models:
        for segment in record(models, map(Request, prompts), folder):
            yield len(segment.tokens)
    yield len(opened)


def test_a_prompt_that_does_not_fit_has_no_tokens(tmp_path: Path) -> None:
    assert list(recorded(tmp_path, "1", "long", "2", "long", "long", "3")) == [1, 0, 2, 0, 0, 3, 1]


def test_a_prompt_at_which_the_models_fail_has_no_tokens_and_they_are_opened_again(tmp_path: Path) -> None:
    assert list(recorded(tmp_path, "bad", "1", "long", "2")) == [0, 1, 0, 2, 2]


def test_two_failures_in_a_row_are_an_error(tmp_path: Path) -> None:
    found = recorded(tmp_path, "1", "bad", "worse", "2")
    assert [next(found), next(found)] == [1, 0]
    with pytest.raises(EngineDied, match="SIGSEGV"):
        next(found)


def test_files_of_traces_keep_the_names_that_they_had_before_answers_could_wait_for_costs() -> None:
    request = Request("Hello", max_tokens=9)
    assert digest(replace(request, measures_first=True)) == digest(request) == "626a9e39461be499"
