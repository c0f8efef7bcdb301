"""`localspec setup`: find, fetch and place the right models for this machine, and write that down."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import get_args

from localspec.cli.setup.steps import Answer, Reply, converse
from localspec.cli.shared.arguments import Parser, verb_parser
from localspec.cli.shared.console import SUCCESS, ask, is_terminal, print_json, say
from localspec.errors import UserError
from localspec.storage import paths
from localspec.storage.config import read_config
from localspec.types import TaskType


def parser() -> Parser:
    """Return the parser of `localspec setup`."""
    result = verb_parser(
        "setup",
        "Look at this machine, recommend models, download them, plan where they sit, and write that to "
        "config.toml. Nothing is written before the last question; every step can be skipped.",
    )
    add = result.add_argument
    add("-y", "--yes", action="store_true", help="ask nothing: take the recommendation, and download it")
    add("--task", choices=get_args(TaskType), help="what the models are for: those made for it rise")
    add("-m", "--model", metavar="FILE", help="take this target: a GGUF file, or its name in `models`")
    add("-md", "--model-draft", metavar="FILE", help="the draft model to it")
    add("--bundled", action="store_true", help="take the models that came with LocalSpec")
    return result.with_output("about what was set up")


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    args = parser().read(argv)
    given = _given(args.model, args.model_draft, bundled=args.bundled)
    if not args.yes and not is_terminal(sys.stdin):
        raise UserError(
            "setup asks questions, but nobody sits at the standard input",
            "--yes takes the recommended answers; see `localspec setup --help` for the others",
        )
    config = paths.config_dir() / "config.toml"
    read_config(config)  # a broken one is told before the first question
    from localspec.cli.setup.work import Work  # the devices and models: 0.3 s

    work = Work(config, args.task, asks=not args.yes)
    asking = None if args.yes else lambda text: ask(f"{text}\n> ") or None
    converse(work.show, work.do, asking, given)
    if not work.written:
        say("Nothing was written.")
    if args.json:
        print_json({"written": work.written, **work.as_json()}, escaped=False)
    return SUCCESS


def _given(model: str | None, draft: str | None, *, bundled: bool) -> Answer | None:
    if draft and not model:
        raise UserError("-md names a draft model, but there is no target", "name the target too: -m FILE")
    if bundled and model:
        raise UserError("--bundled and -m both name models", "keep one of them")
    if bundled:
        return Reply.BUNDLED
    return tuple(name for name in (model, draft) if name) or None
