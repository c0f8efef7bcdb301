"""Gather what runs left on disk into the input of a report."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from localspec.models.shape import read_shape
from localspec.storage.pair_identity import Identity, ModelFacts
from localspec.tuning.costs import last_costs
from localspec.tuning.plan import TunePlan
from localspec.tuning.report.page import ReportInput, ReportModel
from localspec.tuning.run_folder import RunFolder
from localspec.types import ModelOptions


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
