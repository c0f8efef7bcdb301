"""The page of the tuning report: what runs left on disk for it, and what its templates show beside that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf, isfinite, log, nan
from pathlib import Path
from statistics import correlation, median

from localspec.decoding.measurements import Costs
from localspec.models.shape import read_shape
from localspec.storage.pair_identity import Identity, ModelFacts
from localspec.storage.paths import write_atomically
from localspec.tuning.costs import last_costs
from localspec.tuning.events import ConfirmedContender, LoadOptionsChosen, Place, TaskResult
from localspec.tuning.plan import TunePlan
from localspec.tuning.report.svg import Point, rendered
from localspec.tuning.run_folder import RunFolder
from localspec.types import EngineSettings, ModelOptions


@dataclass(frozen=True, slots=True)
class ReportModel:
    """A model as the report names it; `place` says where it computes, in words."""

    name: str
    parameters: int
    file_bytes: int
    place: str


@dataclass(frozen=True, slots=True)
class ReportInput:
    """Everything on the page; `machine` is a list of names and values: processor, cards, versions, driver."""

    made: datetime
    machine: tuple[tuple[str, str], ...]
    target: ReportModel
    draft: ReportModel | None
    costs: Costs | None
    results: tuple[TaskResult, ...]
    load_options: LoadOptionsChosen | None = None
    quick: bool = False


DRIFT = 0.05  # more than this is told at the top


def gather(plan: TunePlan, identity: Identity) -> ReportInput | None:
    """Return what is known of a pair's tuning, None if nothing is.

    Of the plan the models and profiles count.
    """
    folder = RunFolder(identity.pair)
    wanted = [profile.task for profile in plan.profiles]
    results = tuple(result for result in folder.results() if result.task in wanted)
    if not results:
        return None
    return ReportInput(
        made=datetime.now(UTC),
        machine=tuple(_machine(identity)),
        target=_model(plan.target, identity.target),
        draft=None if plan.draft is None or identity.draft is None else _model(plan.draft, identity.draft),
        costs=last_costs(folder.costs),
        results=results,
        load_options=folder.load_options.read(),
        quick=any(result.quick for result in results),
    )


def _machine(identity: Identity) -> Iterator[tuple[str, str]]:
    machine = identity.machine
    yield "processor", f"{machine.processor}, {machine.cores} cores"
    if machine.devices:
        yield "cards", "; ".join(machine.devices)
    if machine.driver:
        yield "driver", machine.driver
    yield "llama-cpp-python", machine.llama_cpp


def _model(options: ModelOptions, facts: ModelFacts) -> ReportModel:
    shape = read_shape(options.path)
    return ReportModel(options.path.stem, shape.parameters, shape.file_bytes, facts.seat)


def render(given: ReportInput) -> str:
    """Return the report as HTML with inline style and inline SVG, nothing to fetch and nothing to run."""
    computed = agreement, best_so_far, nearest
    return rendered(
        "page.html.j2",
        given=given,
        calls=_calls(given),
        chosen=_chosen,
        drifts=list(_drifts(given)),
        is_doubtful=lambda drift: _doubt(drift) > DRIFT,
        named=_named,
        **{each.__name__: each for each in computed},
    )


def write_report(path: Path, given: ReportInput) -> None:
    """Write the report in one step, for its owner's eyes; raises StoreError."""
    write_atomically(path, render(given))


def _named(result: TaskResult, name: str) -> ConfirmedContender | None:
    return next((each for each in result.contenders if each.name == name), None)


def _chosen(result: TaskResult) -> ConfirmedContender | None:
    """Return the contender that the settings are; whatever plain decoding's other settings say."""
    if result.settings.mode == "off":
        return _named(result, "plain")
    return next((each for each in result.contenders if each.settings == result.settings), None)


def _calls(given: ReportInput) -> dict[str, float] | None:
    """Return what one and `several` tokens take at the least depth, NaN where that was not measured."""
    calls = sorted(given.costs.calls, key=lambda each: each.depth) if given.costs else []
    alone = next((each for each in calls if not each.together), None)
    one = dict(alone.verify).get(1, nan) if alone else nan
    if alone is None or not isfinite(one) or not one:
        return None
    both = next((each for each in calls if each.together and each.depth == alone.depth), None)
    lengths = [each.settings.draft_length for each in given.results if each.settings.mode != "off"]
    size, several = max(each for each in alone.verify if each[0] <= max(lengths, default=4) + 1)
    return {
        "one": one,
        "size": size,
        "several": several,
        "step": dict(alone.step).get(1, nan),
        "together": dict(both.verify).get(1, nan) if both else nan,
    }


def _drifts(given: ReportInput) -> Iterator[tuple[str, float]]:
    for each in given.results:
        yield f"{each.task.capitalize()}: the speed of plain decoding at the end was", each.drift
    if given.costs and given.costs.calls:
        drift = max((calls.drift for calls in given.costs.calls), key=_doubt)
        yield "Costs: the time of one token of the target at the end was, at worst,", drift


def _doubt(drift: float) -> float:
    return abs(log(drift)) if 0 < drift < inf else inf


def nearest(places: Iterable[Place], settings: EngineSettings) -> tuple[Place | None, bool]:
    """Return the place closest to settings with a draft model, and whether it is exactly theirs."""
    length, budget = settings.draft_length, settings.fan_out_budget if settings.mode == "ssd" else 0
    some = [place for place in places if (place[1] > 0) == (budget > 0) and settings.mode in {"sd", "ssd"}]
    found = min(some, key=lambda place: (abs(place[0] - length), abs(place[1] - budget)), default=None)
    return found, found == (length, budget)


def best_so_far(trials: Sequence[Point], last: int) -> tuple[Point, ...]:
    """Return the corners of the line that rises with every better trial."""
    corners: list[Point] = []
    for at, rate in trials:
        if not corners or rate > corners[-1][1]:
            corners += [(at, corners[-1][1] if corners else rate), (at, rate)]
    return (*corners, (float(last), corners[-1][1])) if corners else ()


def agreement(points: Sequence[Point]) -> str:
    """Return how well predictions agree with what was measured."""
    points = [point for point in points if point[1] > 0]
    if not points:
        return ""
    errors = [abs(predicted / measured - 1) for predicted, measured in points]
    said = f"{len(points)} settings: median error {median(errors):.1%}, largest {max(errors):.1%}"
    ranks = [_order(side) for side in zip(*points, strict=True)]
    if len(points) < 5 or any(len(set(each)) == 1 for each in ranks):
        return said + "."
    return f"{said}, rank correlation {correlation(*ranks):.2f}."


def _order(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]
