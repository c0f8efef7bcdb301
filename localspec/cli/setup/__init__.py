"""`localspec setup`: choose, download and configure models for this machine."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import get_args

from localspec import units
from localspec.app.recommendation import RankedPair
from localspec.app.setup import BUNDLED, Setup
from localspec.cli import recommend
from localspec.cli.setup.steps import Answer, Reply, Step, converse
from localspec.cli.shared.arguments import Parser, verb_parser
from localspec.cli.shared.console import SUCCESS, ConsoleStatus, ask, is_terminal, print_json, say
from localspec.cli.shared.opening import check, fetch
from localspec.errors import UserError
from localspec.models.catalogue import shipped
from localspec.storage.config import read_config
from localspec.storage.paths import config_dir
from localspec.types.request import TaskType


def parser() -> Parser:
    """Return the parser of `localspec setup`."""
    result = verb_parser(
        "setup",
        "Inspect this machine, recommend models, download them, plan their placement, and write that to "
        "config.toml. Nothing is written before the last question; every step can be skipped.",
    )
    add = result.add_argument
    add("-y", "--yes", action="store_true", help="do not ask: download and use the recommendation")
    add("--task", choices=get_args(TaskType), help="task to rank for; models made for it rank higher")
    add(
        "-m",
        "--model",
        metavar="FILE",
        help="use this target: a GGUF file, or a name from `localspec models`",
    )
    add("-md", "--model-draft", metavar="FILE", help="the draft model for it")
    add("--bundled", action="store_true", help="use the models that come with LocalSpec")
    return result.with_output("about what was set up")


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().read(argv)
    given = _given(args.model, args.model_draft, bundled=args.bundled)
    if not args.yes and not is_terminal(sys.stdin):
        raise UserError(
            "setup needs a terminal to ask its questions",
            "add --yes to accept the recommendation",
        )
    config = config_dir() / "config.toml"
    read_config(config)  # errors are reported before the first question
    setup = Setup(config, args.task, may_retry=not args.yes)
    conversation = SetupConversation(setup)
    asking = None if args.yes else lambda text: ask(f"{text}\n> ") or None
    converse(conversation.show, conversation.do, asking, given)
    if not setup.written:
        say("Nothing was written.")
    if args.json:
        print_json(conversation.as_json(), escaped=False)
    return SUCCESS


def _given(model: str | None, draft: str | None, *, bundled: bool) -> Answer | None:
    if draft and not model:
        raise UserError("a draft model was given without a target", "add -m FILE")
    if bundled and model:
        raise UserError("--bundled and -m cannot be combined", "use only one of them")
    if bundled:
        return Reply.BUNDLED
    return tuple(name for name in (model, draft) if name) or None


class SetupConversation:
    """One set-up as a conversation: what each step shows, and what its answers do."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._shown: tuple[RankedPair, ...] = ()  # the recommendations, by their numbers

    def show(self, step: Step) -> int:
        """Print the information of a step before its question; return the number of recommendations."""
        option = self._setup.option
        if step == "choose":
            self._show_choices()
        elif step == "download" and option is not None:
            for model in option.missing:
                say(f"To download: {model.reference}, about {units.size(model.bytes)}, {model.licence}")
        elif step == "place":
            for line in self._setup.plan():
                say(textwrap.fill(line, recommend.WIDTH, subsequent_indent="    "))
        elif step == "write":
            self._show_edit()
        return len(self._shown)

    def do(self, step: Step, answer: Answer) -> bool:
        """Do what an answer asks for; return whether models have to be downloaded. Raises UserError."""
        setup = self._setup
        if step == "choose" and answer is not Reply.AGAIN:
            setup.models = None
        match step, answer:
            case "measure", Reply.YES | Reply.AGAIN:
                with ConsoleStatus() as status:
                    setup.measure(status.share_of("measuring"), again=answer is Reply.AGAIN)
            case "choose", int(number):
                return setup.choose(self._shown[number - 1], check, say)
            case "choose", tuple(names):
                setup.choose_files(names)
            case "choose", Reply.BUNDLED:
                setup.models = BUNDLED
            case "download", Reply.YES:
                setup.download(fetch, check, say)
            case "download", Reply.SKIP:
                setup.models = None
                say("Nothing is downloaded; the models of the configuration stay.")
            case "place", Reply.YES | Reply.SKIP:
                setup.writes_context = answer is Reply.YES
            case "write", Reply.YES:
                if setup.write():
                    say(f"Written: {setup.config}. `localspec` opens these models from now on.")
        return False

    def as_json(self) -> dict[str, object]:
        """Return the result of the set-up, for programs."""
        setup = self._setup
        target, draft = setup.paths()
        return {
            "written": setup.written,
            "config": setup.config,
            "target": target,
            "draft": draft,
            "bundled": setup.models == BUNDLED,
            "plan": None if setup.placement is None else asdict(setup.placement),
        }

    def _show_choices(self) -> None:
        self._shown = self._setup.recommended(recommend.SHOWN)
        for device in self._setup.machine.devices:
            free = units.size(device.memory_free)
            total = units.size(device.memory_total)
            say(f"{device.id}: {device.name}, {free} of {total} free")
        say("Recommended for it:" if self._shown else "Nothing in the catalogue fits it.")
        for number, option in enumerate(self._shown, 1):
            say(f"{number}. {recommend.title(option)}")
            for reason in option.reasons:
                say(f"   {reason}")
        say(f"(The catalogue is of {shipped().date}; sizes are rounded, speeds expected.)")

    def _show_edit(self) -> None:
        if self._setup.omits_draft:
            say("The draft model comes with LocalSpec and cannot be written to the file: give it with -md.")
        edit = self._setup.edit()
        for line in edit.diff():
            say(line)
        if not edit.changes:
            say(f"{self._setup.config} already has these settings.")
