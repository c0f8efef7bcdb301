"""`localspec setup`: find, fetch and place the right models for this machine, and write that down."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import get_args

from localspec.cli.setup.steps import (
    Bundled,
    OnDisk,
    Pick,
    Reply,
    State,
    Step,
    advance,
    question,
    read,
    usual,
)
from localspec.cli.shared.arguments import Parser, set_up_logging, verb_parser
from localspec.cli.shared.console import is_terminal, say
from localspec.cli.shared.errors import SUCCESS, tell
from localspec.errors import UserError
from localspec.storage import paths
from localspec.storage.config import read_config
from localspec.types import TaskType

SCHEMA = 1
Ask = Callable[[str], str | None]
"""Ask a question and return the line that was typed; None at the end of the input."""


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
    add("--json", action="store_true", help="print one JSON object about what was set up")
    add("-v", "--verbose", action="store_true", help="print log and tracebacks to standard error")
    return result


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    args = parser().parse_args(argv)
    given = _given(args.model, args.model_draft, bundled=args.bundled)
    if not args.yes and not is_terminal(sys.stdin):
        raise UserError(
            "setup asks questions, but nobody sits at the standard input",
            "--yes takes the recommended answers; see `localspec setup --help` for the others",
        )
    set_up_logging(verbose=args.verbose)
    config = paths.config_dir() / "config.toml"
    read_config(config)  # a broken one is told before the first question
    from localspec.cli.setup.work import Work  # the devices and models: 0.3 s

    work = Work(config, args.task)
    state = converse(work, None if args.yes else _ask, given)
    written = state.writes and work.write()
    if not written:
        say("Nothing was written.")
    if args.json:
        print(json.dumps({"schema": SCHEMA, "written": written, **work.as_json()}, ensure_ascii=False))
    return SUCCESS


def _given(model: str | None, draft: str | None, *, bundled: bool) -> Pick | None:
    if draft and not model:
        raise UserError("-md names a draft model, but there is no target", "name the target too: -m FILE")
    if bundled and model:
        raise UserError("--bundled and -m both name models", "keep one of them")
    if bundled:
        return Bundled()
    return OnDisk(model, draft) if model else None


class Working:
    """What the questions are about; `setup_work` does it on the real machine."""

    options = 0

    def show(self, step: Step, state: State) -> None:
        """Tell what a step is about, before its question."""

    def do(self, state: State, reply: Reply | Pick) -> bool:
        """Do what a reply asks for; return whether models have to be downloaded. Raises UserError."""
        return False


def converse(work: Working, ask: Ask | None, given: Pick | None = None) -> State:
    """Go through the questions to their end; without `ask` the usual replies are taken."""
    state = State()
    while state.step != "end":
        try:
            work.show(state.step, state)
        except UserError as error:
            if ask is None or state.step in ("measure", "choose"):
                raise
            tell(error)
            state = _back_to_choose(state)  # other models may do better
            continue
        reply = _reply(state.step, work.options, ask, given)
        if state.step == "choose":
            given = None  # coming back, one may choose otherwise
        try:
            needs_download = work.do(state, reply)
        except UserError as error:
            if ask is None:
                raise
            tell(error)
            if state.step == "download":
                state = _back_to_choose(state)
            continue
        state = advance(state, reply, needs_download=needs_download)
    return state


def _reply(step: Step, options: int, ask: Ask | None, given: Pick | None) -> Reply | Pick:
    if step == "choose" and given is not None:
        return given
    if ask is None:
        return usual(step, options)
    while True:
        text = ask(question(step, options))
        if text is None:
            return Reply.QUIT
        try:
            return read(step, text, options)
        except UserError as error:
            tell(error)


def _back_to_choose(state: State) -> State:
    while state.step != "choose" and state.before is not None:
        state = state.before
    return state


def _ask(text: str) -> str | None:
    sys.stderr.write(f"{text}\n> ")
    sys.stderr.flush()
    line = sys.stdin.readline()
    return line or None
