"""Drafting ahead with a draft model that branches only where it has left a mark, and loses marks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from localspec.decoding.engine import Engine
from localspec.types.candidates import Rows
from localspec.types.request import EngineSettings, Fallback
from tests.contract import GREEDY, OFF, Toy
from tests.fake_model import FakeModel, Hold, Pacing


class Marked(FakeModel):
    """A model with a recurrent state: it keeps the last few marks, and nothing of a branch that is cut."""

    rereads = True
    max_draft = 8
    kept = 3
    marks: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()  # where calls for the main sequence have ended
    lost = 0  # places there that were wanted and had no mark

    def mark(self) -> None:
        self.marks = (*self.marks[1 - self.kept :], self.length())

    def branchable(self, end: int) -> bool:
        found = end in self.marks or end == self.length()
        self.lost += not found and end in self.ends
        return found

    def step(self, tokens: Sequence[int], sequences: Sequence[int]) -> Rows:
        rows = super().step(tokens, sequences)
        self.ends = (*self.ends, self.length())
        return rows

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        rows = super().evaluate(tokens, logits)
        self.ends = (*self.ends, self.length())
        return rows

    def truncate(self, length: int, sequence: int = 0) -> None:
        super().truncate(0 if sequence and length < self.length(sequence) else length, sequence)
        if not sequence:
            self.marks = tuple(mark for mark in self.marks if mark <= length)
            self.ends = tuple(end for end in self.ends if end <= length)

    def share(self, source: int, target: int, end: int) -> None:
        assert source or self.branchable(end)
        super().share(source, target, end)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [3, 10])
@pytest.mark.parametrize("fallback", ["just-in-time", "ngram"])
def test_it_branches_at_marks_alone(fallback: Fallback, kept: int) -> None:
    settings = EngineSettings(draft_length=5, fan_out_budget=8, fallback=fallback)
    for seed in range(4):
        toy = Toy()
        toy.draft = Marked(16, sharpness=1.5, noise=0.5, sequences=9, hold=Hold(Pacing(2e-5, 0.0)))
        toy.draft.kept = kept
        toy.engine = Engine(toy.target, toy.draft)
        prompt = [seed, 1, 2, 3]
        assert toy.answer(prompt, settings, GREEDY, 80) == Toy().answer(prompt, OFF, GREEDY, 80)
        assert max(toy.draft.calls) > 1
        assert not toy.draft.lost or kept == 3  # behind copied tokens, too, there is a mark
