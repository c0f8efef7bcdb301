"""`localspec setup`: find, fetch and place the right models for this machine, and write that down."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from localspec import units
from localspec.app.fetching import files_of
from localspec.app.opening import with_moved
from localspec.app.recommendation import Ranked, find_target
from localspec.cli import recommend
from localspec.cli.setup.steps import Answer, Reply, Step, converse
from localspec.cli.shared.arguments import Parser, verb_parser
from localspec.cli.shared.console import SUCCESS, ConsoleStatus, ask, is_terminal, print_json, say
from localspec.cli.shared.opening import check, fetch
from localspec.errors import PairingError, UnavailableError, UnreachableError, UserError
from localspec.hardware.device_info import Machine
from localspec.hardware.machine import known_machine
from localspec.hardware.memory.needs import context_size
from localspec.hardware.placement.candidates import Placement
from localspec.hardware.placement.place import lines, place
from localspec.models.catalogue import shipped
from localspec.models.default_pair import default_pair, nameable, on_this_computer
from localspec.models.names import parse
from localspec.models.pair_request import PairRequest
from localspec.models.pairing import may_serve
from localspec.models.shape import read_shape
from localspec.storage.config import Edit, models_table, prepare, read_config
from localspec.storage.paths import config_dir
from localspec.types.request import TaskType

Models = tuple[Path | None, Path | None]  # target and draft; without a target the default pair
_BUNDLED: Models = (None, None)


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
    config = config_dir() / "config.toml"
    read_config(config)  # a broken one is told before the first question
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


class Work:
    """One setup: what is known by now of the machine, the models and their places."""

    def __init__(self, config: Path, task: str | None, *, asks: bool = True) -> None:
        self._config, self._task, self._asks = config, task, asks
        self._machine: Machine | None = None
        self._ranked: tuple[Ranked, ...] = ()
        self._models: Models | None = None  # None keeps those of the configuration
        self._option: Ranked | None = None
        self._placement: Placement | None = None
        self._edit: Edit | None = None
        self._writes_size = False
        self._kept_context: int | None = None
        self.written = False
        self._measured = False
        self._gone, self._unreached = set[str](), 0  # models not to be had; how many for want of an answer

    def show(self, step: Step) -> int:
        """Tell what a step is about, before its question; return the number of recommendations."""
        if step == "choose":
            self._show_choices()
        elif step == "download" and self._option is not None:
            for model in self._option.missing:
                say(f"To download: {model.reference}, about {units.size(model.bytes)}, {model.licence}")
        elif step == "place":
            self._show_plan()
        elif step == "write":
            self._show_edit()
        return len(self._ranked)

    def do(self, step: Step, answer: Answer) -> bool:
        """Do what an answer asks for; return whether models have to be downloaded. Raises UserError."""
        if step == "choose" and answer is not Reply.AGAIN:
            self._models = None
        match step, answer:
            case "measure", Reply.YES | Reply.AGAIN:
                with ConsoleStatus() as status:
                    fresh = answer is Reply.AGAIN or self._measured
                    self._machine = known_machine(fresh, status.share_of("measuring"))
                self._measured = True
            case "choose", int(number):
                self._option = self._ranked[number - 1]
                if self._option.missing:
                    return True
                self._models = files_of(self._option, check, say)
            case "choose", tuple(names):
                self._models = _on_disk(names)
            case "choose", Reply.BUNDLED:
                self._models = _BUNDLED
            case "download", Reply.YES:
                self._download()
            case "download", Reply.SKIP:
                self._models = None
                say("Nothing is downloaded; the models of the configuration stay.")
            case "place", Reply.YES | Reply.SKIP:
                self._writes_size = answer is Reply.YES
            case "write", Reply.YES:
                self._write()
        return False

    def as_json(self) -> dict[str, object]:
        """Return what was set up, for programs."""
        target, draft = self._paths()
        return {
            "config": self._config,
            "target": target,
            "draft": draft,
            "bundled": self._models == _BUNDLED,
            "plan": None if self._placement is None else asdict(self._placement),
        }

    def _seen(self) -> Machine:
        if self._machine is None:
            self._machine = known_machine(may_measure=False)
        return self._machine

    def _show_choices(self) -> None:
        ranked = recommend.ranking(self._seen(), self._task)
        usable = [
            option
            for option in ranked
            if option.placement
            and option.pair.target.kind != "bundled"
            and not self._gone.intersection(model.key for model in option.missing)
        ]
        self._ranked = tuple(usable[: recommend.SHOWN])
        for device in self._seen().devices:
            free, total = units.size(device.memory_free), units.size(device.memory_total)
            say(f"{device.id}: {device.name}, {free} of {total} free")
        say("Recommended for it:" if self._ranked else "Nothing in the catalogue fits it.")
        for number, option in enumerate(self._ranked, 1):
            say(f"{number}. {recommend.title(option)}")
            for reason in option.reasons:
                say(f"   {reason}")
        say(f"(The catalogue is of {shipped().date}; sizes are rounded, speeds expected.)")

    def _download(self) -> None:
        assert self._option is not None
        got = {}
        for model in self._option.missing:
            try:
                got[model.key] = fetch(parse(model.reference))
            except UserError as error:
                if isinstance(error, UnavailableError) or not self._asks:
                    self._gone.add(model.key)
                self._unreached += isinstance(error, UnreachableError)
                if self._unreached > 1 and not self._asks:  # nothing else will come from there
                    self._gone |= {known.key for known in shipped().models if not known.packages}
                raise
        self._models = files_of(self._option.having(got), check, say)

    def _named(self) -> Models:
        """Return the models that the configuration is to name."""
        if self._models is not None:
            return self._models
        config = with_moved(read_config(self._config))
        return config.target, config.draft

    def _paths(self) -> tuple[Path, Path | None]:
        target, draft = self._named()
        return default_pair() if target is None else (target, draft)

    def _show_plan(self) -> None:
        target, draft = self._paths()
        draft_shape = None if draft is None else read_shape(draft)
        shape = read_shape(target)
        self._kept_context = self._context_kept(shape.training_context)
        wanted = PairRequest(context=self._kept_context)
        self._placement = place(self._seen(), shape, draft_shape, wanted)
        for line in lines(self._placement, explain=False):
            say(textwrap.fill(line, recommend.WIDTH, subsequent_indent="    "))

    def _show_edit(self) -> None:
        context = self._context() if self._writes_size else None
        target, draft = nameable(*self._named())
        if draft is None and self._named()[1] is not None and target is not None:
            say("The draft model comes with LocalSpec and is not written down: name it with -md.")
        self._edit = prepare(self._config, models_table(target, draft, context))
        for line in self._edit.diff():
            say(line)
        if not self._edit.changes:
            say(f"{self._config} says all this already.")

    def _write(self) -> None:
        assert self._edit is not None
        if self._edit.changes:
            self._edit.write()
            self.written = True
            say(f"Written: {self._edit.path}. `localspec` opens these models from now on.")

    def _context_kept(self, trained: int) -> int | None:
        """Return the context that somebody wrote into the configuration, if these models have as much."""
        written = read_config(self._config).context
        return written if 0 < written <= trained else None

    def _context(self) -> int | None:
        """Return the context to write: 0, the usual one, unless the plan has another; None keeps it."""
        if self._placement is None or self._placement.target.context == self._kept_context:
            return None
        planned = self._placement.target.context
        usual = context_size(0, read_shape(self._paths()[0]).training_context)
        return 0 if planned == usual else planned


def _on_disk(names: Sequence[str]) -> Models:
    """Return the files of named models; raises UserError where they are not here, or no pair."""
    local = on_this_computer()
    paths = []
    for name in names:
        model = find_target(name, local, shipped())
        if model.path is None:
            hint = f"`localspec pull {model.name}` downloads it"
            raise UserError(f"{model.name} is not on this computer", hint)
        paths.append(model.path.absolute())
    if len(paths) == 1:
        return paths[0], None
    verdict = may_serve(*paths)
    if not verdict.fits:
        target, draft = names
        raise PairingError(
            f"{draft} cannot serve {target}: {verdict.reason}", f"see `localspec pair {target}`"
        )
    return paths[0], paths[1]
