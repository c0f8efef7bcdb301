"""The bare command: settle the flags, and open the chat screen."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.app.opening import (
    PlannedPair,
    find_files,
    open_in_worker,
    plan_to_open,
    with_choice,
    with_config,
)
from localspec.chat.answer_settings import TunedChoice, with_auto
from localspec.cli.shared.answer_request import session_request
from localspec.cli.shared.arguments import (
    KEY_VARIABLE,
    SERVER_PORT,
    Parser,
    add_answer_flags,
    pair_request,
    verb_parser,
)
from localspec.cli.shared.opening import TERMINAL
from localspec.errors import Cancelled, UserError
from localspec.gguf import check_model_file
from localspec.hardware.placement.open_plan import as_asked
from localspec.inference.interface import OpenModels
from localspec.inference.worker.wire import LogLine
from localspec.llama import rpc
from localspec.models.default_pair import default_pair
from localspec.models.heads import head_for
from localspec.models.names import Reference
from localspec.models.pair_request import ModelChoice, PairRequest
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
    asked, served = pair_request(args), None
    opens_default_pair = False
    if args.attach is not None or host not in ("", "none"):
        words = argv[: argv.index("--host")] if "--host" in argv else argv
        served = _Served(asked, args.attach, found, host, words, config.remote_program)
    if served is None:
        request = with_config(asked)
        files = find_files(request, TERMINAL)
        check_model_file(files.target)
        plan = as_asked(files, request)
        head_for(plan.target, plan.draft)
        opens_default_pair = not args.model and files.target == default_pair()[0]
    elif args.attach is not None and (args.model or args.model_draft):
        raise UserError(
            "--attach takes the models of a server, and others are named", "leave one of them out"
        )
    try:
        usual = Profiles(with_auto(found)).named(args.profile or config.profile)
    except UserError as error:
        raise UserError(f"{'' if args.profile else 'config.toml: '}{error.message}", error.hint) from None
    from localspec.app.screen import ScreenRequest  # 0.2 s, which a mistake does without

    models = served or _Models(asked, found)
    screen = ScreenRequest(
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
    return open_screen(screen)


@dataclass(frozen=True, slots=True)
class _Watch:
    """One opening of models on the screen, which has the terminal: what it tells, and whether it goes on."""

    on_progress: Callable[[float], bool]
    on_log: OnLog

    def download(self, reference: Reference) -> Path:
        """Download a model with the share that is here; raises `Cancelled` on request, and UserError."""
        from localspec.app.fetching import fetch

        def on_bytes(progress: DownloadProgress) -> bool:
            return self.on_progress(progress.done / progress.total if progress.total else 0.0)

        return fetch(reference, self.tell, on_bytes)

    def check(self, files: Sequence[Path]) -> None:
        """Check files from the hub; raises `Cancelled` on request, and UserError."""
        verify(files, self._checked)

    def tell(self, line: str) -> None:
        """Write a line to the log."""
        self.on_log(LogLine(logging.INFO, "plan", line))

    def _checked(self, share: float) -> None:
        if not self.on_progress(share):
            raise Cancelled


_UNSEEN = _Watch(lambda _share: True, lambda _line: None)  # where nobody waits for it


class _Models:
    """The models that were chosen on the screen; before that those that flags or config.toml name."""

    def __init__(self, asked: PairRequest, found: Profiles) -> None:
        self._usual = asked
        self._choice: ModelChoice | None = None
        self._profiles = found
        self._is_home = False  # though flags name other machines
        self._of_flags: Path | None = None  # the target that flags or config.toml name
        self._planned: PlannedPair | None = None

    def _request(self) -> PairRequest:
        """Return what is asked of the models that were chosen last."""
        if self._choice is None:
            return with_config(self._usual)
        is_usual = self._choice.target == self._of_flags
        return with_choice(self._usual, self._choice, keeps_template=is_usual)

    def open(
        self, choice: ModelChoice | None, on_progress: Callable[[float], bool], on_log: OnLog
    ) -> OpenModels:
        """Open the models that were chosen, None for the usual ones; raises LocalSpecError."""
        watch = _Watch(on_progress, on_log)
        self._choice, self._planned = choice, None
        if choice is not None:
            watch.check([path for path in (choice.target, choice.draft) if path is not None])
        request = self._request()
        files = find_files(request, watch)
        if choice is None:
            self._of_flags = files.target.absolute()
        for note in files.notes:
            watch.tell(note)
        self._planned = plan_to_open(request, files, via=None, tell=watch.tell)
        return open_in_worker(self._planned.plan.remembering_costs(), on_progress, on_log)

    def go_home(self) -> None:
        """Open models without other machines from now on."""
        self._is_home, os.environ[rpc.VARIABLE] = True, ""
        self._usual = self._usual.without_remote_devices()

    def choices(self, open_now: Sequence[ModelInfo]) -> Iterable[LocalTarget | Ranked]:
        """Yield what could be opened; raises LocalSpecError."""
        from localspec.app.recommendation import choices

        return choices(open_now)

    def recall(self, task: TaskType) -> TunedChoice | None:
        """Return what was tuned for a task with the models that are open."""
        return None if self._planned is None else self._planned.tuned_for(task)

    def check_tuning(self) -> None:
        """Raise `UserError` where the models that are open cannot be tuned from here."""

    def tune(self, choice: TuneChoice, stop: Stop, on_log: OnLog) -> Iterator[TuneEvent]:
        """Tune the models that are open."""
        from localspec.app.tuning import plan_of, plan_to_tune, profiles_of, run

        request = self._request()
        pair = plan_to_tune(request, _UNSEEN)
        plan = plan_of(pair, profiles_of(self._profiles, choice.tasks), choice, request.fixed)
        yield from run(plan, stop, on_log)

    def was_stopped(self) -> bool:
        """Tell whether the last run on these models can go on; raises LocalSpecError."""
        from localspec.app.tuning import stopped_profiles

        request = self._request()
        plan = as_asked(find_files(request, _UNSEEN), request)
        return bool(stopped_profiles(self._profiles, plan))


class _Served(_Models):
    """The models of a server: of one that runs already, or of one that `--host` starts on its machine."""

    def __init__(
        self,
        asked: PairRequest,
        address: str | None,
        found: Profiles,
        host: str,
        words: Sequence[str],
        program: str,
    ) -> None:
        super().__init__(asked, found)
        self._address = address
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
                    words += ["--chat-template-file", ""]  # which was meant for another model
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
