"""What a benchmark compares, and on which prompts: flags are checked before anything is opened."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from localspec import demo
from localspec.app.opening import plan_to_open
from localspec.benchmark.harness import Contender, OwnContender, Prompt, Question
from localspec.benchmark.prompts import profile_prompts, read_prompts, spread
from localspec.chat.answer_settings import DRAFT_MODES, PairKnowledge
from localspec.cli.shared.answer_request import sampling_given, speculation_given
from localspec.cli.shared.arguments import (
    MAX_DRAFT_LENGTH,
    Parser,
    add_drafting_flags,
    add_model_flags,
    add_sampler_flags,
    add_verbose_flag,
    verb_parser,
    whole,
)
from localspec.cli.shared.console import leaving_in_order, say
from localspec.cli.shared.opening import check_explained, note, place
from localspec.errors import UserError
from localspec.models.pair_files import PairFiles
from localspec.models.pair_request import PairRequest
from localspec.models.recommended import recommended_for
from localspec.storage.paths import config_dir, expanded
from localspec.storage.profiles import Speculation, files_in, shipped_files
from localspec.types.request import EngineSettings, Mode, Request, Sampling, TaskType

if TYPE_CHECKING:
    from localspec.hardware.placement.open_plan import OpenPlan
    from localspec.inference.worker.client import Worker

TUNED = "tuned"
MODES = ("off", "ngram", *DRAFT_MODES)
COMBINED = {f"{mode}+ngram": mode for mode in DRAFT_MODES}
"""Modes in which repetitions of the text serve as drafts too, with the mode that they belong to."""
SERVER = "llama-server"
OUTPUTS = ("md", "csv", "json", "jsonl")
DEMO = "demo"
USUAL_SETS = ("coding", "writing", "general")
USUAL_SAMPLING = Sampling(temperature=0.0)
USUAL_TOKENS, USUAL_PER_TASK = 128, 6
_SHOWN = 40  # characters that tell a prompt from others
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
        """Return what everybody is asked, each time from empty caches."""
        return [
            Question(
                each.task,
                Request(each.messages, self.sampling, max_tokens=self.max_tokens, reuses_cache=False),
            )
            for each in self.prompts
        ]

    @property
    def drafts(self) -> bool:
        """Tell whether a draft model has anything to do."""
        return any(mode in (*DRAFT_MODES, *COMBINED, TUNED) for mode in self.modes)


def read_modes(text: str) -> tuple[str, ...]:
    """Read decoding modes such as `off,sd,ssd`; plain decoding is always the first."""
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in (known := (*MODES, *COMBINED, TUNED)):
            raise argparse.ArgumentTypeError(f"`{name}` is not one of {', '.join(known)}")
    return tuple(dict.fromkeys((MODES[0], *names)))


def read_lengths(text: str) -> tuple[int, ...]:
    """Read lengths of drafts such as `2,4,8`."""
    return tuple(dict.fromkeys(whole(1, MAX_DRAFT_LENGTH)(part.strip()) for part in text.split(",")))


def read_against(text: str) -> Path:
    """Read a rival such as `llama-server=PATH` and return its program."""
    name, _, program = text.partition("=")
    if name != SERVER or not program:
        raise argparse.ArgumentTypeError(f"`{text}` is not `{SERVER}=PATH`; nothing else can be run against")
    path = expanded(program)
    if path.parent == Path() and not path.exists():
        path = Path(shutil.which(program) or program)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"there is no program `{path}`")
    if not path.is_file() or not os.access(path, os.X_OK):
        raise argparse.ArgumentTypeError(f"`{path}` is not a program that can be run")
    return path.absolute()


def read_plot(text: str) -> Path:
    """Read the name of a drawing, whose folder has to be there."""
    path = expanded(text)
    if path.suffix.lower() != ".svg":
        raise argparse.ArgumentTypeError(f"`{text}` is not the name of an SVG file, such as speed.svg")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"`{text}` is a folder")
    try:
        with tempfile.TemporaryFile(dir=path.absolute().parent):
            return path
    except OSError as error:
        raise argparse.ArgumentTypeError(f"`{text}` cannot be written: {error.strerror}") from None


def parser() -> Parser:
    """Return the parser of `localspec bench`."""
    result = verb_parser(
        "bench",
        "Answer prompts in every mode in turn, each time from empty caches, and compare the speeds with "
        "their 95% intervals. Plain decoding between the prompts tells whether the machine kept its pace; "
        "if it did not, nothing is compared, and the exit code is 1.",
    )
    add = result.add_argument
    about = (
        f"modes to compare: {', '.join(MODES)}, {', '.join(COMBINED)} (with repetitions in the text), "
        f"{TUNED} ({', '.join(MODES)}, as far as possible); off is always among them"
    )
    add("--modes", type=read_modes, metavar="LIST", help=about)
    about = "also compare drafts of these fixed lengths, such as 2,4,8, in modes with a draft model"
    add("--draft-length", dest="lengths", type=read_lengths, default=(), metavar="LIST", help=about)
    sets = " ".join(USUAL_SETS)
    about = f"JSON Lines with a prompt, question or turns in each, a profile's name, or demo ({sets})"
    add("--prompts", nargs="+", action="extend", default=[], metavar="FILE|SET", help=about)
    add("--tasks", nargs="+", action="extend", default=[], metavar="TASK", help="only prompts of these")
    about = f"most prompts of each task ({USUAL_PER_TASK})"
    add("--per-task", type=whole(1, 100_000), default=USUAL_PER_TASK, metavar="N", help=about)
    add("--runs", type=whole(1, 1000), default=1, metavar="N", help="number of times to run each prompt (1)")
    most, about = whole(2, 2**31 - 1), f"most tokens of an answer ({USUAL_TOKENS})"
    add("-n", "--predict", "--n-predict", type=most, default=USUAL_TOKENS, metavar="N", help=about)
    about = "tables, figures, one object, or a line for each answer (md)"
    add("-o", "--output", choices=OUTPUTS, default=OUTPUTS[0], help=about)
    add("--plot", type=read_plot, metavar="FILE.svg", help="draw the speeds")
    about = "also run llama.cpp's own server, with and without its speculation, on the same models"
    add("--against", type=read_against, metavar=f"{SERVER}=PATH", help=about)
    add_verbose_flag(add)
    about = (
        "the same for all that is compared; what is not given: as the model's file recommends (SmolLM2: its "
        "card), else as in parentheses"
    )
    add_sampler_flags(result, USUAL_SAMPLING, about)
    add_drafting_flags(
        result.add_argument_group("speculation", "the same for all modes of ours").add_argument
    )
    add_model_flags(result)
    return result


def request_of(args: argparse.Namespace, prompts: Sequence[Prompt], files: PairFiles) -> BenchRequest:
    """Return what the arguments ask for of a pair; raises UserError."""
    has_draft = files.draft is not None
    usual = (mode for mode in MODES if has_draft or mode not in DRAFT_MODES)
    recommended = recommended_for(files.target)
    request = BenchRequest(
        modes=args.modes or tuple(usual),
        asked_modes=args.modes is not None,
        lengths=args.lengths,
        prompts=tuple(prompts),
        sampling=replace(recommended.sampling.over(USUAL_SAMPLING), **sampling_given(args)),
        max_tokens=args.predict,
        repetitions=args.runs,
        speculation=replace(speculation_given(args), mode=None, draft_length=None),
        server=args.against,
        plot=args.plot,
    )
    speculative = [mode for mode in request.modes if mode in (*DRAFT_MODES, *COMBINED)]
    if speculative and not has_draft:
        raise UserError(
            f"mode {speculative[0]} needs a draft model", f"add -md FILE, or leave {speculative[0]} out"
        )
    if request.lengths and not speculative:
        raise UserError(
            f"--draft-length is for modes with a draft model, not for {', '.join(request.modes)}",
            "leave it out, or add sd or ssd to --modes",
        )
    return request


def prompts_of(args: argparse.Namespace) -> tuple[Prompt, ...]:
    """Return some prompts of each task that is wanted, of all without such a choice; raises UserError."""
    found = [prompt for name in dict.fromkeys(args.prompts or USUAL_SETS) for prompt in _prompts_named(name)]
    known = list(dict.fromkeys(prompt.task for prompt in found))
    for task in args.tasks:
        if task not in known:
            raise UserError(f"no prompt is of the task `{task}`", f"tasks: {', '.join(known)}")
    return spread([prompt for prompt in found if not args.tasks or prompt.task in args.tasks], args.per_task)


def _prompts_named(name: str) -> Iterator[Prompt]:
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
    bench: BenchRequest, request: PairRequest, files: PairFiles, models: Worker, *, explain: bool
) -> tuple[OpenPlan, Mapping[str, EngineSettings]]:
    """Return the pair where it sits for all that is compared, and what was tuned for it if that is wanted.

    Raises UserError where it fits nowhere, or was not tuned.
    """
    if not bench.drafts:
        files = replace(files, draft=None)  # nobody would ask it
    if TUNED in bench.modes:  # the settings hold for this placement alone
        check_explained(request, explain=explain)
        tell = say if explain else None
        known = plan_to_open(request, files, via=models.look, tell=tell, explain=explain)
        return known.plan, tuned_settings(known.tuned_for, bench.prompts)
    used = {COMBINED.get(mode, mode) for mode in bench.modes}
    needs_most = next((mode for mode in reversed(DRAFT_MODES) if mode in used), bench.modes[-1])
    request = replace(request, mode=cast("Mode", needs_most))
    return place(request, files, models, explain=explain), {}


def tuned_settings(experience: PairKnowledge, prompts: Sequence[Prompt]) -> dict[str, EngineSettings]:
    """Return what was tuned for every task of the prompts; raises UserError for what was not, or is stale."""
    found: dict[str, EngineSettings] = {}
    for task in dict.fromkeys(prompt.task for prompt in prompts):
        if task not in get_args(TaskType):
            raise UserError(
                f"`{task}` is no task that can be tuned, so mode {TUNED} cannot answer its prompts",
                f"leave {TUNED} out of --modes, or choose other --tasks: {', '.join(get_args(TaskType))}",
            )
        known = experience(cast("TaskType", task))
        if known is None:
            raise UserError(
                f"there are no tuned settings for {task} with these models on this machine",
                f"run `localspec tune --task {task}` first, or leave {TUNED} out of --modes",
            )
        if known.settings is None:
            raise UserError(known.notice, f"or leave {TUNED} out of --modes")
        if known.notice:
            note(known.notice)
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
                f"a prompt of the task `{prompt.task}` is {tokens:,} tokens, and the context holds {room:,} "
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

    open_until.enter_context(leaving_in_order())  # a server hears of nothing but its own end
    target = replace(pair.target, context=models.target.context)
    yield open_until.enter_context(closing(LlamaServer(SERVER, request.server, target)))
    if pair.draft is None or models.draft is None:
        return
    draft = replace(pair.draft, context=models.draft.context)
    for length in (None, *request.lengths):
        name = f"{SERVER} draft" if length is None else f"{SERVER} draft K={length}"
        server = LlamaServer(name, request.server, target, draft, length)
        yield open_until.enter_context(closing(server))
