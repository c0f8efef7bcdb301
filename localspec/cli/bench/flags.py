"""The flags of `localspec bench`, checked before anything is opened."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from localspec.app.comparison import COMBINED, MODES, SERVER, TUNED, BenchRequest, prompts_named
from localspec.benchmark.harness import Prompt
from localspec.benchmark.prompts import spread
from localspec.chat.answer_settings import DRAFT_MODES
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
from localspec.errors import UserError
from localspec.models.pair_files import PairFiles
from localspec.models.recommended import recommended_for
from localspec.storage.paths import expanded
from localspec.types.request import Sampling

OUTPUTS = ("md", "csv", "json", "jsonl")
USUAL_SETS = ("coding", "writing", "general")
USUAL_SAMPLING = Sampling(temperature=0.0)
USUAL_TOKENS = 128
USUAL_PER_TASK = 6


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
    """Read the path of a chart, whose folder must exist."""
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
        "Answer prompts in every mode alternately, each time with empty caches, and compare the speeds with "
        "their 95% intervals. Plain decoding between the prompts detects changes of the machine's speed; "
        "after such a change nothing is compared, and the exit code is 1.",
    )
    add = result.add_argument
    about = (
        f"modes to compare: {', '.join(MODES)}, {', '.join(COMBINED)} (also copying earlier text), "
        f"{TUNED} ({', '.join(MODES)}, those that are possible); off is always included"
    )
    add("--modes", type=read_modes, metavar="LIST", help=about)
    about = "also compare drafts of these fixed lengths, such as 2,4,8, in modes with a draft model"
    add("--draft-length", dest="lengths", type=read_lengths, default=(), metavar="LIST", help=about)
    sets = " ".join(USUAL_SETS)
    about = f"JSON Lines with a prompt, question or turns in each, a profile's name, or demo ({sets})"
    add("--prompts", nargs="+", action="extend", default=[], metavar="FILE|SET", help=about)
    add("--tasks", nargs="+", action="extend", default=[], metavar="TASK", help="only prompts of these tasks")
    about = f"most prompts of each task ({USUAL_PER_TASK})"
    add("--per-task", type=whole(1, 100_000), default=USUAL_PER_TASK, metavar="N", help=about)
    add("--runs", type=whole(1, 1000), default=1, metavar="N", help="number of times to run each prompt (1)")
    most = whole(2, 2**31 - 1)
    about = f"most tokens of an answer ({USUAL_TOKENS})"
    add("-n", "--predict", "--n-predict", type=most, default=USUAL_TOKENS, metavar="N", help=about)
    about = "output format: tables, CSV, one JSON object, or a JSON line for each answer (md)"
    add("-o", "--output", choices=OUTPUTS, default=OUTPUTS[0], help=about)
    add("--plot", type=read_plot, metavar="FILE.svg", help="draw the speeds")
    about = "also run llama.cpp's own server, with and without its speculation, on the same models"
    add("--against", type=read_against, metavar=f"{SERVER}=PATH", help=about)
    add_verbose_flag(add)
    about = (
        "the same for all modes; defaults: as the model's file recommends (SmolLM2: its "
        "model card), else as in parentheses"
    )
    add_sampler_flags(result, USUAL_SAMPLING, about)
    add_drafting_flags(
        result.add_argument_group("speculation", "the same for all modes of ours").add_argument
    )
    add_model_flags(result)
    return result


def request_of(args: argparse.Namespace, prompts: Sequence[Prompt], files: PairFiles) -> BenchRequest:
    """Return the request for a pair from the arguments; raises UserError."""
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
    found = [prompt for name in dict.fromkeys(args.prompts or USUAL_SETS) for prompt in prompts_named(name)]
    known = list(dict.fromkeys(prompt.task for prompt in found))
    for task in args.tasks:
        if task not in known:
            raise UserError(f"no prompt is of the task `{task}`", f"tasks: {', '.join(known)}")
    return spread([prompt for prompt in found if not args.tasks or prompt.task in args.tasks], args.per_task)
