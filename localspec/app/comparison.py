"""What a comparison of speeds compares: our modes, tuned settings, llama.cpp's server, and the prompts."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from localspec import demo
from localspec.app import opening
from localspec.app.opening import Reporter
from localspec.benchmark.harness import Contender, OwnContender, Prompt, Question
from localspec.benchmark.prompts import profile_prompts, read_prompts
from localspec.chat.answer_settings import DRAFT_MODES, TunedLookup
from localspec.errors import UserError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.models.pair_files import PairFiles
from localspec.models.pair_request import PairRequest
from localspec.storage.paths import config_dir, expanded
from localspec.storage.profiles import Speculation, files_in, shipped_files
from localspec.types.request import EngineSettings, Mode, Request, Sampling, TaskType

if TYPE_CHECKING:
    from localspec.inference.worker.client import Worker

TUNED = "tuned"
MODES = ("off", "ngram", *DRAFT_MODES)
COMBINED = {f"{mode}+ngram": mode for mode in DRAFT_MODES}
"""Modes in which repetitions of the text serve as drafts too, with the mode that they belong to."""
SERVER = "llama-server"
DEMO = "demo"
_SHOWN = 40  # characters that identify a prompt
_WAITS = "the draft is a head, or shares a device of another machine with its target, and cannot draft ahead"


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What to compare; `asked_modes` says that the modes were named, not taken because they are usual."""

    modes: tuple[str, ...]
    asked_modes: bool
    lengths: tuple[int, ...]
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    max_tokens: int
    repetitions: int
    speculation: Speculation
    server: Path | None
    plot: Path | None

    @property
    def questions(self) -> list[Question]:
        """Return the questions for all contenders, each with empty caches."""
        return [
            Question(
                each.task,
                Request(each.messages, self.sampling, max_tokens=self.max_tokens, reuses_cache=False),
            )
            for each in self.prompts
        ]

    @property
    def drafts(self) -> bool:
        """Return whether a draft model has anything to do."""
        return any(mode in (*DRAFT_MODES, *COMBINED, TUNED) for mode in self.modes)


def prompts_named(name: str) -> Iterator[Prompt]:
    """Yield the prompts of a set or of a file; a set goes before a file of its name."""
    if name == DEMO:
        yield from (Prompt(found.task, found.prompt) for found in demo.prompts())
    elif name in (known := sorted({*shipped_files(), *files_in(config_dir() / "profiles")})):
        yield from profile_prompts([name])
    elif (path := expanded(name)).exists() or path.suffix or path.name != name:
        yield from read_prompts(path)
    else:
        sets = ", ".join((DEMO, *known))
        raise UserError(f"there is no set or file of prompts `{name}`", f"sets: {sets}; or a JSON Lines file")


def placed_pair(
    bench: BenchRequest,
    request: PairRequest,
    files: PairFiles,
    models: Worker,
    *,
    report: Reporter,
    explain: bool = False,
) -> tuple[OpenPlan, Mapping[str, EngineSettings]]:
    """Return the pair as placed for everything that is compared, and its tuned settings if requested.

    `report` gets notes for the user, and with `explain` the plan. Raises UserError where it fits
    nowhere, or was not tuned.
    """
    shown = report if explain else None
    if not bench.drafts:
        files = replace(files, draft=None)  # not needed
    if TUNED in bench.modes:  # the settings hold for this placement alone
        known = opening.plan_to_open(request, files, via=models.values_of, report=shown, explain=explain)
        return known.plan, tuned_settings(known.tuned_for, bench.prompts, report)
    used = {COMBINED.get(mode, mode) for mode in bench.modes}
    needs_most = next((mode for mode in reversed(DRAFT_MODES) if mode in used), bench.modes[-1])
    request = replace(request, mode=cast("Mode", needs_most))
    return opening.placed(files, request, via=models.values_of, report=shown, explain=explain), {}


def tuned_settings(
    tuned_for: TunedLookup, prompts: Sequence[Prompt], report: Reporter
) -> dict[str, EngineSettings]:
    """Return the tuned settings of every task of the prompts; raises UserError for missing or stale ones."""
    found: dict[str, EngineSettings] = {}
    for task in dict.fromkeys(prompt.task for prompt in prompts):
        if task not in get_args(TaskType):
            raise UserError(
                f"`{task}` is not a task that can be tuned, so mode {TUNED} cannot answer its prompts",
                f"leave {TUNED} out of --modes, or choose other --tasks: {', '.join(get_args(TaskType))}",
            )
        known = tuned_for(cast("TaskType", task))
        if known is None:
            raise UserError(
                f"there are no tuned settings for {task} with these models on this machine",
                f"run `localspec tune --task {task}` first, or leave {TUNED} out of --modes",
            )
        if known.settings is None:
            raise UserError(known.notice, f"or leave {TUNED} out of --modes")
        if known.notice:
            report(f"note: {known.notice}")
        found[task] = known.settings
    return found


def possible(request: BenchRequest, models: Worker) -> BenchRequest:
    """Leave out usual modes that these models cannot decode in; raises UserError for others."""
    unable = [mode for mode in request.modes if COMBINED.get(mode, mode) not in (*models.modes, TUNED)]
    if unable and request.asked_modes:
        reason = "there is no draft model" if models.draft is None else _WAITS
        raise UserError(f"mode {unable[0]} is not possible: {reason}", f"leave {unable[0]} out of --modes")
    return replace(request, modes=tuple(mode for mode in request.modes if mode not in unable))


def check_fit(prompts: Sequence[Prompt], models: Worker) -> None:
    """Raise UserError for a prompt that leaves no room for an answer, before hours are spent on others."""
    room = models.target.context
    for prompt in prompts:
        tokens = models.count_tokens(prompt.messages)
        if tokens >= room:
            begins = " ".join(prompt.text[:_SHOWN].split())
            raise UserError(
                f"a prompt of the task `{prompt.task}` is {tokens:,} tokens, but the context has {room:,} "
                f"with the answer: {begins}...",
                f"leave it out, or give a larger -c (the model was trained on "
                f"{models.target.training_context:,})",
            )


def ways(request: BenchRequest) -> Iterator[tuple[str, EngineSettings]]:
    """Yield the names and settings of our modes: first as they decide themselves, then of fixed lengths."""
    for mode in request.modes:
        if mode == TUNED:
            continue
        settings = request.speculation.apply(EngineSettings(mode=cast("Mode", COMBINED.get(mode, mode))))
        if mode in COMBINED:
            settings = replace(settings, fallback="ngram")
        yield mode, settings
        for length in request.lengths if settings.mode in DRAFT_MODES else ():
            yield f"{mode} K={length}", replace(settings, draft_length=length, min_confidence=0.0)


def own(models: Worker, request: BenchRequest, tuned: Mapping[str, EngineSettings]) -> Iterator[OwnContender]:
    """Yield our contenders; they share the open models."""
    for name, settings in ways(request):
        yield OwnContender(name, models, settings, models.pid)
    if TUNED in request.modes:
        yield OwnContender(TUNED, models, tuned, models.pid)


def servers(
    request: BenchRequest, pair: OpenPlan, models: Worker, open_until: ExitStack
) -> Iterator[Contender]:
    """Start llama.cpp's servers, as wide as our contexts, and yield them; raises UserError if one fails."""
    if request.server is None:
        return
    from localspec.benchmark.llama_server import LlamaServer

    target = replace(pair.target, context=models.target.context)
    yield open_until.enter_context(closing(LlamaServer(SERVER, request.server, target)))
    if pair.draft is None or models.draft is None:
        return
    draft = replace(pair.draft, context=models.draft.context)
    for length in (None, *request.lengths):
        name = f"{SERVER} draft" if length is None else f"{SERVER} draft K={length}"
        server = LlamaServer(name, request.server, target, draft, length)
        yield open_until.enter_context(closing(server))


def machine_words(pair: OpenPlan) -> str:
    """Return the CPU, how much of it is used, the GPUs and the system, in a line."""
    from localspec.hardware.machine import facts_of, known_machine
    from localspec.llama.cores import physical_cores

    facts = facts_of(known_machine(may_measure=False))
    used = pair.target.threads or physical_cores()
    cores = f"{used} of {facts.cores} cores" if facts.cores else f"{used} threads"
    parts = [facts.processor or "unknown CPU", cores, *facts.devices]
    parts += [f"{platform.system()} {platform.release()}", f"llama-cpp-python {facts.llama_cpp}"]
    return ", ".join(parts)
