"""`localspec setup`: find, fetch and place the right models for this machine, and write that down."""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from localspec import units
from localspec.cli.shared.arguments import Parser, verb_parser
from localspec.cli.shared.console import SUCCESS, StatusLine, ask, is_terminal, print_json, say, tell
from localspec.cli.shared.opening import check, fetch
from localspec.errors import PairingError, UnavailableError, UnreachableError, UserError
from localspec.models.names import parse
from localspec.storage import paths
from localspec.storage.config import models_table, prepare, read_config
from localspec.types import TaskType

if TYPE_CHECKING:
    from localspec.app.recommendation import Ranked
    from localspec.hardware.placement.candidates import Placement

Models = tuple[Path | None, Path | None]  # target and draft; without a target the default pair
Choice = int | tuple[str, ...]
"""The number of a recommendation, from 1, or models by path or name: none for those that came along."""


def parser() -> Parser:
    """Return the parser of `localspec setup`."""
    result = verb_parser(
        "setup",
        "Look at this machine, recommend models, download them, plan where they sit, and write that to "
        "config.toml. Nothing is written before the last question.",
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
    path = paths.config_dir() / "config.toml"
    config = read_config(path)  # a broken one is told before the first question
    models, placement = Setup(args.task, asks=not args.yes).settle(given)
    written = models is not None and _write(path, models, placement, asks=not args.yes)
    if not written:
        say("Nothing was written.")
    if args.json:
        target, draft = _files(models or (config.target, config.draft))
        about = {"config": path, "target": target, "draft": draft, "bundled": models == (None, None)}
        plan = None if placement is None else asdict(placement)
        print_json({"written": written, **about, "plan": plan}, escaped=False)
    return SUCCESS


def _given(model: str | None, draft: str | None, *, bundled: bool) -> Choice | None:
    if draft and not model:
        raise UserError("-md names a draft model, but there is no target", "name the target too: -m FILE")
    if bundled and model:
        raise UserError("--bundled and -m both name models", "keep one of them")
    return () if bundled else tuple(name for name in (model, draft) if name) or None


class Setup:
    """The choice of models: what is known of the machine, and of what cannot be had."""

    def __init__(self, task: str | None, *, asks: bool) -> None:
        """Look at the machine, which may be measured for ten seconds."""
        from localspec.hardware.machine import known_machine  # the devices: 0.3 s

        self._task, self._asks = task, asks
        with StatusLine() as status:
            self._machine = known_machine(False, status.share_of("measuring"))
        self._gone, self._unreached = set[str](), 0  # models not to be had; how many for want of an answer
        self._refused = False

    def settle(self, given: Choice | None) -> tuple[Models | None, Placement | None]:
        """Return the models to open and where they sit, None if somebody leaves; raises UserError."""
        while True:
            options = self._recommended() if given is None else ()
            choice = self._chosen(options) if given is None else given
            if choice is None:
                return None, None
            try:
                models = _on_disk(choice) if isinstance(choice, tuple) else self._fetched(options[choice - 1])
                return models, self._placed(models)
            except UserError as error:
                if not self._asks and (isinstance(choice, tuple) or not options[choice - 1].missing):
                    raise
                tell(error)
                self._refused = self._refused or not isinstance(error, UnavailableError)
                given = None

    def _recommended(self) -> tuple[Ranked, ...]:
        """Tell what suits the machine."""
        from localspec.cli import recommend
        from localspec.models.catalogue import shipped

        usable = [
            option
            for option in recommend.ranking(self._machine, self._task)
            if option.placement
            and option.pair.target.kind != "bundled"
            and not self._gone.intersection(model.key for model in option.missing)
        ][: recommend.SHOWN]
        for device in self._machine.devices:
            free, total = units.size(device.memory_free), units.size(device.memory_total)
            say(f"{device.id}: {device.name}, {free} of {total} free")
        say("Recommended for it:" if usable else "Nothing in the catalogue fits it.")
        for number, option in enumerate(usable, 1):
            say(f"{number}. {recommend.title(option)}")
            *_, licence = recommend.why(option)
            for reason in (*option.reasons, licence):
                say(f"   {reason}")
        say(f"(The catalogue is of {shipped().date}; sizes are rounded, speeds expected.)")
        return tuple(usable)

    def _chosen(self, options: Sequence[Ranked]) -> Choice | None:
        if not self._asks:
            if self._refused and not options:
                raise UserError("no pair that fits this machine could be fetched", "run it again later")
            return 1 if options else ()
        while True:
            line = ask(f"{question(len(options))}\n> ")
            if not line or line.strip().lower() in ("q", "quit", "exit"):
                return None
            try:
                return read(line.strip(), len(options))
            except UserError as error:
                tell(error)

    def _fetched(self, option: Ranked) -> Models:
        """Download what is missing of a pair; what cannot be had is not offered again."""
        from localspec.app.fetching import files_of
        from localspec.models.catalogue import shipped

        got = dict[str, Path]()
        for model in option.missing:
            try:
                got[model.key] = fetch(parse(model.reference))
            except UserError as error:
                if isinstance(error, UnavailableError) or not self._asks:
                    self._gone.add(model.key)
                self._unreached += isinstance(error, UnreachableError)
                if self._unreached > 1 and not self._asks:  # nothing else will come from there
                    self._gone |= {known.key for known in shipped().models if not known.packages}
                raise
        entries = zip(option.pair.models, option.files, strict=True)
        files = tuple(path or got.get(model.key) for model, path in entries)
        return files_of(replace(option, files=files), check, say)

    def _placed(self, models: Models) -> Placement:
        from localspec.app import placing
        from localspec.cli.recommend import WIDTH
        from localspec.hardware.placement.candidates import PlacementConstraints
        from localspec.hardware.placement.place import place
        from localspec.models.shape import read_shape

        target, draft = _files(models)
        draft_shape = None if draft is None else read_shape(draft)
        found = place(self._machine, read_shape(target), draft_shape, PlacementConstraints())
        for line in placing.lines(found, explain=False):
            say(textwrap.fill(line, WIDTH, subsequent_indent="    "))
        return found


def question(options: int) -> str:
    """Return what to ask, with the replies that it takes."""
    numbers = f"1 to {options}, Enter for 1; " if options > 1 else "Enter for 1; " if options else ""
    return (
        f"Which models? ({numbers}t: those that came with LocalSpec; f TARGET [DRAFT]: files or names on "
        "this computer; q: leave)"
    )


def read(text: str, options: int) -> Choice:
    """Return what was chosen of so many recommendations; raises UserError if nobody could know."""
    if not text and options:
        return 1
    if text.lower() in ("", "t", "tiny", "bundled"):
        return ()
    if text.isdecimal() and 1 <= int(text) <= options:
        return int(text)
    # a backslash is part of a path on Windows, not a sign for the shell
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.escape, lexer.commenters = True, "", ""
    try:
        first, *names = lexer
    except ValueError:
        raise UserError("a quotation mark is not closed", 'write for instance: f "my model.gguf"') from None
    if first.lower() not in ("f", "file"):
        raise UserError(f"`{text}` is no reply to this question", question(options))
    if not 1 <= len(names) <= 2:
        raise UserError("f wants one or two models", "write for instance: f large.gguf small.gguf")
    return tuple(names)


def _files(models: Models) -> tuple[Path, Path | None]:
    from localspec.models.default_pair import default_pair

    target, draft = models
    return default_pair() if target is None else (target, draft)


def _on_disk(names: Sequence[str]) -> Models:
    """Return the files of named models; raises UserError where they are not here, or no pair."""
    from localspec.cli.pair import find_target
    from localspec.models.catalogue import shipped
    from localspec.models.default_pair import on_this_computer
    from localspec.models.pairing import may_serve

    local = on_this_computer()
    found = list[Path]()
    for name in names:
        model = find_target(name, local, shipped())
        if model.path is None:
            hint = f"`localspec pull {model.name}` downloads it"
            raise UserError(f"{model.name} is not on this computer", hint)
        found.append(model.path.absolute())
    if len(found) == 2 and not (verdict := may_serve(*found)).fits:
        target, draft = names
        raise PairingError(
            f"{draft} cannot serve {target}: {verdict.reason}", f"see `localspec pair {target}`"
        )
    first, second = (*found, None, None)[:2]
    return first, second


def _write(path: Path, models: Models, placement: Placement | None, *, asks: bool) -> bool:
    """Write models, and the context where that is not the usual one, to config.toml; tell whether it did."""
    from localspec.hardware.memory.needs import context_size
    from localspec.models.shape import read_shape

    usual = context_size(0, read_shape(_files(models)[0]).training_context)
    planned = placement.target.context if placement is not None else usual
    edit = prepare(path, models_table(*models, 0 if planned == usual else planned))
    for line in edit.diff():
        say(line)
    if not edit.changes:
        say(f"{path} says all this already.")
        return False
    if asks and ask("Write this? [Y/n] ").lower() not in ("\n", "y\n", "yes\n"):  # empty: nobody is there
        return False
    edit.write()
    say(f"Written: {path}. `localspec` opens these models from now on.")
    return True
