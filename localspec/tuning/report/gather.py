"""Gather what runs left on disk into the input of a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from localspec.decoding.measurements import Costs, Trace
from localspec.models.shape import read_shape
from localspec.storage.pair_identity import Identity, ModelFacts
from localspec.storage.profiles import Profile
from localspec.tuning.costs import recall_costs
from localspec.tuning.events import TaskResult
from localspec.tuning.plan import TunePlan
from localspec.tuning.report.page import ReportInput, ReportModel, TaskReport
from localspec.tuning.run import study_key
from localspec.tuning.run_folder import RunFolder, RunState, TaskState
from localspec.tuning.simulator.simulator import Simulator
from localspec.tuning.space import space_of
from localspec.tuning.study import Search, importance, landscape, search
from localspec.tuning.traces import load, with_tokens
from localspec.types import EngineSettings, ModelOptions

BUDGETS = (1, 2, 3, 4, 6, 8, 12, 16, 24)


def gather(plan: TunePlan, identity: Identity) -> ReportInput | None:
    """Return what is known of a pair's tuning, None if nothing is.

    Of the plan the models and profiles count.
    """
    folder = RunFolder(identity.pair)
    state = folder.state.read() or RunState(0)
    costs = recall_costs(folder.costs, state.costs_key) or recall_costs(folder.costs, state.earlier_costs)
    found = [(profile, folder.result(profile.task)) for profile in plan.profiles]
    evidence = state.evidence()
    tasks = [
        _task(plan, folder, evidence.get(result.task, TaskState(result.task)), profile, result, costs)
        for profile, result in found
        if result is not None
    ]
    if not tasks:
        return None
    return ReportInput(
        made=datetime.now(UTC),
        machine=tuple(_machine(identity)),
        target=_model(plan.target, identity.target),
        draft=None if plan.draft is None or identity.draft is None else _model(plan.draft, identity.draft),
        costs=costs,
        tasks=tuple(tasks),
        load_options=folder.load_options.read(),
        quick=any(task.result.quick for task in tasks),
    )


def _task(
    plan: TunePlan,
    folder: RunFolder,
    task: TaskState,
    profile: Profile,
    result: TaskResult,
    costs: Costs | None,
) -> TaskReport:
    """Return a task's report; without the evidence where that is gone."""
    kept = load(folder.traces(result.task), task.trace_key)
    segments = with_tokens(kept[: task.segments])
    if costs is None or not segments:
        return TaskReport(result)
    profile = replace(profile, sampling=task.sampling or profile.sampling)
    simulator = Simulator(Trace(profile.sampling, segments), costs)
    has_draft, fan_out = plan.draft is not None, plan.max_fan_out
    where = space_of(profile.sampling, costs, has_draft=has_draft, max_fan_out=fan_out)
    tried = tuple(
        search(_never, Search(where, trials=0), folder.studies, study_key(result.task, task.study_key))
    )
    return TaskReport(
        result,
        hit_rates=tuple(_hit_rates(simulator, result.settings)) if "ssd" in where.modes else (),
        history=tuple(each.tokens_per_s for each in tried),
        landscape=landscape(tried),
        importance=importance(tried, where),
    )


def _never(_settings: EngineSettings) -> float:
    raise AssertionError("nothing is simulated where no trials are asked for")


def _hit_rates(simulator: Simulator, settings: EngineSettings) -> Iterator[tuple[int, float]]:
    """Yield how often a draft would be prepared with each budget, everything else as it was chosen."""
    for budget in BUDGETS:
        found = simulator(replace(settings, mode="ssd", fan_out_budget=budget))
        if found.hits + found.misses:
            yield budget, found.hits / (found.hits + found.misses)


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
