"""Drafting ahead with a draft model that branches only where it has left a mark, and loses marks."""

from __future__ import annotations

import pytest

from localspec.decoding.engine import Engine
from localspec.testing.contract import GREEDY, OFF, Toy
from localspec.testing.fake import FakeModel, Hold, Pacing
from localspec.types import EngineSettings

KEPT = 3


class Marked(FakeModel):
    """A model with a running state: it keeps the last few marks, and nothing of a branch that is cut."""

    rereads = True
    max_draft = 8
    marks: tuple[int, ...] = ()

    def mark(self) -> None:
        self.marks = (*self.marks[1 - KEPT :], self.length())

    def branchable(self, end: int) -> bool:
        return end in self.marks or end == self.length()

    def truncate(self, length: int, sequence: int = 0) -> None:
        super().truncate(0 if sequence and length < self.length(sequence) else length, sequence)
        if not sequence:
            self.marks = tuple(mark for mark in self.marks if mark <= length)

    def share(self, source: int, target: int, end: int) -> None:
        assert source or self.branchable(end)
        super().share(source, target, end)


@pytest.mark.parametrize("fallback", ["just-in-time", "ngram"])
def test_it_branches_at_marks_alone(fallback: str) -> None:
    settings = EngineSettings(draft_length=5, fan_out_budget=8, fallback=fallback)  # type: ignore[arg-type]
    for seed in range(4):
        toy = Toy()
        toy.draft = Marked(16, sharpness=1.5, noise=0.5, sequences=9, hold=Hold(Pacing(2e-5, 0.0)))
        toy.engine = Engine(toy.target, toy.draft)
        prompt = [seed, 1, 2, 3]
        assert toy.answer(prompt, settings, GREEDY, 80) == Toy().answer(prompt, OFF, GREEDY, 80)
        assert max(toy.draft.calls) > 1
