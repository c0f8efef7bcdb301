"""What a benchmark is to compare, and on which prompts: flags read and checked before anything is opened."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.app.answer_options import sampling_given
from localspec.app.options import DRAFT_MODES, PairOptions, decoding
from localspec.benchmark.contender import Prompt
from localspec.benchmark.prompts import profile_prompts, read_prompts, spread
from localspec.cli.shared.arguments import MAX_DRAFT_LENGTH, whole
from localspec.errors import UserError
from localspec.storage.paths import config_dir, expanded
from localspec.storage.profiles import Speculation, files_in, shipped_files
from localspec.types import Sampling

TUNED = "tuned"
MODES = ("off", "ngram", *DRAFT_MODES)
COMBINED = {f"{mode}+ngram": mode for mode in DRAFT_MODES}
"""Modes in which repetitions of the text serve as drafts too, with the mode that they belong to."""
SERVER = "llama-server"
DEMO = "demo"
USUAL_SETS = ("coding", "writing", "general")
USUAL_SAMPLING = Sampling(temperature=0.0)
USUAL_TOKENS, USUAL_PER_TASK = 128, 6


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


def wish_of(args: argparse.Namespace, prompts: Sequence[Prompt], pair: PairOptions) -> BenchRequest:
    """Return what the arguments ask for of a pair; raises UserError."""
    has_draft = pair.draft is not None
    usual = (mode for mode in MODES if has_draft or mode not in DRAFT_MODES)
    wish = BenchRequest(
        modes=args.modes or tuple(usual),
        asked_modes=args.modes is not None,
        lengths=args.lengths,
        prompts=tuple(prompts),
        sampling=sampling_given(args).apply(USUAL_SAMPLING),
        max_tokens=args.predict,
        repetitions=args.runs,
        speculation=replace(decoding(args).asked, mode=None, draft_length=None),
        server=args.against,
        plot=args.plot,
    )
    speculative = [mode for mode in wish.modes if mode in (*DRAFT_MODES, *COMBINED)]
    if speculative and not has_draft:
        raise UserError(
            f"mode {speculative[0]} needs a draft model", f"add -md FILE, or leave {speculative[0]} out"
        )
    if wish.lengths and not speculative:
        raise UserError(
            f"--draft-length is for modes with a draft model, not for {', '.join(wish.modes)}",
            "leave it out, or add sd or ssd to --modes",
        )
    return wish


def prompts_of(args: argparse.Namespace) -> tuple[Prompt, ...]:
    """Return some prompts of each task that is wanted, of all without such a wish; raises UserError."""
    found = [prompt for name in dict.fromkeys(args.prompts or USUAL_SETS) for prompt in _named(name)]
    known = list(dict.fromkeys(prompt.task for prompt in found))
    for task in args.tasks:
        if task not in known:
            raise UserError(f"no prompt is of the task `{task}`", f"tasks: {', '.join(known)}")
    return spread([prompt for prompt in found if not args.tasks or prompt.task in args.tasks], args.per_task)


def _named(name: str) -> Iterator[Prompt]:
    """Yield the prompts of a set or of a file; a set goes before a file of its name."""
    if name == DEMO:
        from localspec.demo import prompts

        yield from (Prompt(found.task, found.prompt) for found in prompts())
    elif name in (known := _profile_names()):
        yield from profile_prompts([name])
    elif (path := expanded(name)).exists() or path.suffix or path.name != name:
        yield from read_prompts(path)
    else:
        sets = ", ".join((DEMO, *known))
        raise UserError(f"there is no set or file of prompts `{name}`", f"sets: {sets}; or a JSON Lines file")


def _profile_names() -> list[str]:
    return sorted({*shipped_files(), *files_in(config_dir() / "profiles")})
