"""What a tuning report shows: frozen values that whoever ran the tuner fills in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from localspec.decoding.measurements import Costs
from localspec.tuning.events import LoadOptionsChosen, TaskResult

Place = tuple[int, int]
"""A draft length and a fan-out budget, which is 0 without one."""


@dataclass(frozen=True, slots=True)
class ReportModel:
    """A model as the report names it; `place` says where it computes, in words."""

    name: str
    parameters: int
    file_bytes: int
    place: str


@dataclass(frozen=True, slots=True)
class TaskReport:
    """A task's result and what the study saw on the way to it; what was not done stays empty.

    `hit_rates` are simulated: (budget, share of rounds whose draft was prepared). `history` holds the
    simulated tokens per second of the trials in their order, None for one that failed or was pruned;
    `landscape` the best of any settings at a place.
    `importance` names parameters, with shares that sum to about 1.
    """

    result: TaskResult
    hit_rates: tuple[tuple[int, float], ...] = ()
    history: tuple[float | None, ...] = ()
    landscape: tuple[tuple[Place, float], ...] = ()
    importance: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ReportInput:
    """Everything on the page; `machine` is a list of names and values: processor, cards, versions, driver."""

    made: datetime
    machine: tuple[tuple[str, str], ...]
    target: ReportModel
    draft: ReportModel | None
    costs: Costs | None
    tasks: tuple[TaskReport, ...]
    load_options: LoadOptionsChosen | None = None
    quick: bool = False
