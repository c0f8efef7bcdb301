"""The bare command: settle the flags, and open the chat screen."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.app import placing
from localspec.app.options import ModelChoice, chosen, pair_options, session_request
from localspec.app.tuned_pair import KnownPair, settled
from localspec.chat.answer_settings import TunedChoice, with_auto
from localspec.cli.shared.arguments import KEY_VARIABLE, SERVER_PORT, Parser, add_answer_flags, verb_parser
from localspec.errors import Cancelled, UserError
from localspec.gguf import check_model_file
from localspec.inference.interface import OpenModels
from localspec.inference.worker.wire import LogLine
from localspec.llama import rpc
from localspec.models.default_pair import default_pair
from localspec.models.heads import head_for
from localspec.models.names import Reference
from localspec.models.verified import verify
from localspec.storage import paths
from localspec.storage.config import read_config
from localspec.storage.profiles import Profiles, profiles
from localspec.types import ModelInfo, TaskType

if TYPE_CHECKING:
    from localspec.app.recommendation import LocalTarget, Ranked
    from localspec.app.screen import OnLog, ScreenRequest
    from localspec.app.tuning import Stop, TuneChoice
    from localspec.inference.attached import AttachedModels
    from localspec.models.hub import DownloadProgress
    from localspec.tuning.events import TuneEvent


def parser() -> Parser:
    """Return the parser of the bare command."""
    result = verb_parser("", "Open the chat screen. `localspec chat` talks line by line instead.")
    add_answer_flags(result)
    about = f"chat with the models that a running `localspec serve` holds; its key from {KEY_VARIABLE}"
    add = result.add_argument_group("server").add_argument
    add("--host", metavar="USER@MACHINE", help="open the models on another machine, through ssh")
    add("--rpc", metavar="HOST:PORT", help="use devices that `localspec share` offers on other machines")
    add("--attach", nargs="?", const=f"127.0.0.1:{SERVER_PORT}", metavar="ADDRESS", help=about)
    return result


def main(argv: Sequence[str], open_screen: Callable[[ScreenRequest], int]) -> int:
    """Open the screen and return the exit code; raises `UserError` and `StoreError` before it opens."""
    args = parser().parse_args(argv)
    config = read_config(paths.config_dir() / "config.toml")
    host = config.host if args.host is None else args.host
    found = profiles(paths.config_dir() / "profiles")
    served: _Served | None = None
    opens_default_pair = False
    if args.attach is not None or host not in ("", "none"):
        words = argv[: argv.index("--host")] if "--host" in argv else argv
        served = _Served(args, found, host, words, config.remote_program)
    if served is None:
        pair = pair_options(args)
        check_model_file(pair.target.path)
        head_for(pair.target, pair.draft)
        opens_default_pair = not args.model and pair.target.path == default_pair()[0]
    elif args.attach is not None and (args.model or args.model_draft):
        raise UserError(
            "--attach takes the models of a server, and others are named", "leave one of them out"
        )
    try:
        usual = Profiles(with_auto(found)).named(args.profile or config.profile)
    except UserError as error:
        raise UserError(f"{'' if args.profile else 'config.toml: '}{error.message}", error.hint) from None
    from localspec.app.screen import ScreenRequest  # 0.2 s, which a mistake does without

    models = served or _Models(args, found)
    request = ScreenRequest(
        config,
        found,
        usual.name,
        resumes=args.profile is None,
        session=session_request(args),
        knowledge=models.recall,
        opens_default_pair=opens_default_pair,
        choices=models.choices if args.attach is None else None,
        host=host if served else "",
        go_home=None if args.attach is not None or not (served or rpc.named()) else models.go_home,
        open_models=models.open,
        tune=models.tune,
        was_stopped=models.was_stopped,
        check_tuning=models.check_tuning,
    )
    return open_screen(request)


def _fetch(tell: Callable[[str], object], on_progress: Callable[[float], bool], named: Reference) -> Path:
    """Download a model with words to `tell`, and the share that is here; raises `Cancelled` on request."""
    from localspec.app.fetching import fetch

    def on_bytes(progress: DownloadProgress) -> bool:
        return on_progress(progress.done / progress.total if progress.total else 0.0)

    return fetch(named, tell, on_bytes)


class _Models:
    """The models that were chosen on the screen; before that those that flags or config.toml name."""

    def __init__(self, args: argparse.Namespace, found: Profiles) -> None:
        quiet = {"check": verify, "fetch": partial(_fetch, str, lambda _: True)}  # on the screen's terminal
        args = argparse.Namespace(**vars(args) | quiet)
        self._usual = self._args = args
        self._profiles = found
        self._is_home = False  # though flags name other machines
        self._of_flags: Path | None = None  # the target that flags or config.toml name
        self._known = KnownPair(args, via=None)

    def open(
        self, choice: ModelChoice | None, on_progress: Callable[[float], bool], on_log: OnLog
    ) -> OpenModels:
        """Open the models that were chosen, None for the usual ones; raises LocalSpecError."""

        def tell(line: str) -> None:
            on_log(LogLine(logging.INFO, "plan", line))

        def checked(share: float) -> None:
            if not on_progress(share):
                raise Cancelled

        is_usual = choice is not None and choice.target == self._of_flags
        self._args = self._usual if choice is None else chosen(self._usual, choice, keeps_template=is_usual)
        self._known = KnownPair(self._args, via=None)
        if choice is not None:
            verify(filter(None, (choice.target, choice.draft)), checked)
        told = {"check": partial(verify, on_progress=checked), "fetch": partial(_fetch, tell, on_progress)}
        pair = pair_options(argparse.Namespace(**vars(self._args) | told))
        if choice is None:
            self._of_flags = pair.target.path.absolute()
        if choice is not None and choice.draft is None:  # nor the head in the target's own file
            pair = replace(pair, draft=None)
        for note in pair.notes:
            tell(note)
        return placing.open_in_worker(self._known.place(pair, tell), on_progress, on_log)

    def go_home(self) -> None:
        """Open models without other machines from now on."""
        self._is_home, os.environ[rpc.VARIABLE] = True, ""
        for name in ("devices", "draft_devices"):
            if any(device.startswith("RPC") for device in getattr(self._usual, name) or ()):
                setattr(self._usual, name, None)

    def choices(self, open_now: Sequence[ModelInfo]) -> Iterable[LocalTarget | Ranked]:
        """Yield what could be opened; raises LocalSpecError."""
        from localspec.app.recommendation import choices

        return choices(open_now)

    def recall(self, task: TaskType) -> TunedChoice | None:
        """Return what was tuned for a task with the models that are open."""
        return self._known.experience(task)

    def check_tuning(self) -> None:
        """Raise `UserError` where the models that are open cannot be tuned from here."""

    def tune(self, choice: TuneChoice, stop: Stop, on_log: OnLog) -> Iterator[TuneEvent]:
        """Tune the models that are open."""
        from localspec.app.tuning import placed_pair, plan_of, profiles_of, run

        pair = placed_pair(self._args)
        plan = plan_of(pair, profiles_of(self._profiles, choice.tasks), choice, settled(self._args))
        yield from run(plan, pair, stop, on_log)

    def was_stopped(self) -> bool:
        """Tell whether the last run on these models can go on; raises LocalSpecError."""
        from localspec.app.tuning import stopped_profiles

        return bool(stopped_profiles(self._profiles, pair_options(self._args)))


def _without_template(words: Sequence[str]) -> list[str]:
    """Return the words of a command line without the chat template that they name."""
    kept, flag = list[str](), "--chat-template-file"
    for before, word in zip(("", *words), words, strict=False):
        if word.partition("=")[0] != flag and before != flag:
            kept.append(word)
    return kept


class _Served(_Models):
    """The models of a server: of one that runs already, or of one that `--host` starts on its machine."""

    def __init__(
        self, args: argparse.Namespace, found: Profiles, host: str, words: Sequence[str], program: str
    ) -> None:
        super().__init__(args, found)
        self._address: str | None = args.attach
        self._host, self._words, self._program = host, words, program
        self._models: AttachedModels | None = None

    def open(
        self, choice: ModelChoice | None, on_progress: Callable[[float], bool], on_log: OnLog
    ) -> OpenModels:
        """Open the models there, or find them open; raises LocalSpecError."""
        if self._is_home:
            return super().open(choice, on_progress, on_log)
        from localspec.inference.attached import AttachedModels, Server
        from localspec.inference.remote import RemoteModels

        def tell(line: str) -> None:
            on_log(LogLine(logging.INFO, self._host, line))

        if self._address is not None:
            self._models = AttachedModels(Server(self._address, os.environ.get(KEY_VARIABLE)))
        else:
            words = [*self._words]
            if choice is not None:
                words += ["-m", str(choice.target), "-md", str(choice.draft or "")]
                if self._usual.chat_template is not None and choice.target != self._of_flags:
                    words = _without_template(words)  # which was meant for another model
            self._models = RemoteModels(self._host, words, self._program, on_progress, tell)
        if choice is None:
            self._of_flags = self._models.target.path
        return self._models

    def choices(self, open_now: Sequence[ModelInfo]) -> Iterable[LocalTarget | Ranked]:
        """Return what could be opened there."""
        if self._is_home:
            return super().choices(open_now)
        from localspec.app.recommendation import LocalTarget

        return () if self._models is None else self._models.choices(tuple[LocalTarget, ...])

    def recall(self, task: TaskType) -> TunedChoice | None:
        """Return what was tuned there for a task."""
        if self._is_home:
            return super().recall(task)
        found = None if self._models is None else self._models.recall(task)
        return None if found is None else TunedChoice(found.settings, found.reason)

    def tune(self, choice: TuneChoice, stop: Stop, on_log: OnLog) -> Iterator[TuneEvent]:
        """Tune the models once they are here; raises `UserError` before."""
        self.check_tuning()
        return super().tune(choice, stop, on_log)

    def check_tuning(self) -> None:
        """Raise `UserError` while the models are on another machine."""
        if self._is_home:
            return
        there = (
            "on the machine of the server"
            if self._address
            else f"there: `localspec tune --host {self._host}`"
        )
        raise UserError("these models are on another machine", f"tune them {there}")

    def was_stopped(self) -> bool:
        """Tell that no run can go on: the models are not here."""
        return self._is_home and super().was_stopped()
