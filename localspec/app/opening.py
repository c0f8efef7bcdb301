"""From a request to an open pair: its plan, its tuned settings, and its process.

A tuned pair is placed as it was tuned: the settings are only valid for that placement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from localspec.chat.answer_settings import TunedChoice, TunedLookup
from localspec.errors import LocalSpecError, ModelFileError, UserError
from localspec.gguf import check_model_file, read_model
from localspec.hardware.placement.open_plan import OpenPlan, as_asked
from localspec.inference.interface import OpenModels
from localspec.models.default_pair import moved
from localspec.models.heads import head_for
from localspec.models.names import Reference
from localspec.models.pair_files import ModelSource, PairFiles, find_pair, read_chat_template
from localspec.models.pair_request import ModelChoice, PairRequest
from localspec.storage.config import Config, check_models, read_config
from localspec.storage.pair_identity import Identity, MachineFacts, changes, identify
from localspec.storage.paths import config_dir
from localspec.storage.tuned_settings import (
    LoadOptions,
    TunedEntry,
    TunedTask,
    everything,
    find_load_options,
    recall,
    same_pair,
)
from localspec.types.models import ModelOptions
from localspec.types.request import TaskType
from localspec.units import ago

if TYPE_CHECKING:
    from localspec.child_process import ValuesOf
    from localspec.hardware.device_info import Machine
    from localspec.hardware.placement.candidates import Placement
    from localspec.hardware.placement.room import HeldMemory
    from localspec.inference.worker.client import Worker
    from localspec.inference.worker.wire import LogLine
    from localspec.llama.template.report import TemplateReport

M_co = TypeVar("M_co", bound=OpenModels, covariant=True)
TUNED_FAN_OUT = 24  # outcomes to prepare, of the settings that a tuning tries
_SAVED_SHARE = 4  # of free memory, for KV caches of other conversations
_MAX_SAVED = 8 * 2**30  # bytes
Reporter = Callable[[str], None]
"""Shows a line to the user who opens the models."""


def with_config(request: PairRequest) -> PairRequest:
    """Fill in the open fields of a request from config.toml; raises UserError.

    The context there is only for the models there.
    """
    path = config_dir() / "config.toml"
    config = with_moved(read_config(path))
    if request.is_named:
        return request
    request = with_context(request, config)
    if config.target is None:
        return request
    check_models(path, config)
    draft = None if config.draft is None else str(config.draft)
    return replace(
        request,
        target=replace(request.target, name=str(config.target)),
        draft=replace(request.draft, name=draft),
    )


def with_context(request: PairRequest, config: Config) -> PairRequest:
    """Return a request with the context of config.toml where it leaves that open."""
    return request if request.context is not None else replace(request, context=config.context)


def with_choice(request: PairRequest, choice: ModelChoice, *, keeps_template: bool = False) -> PairRequest:
    """Return a request for models that were chosen, with what else config.toml and it say."""
    config = read_config(config_dir() / "config.toml")
    return with_context(request, config).choosing(choice, keeps_template=keeps_template)


def with_moved(config: Config) -> Config:
    """Return a configuration in which model files of packages are where these are installed now."""
    return replace(config, target=moved(config.target), draft=moved(config.draft))


def template_of(model: Path) -> Path | None:
    """Return the chat template that config.toml names for a model; None for the one in the model's file."""
    return read_config(config_dir() / "config.toml").template_of(model)


def find_files(request: PairRequest, source: ModelSource) -> PairFiles:
    """Return the files that a request means, with the chat template of config.toml; raises UserError."""
    files = find_pair(request, source)
    if request.chat_template is not None:
        return files
    return replace(files, chat_template=read_chat_template(template_of(files.target)))


class OnDisk:
    """Files as they are, without downloads and checks."""

    def download(self, reference: Reference) -> Path:
        """Raise UserError."""
        raise UserError(f"{reference} is not on this computer", f"`localspec pull {reference}` downloads it")

    def check(self, _files: Sequence[Path]) -> None:
        """Do nothing."""


def checked_files(request: PairRequest, source: ModelSource) -> PairFiles:
    """Return the files of a request with config.toml; raises UserError for files that cannot be opened."""
    configured = with_config(request)
    files = find_files(configured, source)
    check_model_file(files.target)
    plan = as_asked(files, configured)
    head_for(plan.target, plan.draft)
    return files


def template_report_of(model: Path) -> TemplateReport | None:
    """Report on the chat template of a model, None for a file that cannot chat, such as a head."""
    from localspec.llama.template.report import template_report  # numpy: 0.1 s

    with suppress(LocalSpecError):
        return template_report(model, template_of(model))
    return None


def computes_on_cpu(via: ValuesOf | None) -> bool:
    """Return whether this build of llama.cpp has no other device than the CPU; `via` as in `placed`."""
    from localspec.hardware.devices import look

    return all(device.kind == "cpu" for device in look(via=via).found.devices)


def placed(
    files: PairFiles,
    request: PairRequest,
    *,
    via: ValuesOf | None,
    report: Reporter | None,
    explain: bool = False,
    machine: Machine | None = None,
) -> OpenPlan:
    """Plan the models on a machine, None for this one; `report` gets the plan, all of it with `explain`.

    `via` looks at the devices in the process that opens the models, None in a separate one. Raises UserError.
    """
    from localspec.hardware.machine import known_machine  # looks at the devices: 0.3 s
    from localspec.hardware.placement.plan import plan_pair  # 0.1 s

    if not request.plans:
        return as_asked(files, request, on_processor=computes_on_cpu(via))
    plan = plan_pair(files, request, machine or known_machine(may_measure=False, via=via), via)
    report_plan(plan, report, explain=explain)
    return plan


def explained(placement: Placement, files: PairFiles, request: PairRequest, machine: Machine) -> list[str]:
    """Return the memory that a plan takes of each device, drawn as bars."""
    from localspec.hardware.placement import plan  # 0.1 s

    return plan.explained(placement, files, request, machine)


def report_plan(plan: OpenPlan, report: Reporter | None, *, explain: bool) -> None:
    """Report a plan line by line, all of it with `explain`."""
    from localspec.hardware.placement.place import lines

    if report is not None and plan.placement is not None:
        for line in lines(plan.placement, explain=explain, template=plan.target.chat_template):
            report(line)


@dataclass(frozen=True, slots=True)
class PlannedPair:
    """A planned pair, and the identity of its tuned settings; `trouble` is an error of their file."""

    request: PairRequest
    plan: OpenPlan
    identity: Identity | None = None
    trouble: str = ""

    def tuned_for(self, task: TaskType) -> TunedChoice | None:
        """Return the tuned settings of a task; those for other files, placements or devices are not used."""
        if self.trouble:
            return TunedChoice(None, "", self.trouble)
        if self.identity is None:
            return None
        recalled = recall(self.identity, task)
        tuned = recalled.tuned
        notice = ""
        if tuned is None:
            return None
        if recalled.stale:
            notice = f"tuned settings for {task}: {recalled.stale[0]}; run `localspec tune --task {task}`"
            if not _only_programs_changed(tuned, self.identity):
                return TunedChoice(None, "", notice)
        return TunedChoice(tuned.settings, reason(tuned, datetime.now(UTC)), notice, tuned)


def plan_to_open(
    request: PairRequest,
    files: PairFiles,
    *,
    via: ValuesOf | None,
    report: Reporter | None,
    explain: bool = False,
    machine: Machine | None = None,
) -> PlannedPair:
    """Plan the pair with the tuned load options, if it was tuned; otherwise like `placed`."""
    place = partial(placed, via=via, report=report, explain=explain, machine=machine)
    if request.mode == "off":  # no settings would be looked up
        return PlannedPair(request, place(files, request))
    kept, trouble = everything()
    if request.mode == "ngram" or not kept or not _is_tuned(files, request, kept):
        return PlannedPair(request, place(files, request), trouble=trouble)
    wide = replace(request, mode=None, max_fan_out=max(request.max_fan_out, TUNED_FAN_OUT))
    plan = placed_with_draft(files, wide, via=via, report=report, explain=explain, machine=machine)
    identity = identity_of(plan, via=via)
    return PlannedPair(request, as_tuned(plan, identity, request), identity, trouble)


@dataclass(frozen=True, slots=True)
class RoomyPair:
    """A planned pair, what it takes, and the number of other pairs, from the first on, to close for it."""

    planned: PlannedPair
    held: HeldMemory
    closes: int
    seats: int = 1  # answers that are to share calls

    @property
    def plan(self) -> OpenPlan:
        """Return the options that open it, with which call costs are saved."""
        plan = self.planned.plan
        target = replace(plan.target, kv_unified=self.planned.request.kv_unified)
        return replace(plan, target=target, remembers_costs=True, seats=self.seats)


Growth = Literal["alone", "beside others"] | None
"""Whether a context that is not asked for grows up to the trained one, as far as memory allows.

`beside others` leaves half of each GPU free for pairs that open later.
"""


def plan_beside(
    request: PairRequest,
    files: PairFiles,
    others: Sequence[HeldMemory],
    *,
    via: ValuesOf | None,
    grows: Growth = "alone",
) -> RoomyPair:
    """Plan a pair that is served, beside open ones in the order in which they may be closed.

    What was tuned for the usual context stays valid. Raises UserError if the pair does not fit, whatever is
    closed.
    """
    from localspec.hardware.machine import known_machine  # looks at the devices: 0.3 s
    from localspec.hardware.placement.plan import needs_of, with_longest_context
    from localspec.hardware.placement.room import HeldMemory, beside, fewest_to_close

    if not request.plans:
        return RoomyPair(plan_to_open(request, files, via=via, report=None), HeldMemory(), 0)
    seen = known_machine(may_measure=False, via=via)
    planned, closes = fewest_to_close(
        lambda machine: plan_to_open(request, files, via=via, report=None, machine=machine),
        lambda planned: planned.plan.placement,
        seen,
        others,
    )
    room = beside(seen, others[closes:], others[:closes])
    if grows is not None and not request.context:
        shares = grows == "beside others"
        wider = with_longest_context(planned.plan, files, request, room, via, shares=shares)
        planned = replace(planned, plan=wider)
    needs = needs_of(planned.plan, files, request, room)
    return RoomyPair(planned, HeldMemory(needs, planned.plan.target.mmap), closes)


def plan_encoder(path: Path, others: Sequence[HeldMemory]) -> tuple[HeldMemory, int]:
    """Return the memory that a model without text takes, and the number of others to close for it.

    Raises UserError if it does not fit.
    """
    from localspec.hardware.bandwidth import PROCESSOR
    from localspec.hardware.devices import processor
    from localspec.hardware.memory.budget import check_fit
    from localspec.hardware.memory.needs import DeviceNeed
    from localspec.hardware.placement.room import HeldMemory, beside
    from localspec.llama.cores import allowed_cores

    seen = processor(allowed_cores())
    need = DeviceNeed(PROCESSOR, read_model(path).weight_bytes, 0, 0)
    for closes in range(len(others)):
        with suppress(UserError):
            check_fit([need], beside(seen, others[closes:], others[:closes]))
            return HeldMemory((need,)), closes
    check_fit([need], beside(seen, (), others))
    return HeldMemory((need,)), len(others)


def placed_with_draft(
    files: PairFiles,
    request: PairRequest,
    *,
    via: ValuesOf | None,
    report: Reporter | None,
    explain: bool = False,
    machine: Machine | None = None,
) -> OpenPlan:
    """Plan the models, with the draft model even if it is not expected to help, if it fits."""
    plan = placed(files, request, via=via, report=None, machine=machine)
    if files.draft is not None and plan.draft is None:
        with suppress(UserError):  # not enough memory for both
            plan = placed(files, replace(request, mode="sd"), via=via, report=None, machine=machine)
    report_plan(plan, report, explain=explain)
    return plan


def identity_of(plan: OpenPlan, *, via: ValuesOf | None = None) -> Identity:
    """Return the identity of settings tuned with a pair on this machine; `via` as in `placed`.

    The plan is without tuned options.
    """
    from localspec.hardware.machine import facts_of, known_machine

    machine = facts_of(known_machine(may_measure=False, via=via))
    return identify(plan.target, plan.draft, machine)


def as_tuned(plan: OpenPlan, identity: Identity, request: PairRequest) -> OpenPlan:
    """Return a plan with the tuned load options, unless the request sets others."""
    usual = LoadOptions()
    found = find_load_options(identity) or usual
    return plan.opened_with(replace(found, **{name: getattr(usual, name) for name in request.fixed}))


@dataclass(frozen=True, slots=True)
class OpenedPair(Generic[M_co]):
    """Models that are open, what was tuned for them, and what they came from, None on another machine."""

    models: M_co
    tuned_for: TunedLookup
    request: PairRequest | None


def start_worker(on_log: Callable[[LogLine], None] | None) -> Worker:
    """Start a process for models, which gets ready while this one plans them."""
    from localspec.inference.worker.client import Worker

    return Worker(on_log)


def open_in_worker(
    plan: OpenPlan,
    on_progress: Callable[[float], bool] | None = None,
    on_log: Callable[[LogLine], None] | None = None,
) -> Worker:
    """Open a planned pair in a child process."""
    from localspec.inference.worker.client import Worker

    return Worker.open(plan, on_progress=on_progress, on_log=on_log)


def saved_bytes() -> int:
    """Return the default memory for the KV caches of other conversations."""
    from localspec.hardware.devices import processor
    from localspec.llama.cores import allowed_cores

    return min(_MAX_SAVED, processor(allowed_cores()).devices[0].memory_free // _SAVED_SHARE)


def open_placed(target: Path, draft: Path, placement: Placement) -> Worker:
    """Open two files where a placement puts them."""
    from localspec.hardware.placement.plan import placed_as

    return open_in_worker(placed_as(placement, OpenPlan(ModelOptions(target), ModelOptions(draft))))


def _is_tuned(files: PairFiles, request: PairRequest, kept: Sequence[TunedEntry]) -> bool:
    """Return whether there are settings for these models, wherever they may have sat."""
    plan = as_asked(files, request)
    try:
        now = identify(plan.target, plan.draft, MachineFacts("", 0))  # on whatever machine
    except ModelFileError:  # opening it reports the error
        return False
    return any(same_pair(known.identity, now) for known in kept)


def _only_programs_changed(tuned: TunedTask, now: Identity) -> bool:
    """Return whether a driver or llama.cpp is all that is new since the tuning."""
    driver = now.machine.driver
    version = now.machine.llama_cpp
    then = [kept.identity for kept in everything()[0] if kept.tuned == tuned]
    as_now = (replace(each, machine=replace(each.machine, driver=driver, llama_cpp=version)) for each in then)
    return any(not changes(each, now) for each in as_now)


def reason(tuned: TunedTask, now: datetime) -> str:
    """Return when settings were tuned and what they gain, in a line."""
    if tuned.settings.mode == "off":
        return f"tuned {ago(tuned.measured_at, now)}: {tuned.reason}"
    interval = f"{tuned.gain_low:.1f}-{tuned.gain_high:.1f}"
    return f"tuned {ago(tuned.measured_at, now)}: {tuned.gain:.1f}x plain ({interval})"
