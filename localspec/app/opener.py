"""Who opens the models of the chat screen: this machine, another one through ssh, or a server that runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from localspec.app.opening import (
    OpenedPair,
    find_files,
    open_in_worker,
    plan_to_open,
    saved_bytes,
    with_choice,
    with_config,
)
from localspec.chat.answer_settings import TunedChoice, TunedLookup
from localspec.errors import Cancelled, UserError
from localspec.hardware.placement.open_plan import as_asked
from localspec.inference.interface import OpenModels
from localspec.inference.turns import PARALLEL
from localspec.inference.worker.wire import LogLine
from localspec.llama import rpc
from localspec.models.names import Reference
from localspec.models.pair_request import ModelChoice, PairRequest
from localspec.models.verified import verify
from localspec.storage.config import read_config
from localspec.storage.paths import config_dir
from localspec.storage.profiles import Profiles
from localspec.types.models import ModelInfo
from localspec.types.request import TaskType

if TYPE_CHECKING:
    from localspec.app.recommendation import LocalTarget, RankedPair
    from localspec.app.tuning import StopSignal, TuneChoice
    from localspec.inference.attached import AttachedModels
    from localspec.models.hub import DownloadProgress
    from localspec.tuning.events import TuneEvent

OnLog = Callable[[LogLine], None]


@dataclass(frozen=True, slots=True)
class OpeningWatch:
    """The callbacks of opening models: progress, cancellation and messages.

    `on_progress` gets the finished share and returns False to stop. It is also a `ModelSource`: downloads and
    checks report in the same way.
    """

    on_progress: Callable[[float], bool] = lambda _share: True
    on_log: OnLog = lambda _line: None

    def report(self, line: str, name: str = "plan") -> None:
        """Write a line to the log."""
        self.on_log(LogLine(logging.INFO, name, line))

    def download(self, reference: Reference) -> Path:
        """Download a model and return its file; raises `Cancelled` and UserError."""
        from localspec.app.fetching import fetch

        def on_bytes(progress: DownloadProgress) -> bool:
            return self.on_progress(progress.done / progress.total if progress.total else 0.0)

        return fetch(reference, self.report, on_bytes)

    def check(self, files: Sequence[Path]) -> None:
        """Check files from the Hub; raises `Cancelled` and UserError."""

        def checked(share: float) -> None:
            if not self.on_progress(share):
                raise Cancelled

        verify(files, checked)


class ModelsOpener(Protocol):
    """Opens the models of a chat, somewhere."""

    @property
    def place(self) -> str:
        """Return the name of the machine where models open, "" for this one."""

    @property
    def offers_choices(self) -> bool:
        """Return whether other models than the default ones can be opened."""

    def open(self, choice: ModelChoice | None, watch: OpeningWatch) -> OpenedPair[OpenModels]:
        """Open the chosen models, None for the default ones; raises LocalSpecError."""

    def choices(self, open_now: Sequence[ModelInfo]) -> Iterable[LocalTarget | RankedPair]:
        """Return other models that could be opened; raises LocalSpecError."""

    def check_tuning(self) -> None:
        """Raise `UserError`, with the way out, where models that open here cannot be tuned from here."""

    def at_home(self) -> ModelsOpener | None:
        """Return the opener of this machine alone, to take this one's place; None where this is the one."""


class LocalOpener:
    """Opens models on this machine, and on the devices that other machines share if it `uses_rpc`."""

    place = ""
    offers_choices = True

    def __init__(self, request: PairRequest, *, uses_rpc: bool = True) -> None:
        self._request = request
        self._uses_rpc = uses_rpc
        self._usual: Path | None = None  # the target that opens without a choice
        self._opened: dict[Path, None] = {}  # files, perhaps outside of the folders that are searched

    def open(self, choice: ModelChoice | None, watch: OpeningWatch) -> OpenedPair[OpenModels]:
        """Open the models in a child process."""
        if not self._uses_rpc:
            rpc.use("")
        if choice is None:
            request = with_config(self._request)
        else:
            watch.check([path for path in (choice.target, choice.draft) if path is not None])
            keeps_template = choice.target == self._usual
            request = with_choice(self._request, choice, keeps_template=keeps_template)
        files = find_files(request, watch)
        if choice is None:
            self._usual = files.target.absolute()
        planned = plan_to_open(request, files, via=None, report=watch.report)
        plan = replace(planned.plan, remembers_costs=True, seats=PARALLEL)
        for note in plan.notes:
            watch.report(note)
        models = open_in_worker(plan, watch.on_progress, watch.on_log)
        models.keep_conversations(saved_bytes(), read_config(config_dir() / "config.toml").cache_disk)
        self._opened |= {model.path: None for model in (models.target, models.draft) if model is not None}
        return OpenedPair(models, planned.tuned_for, request)

    def choices(self, open_now: Sequence[ModelInfo]) -> Iterable[LocalTarget | RankedPair]:
        """Yield the models on disk, those that were open before included, and those of the catalogue."""
        from localspec.app.recommendation import choices

        return choices(open_now, tuple(self._opened))

    def check_tuning(self) -> None:
        """Do nothing: models opened here can be tuned here."""

    def at_home(self) -> ModelsOpener | None:
        """Return an opener without the devices of other machines, None where none are used."""
        if not self._uses_rpc or not rpc.named():
            return None
        return LocalOpener(self._request.without_remote_devices(), uses_rpc=False)


class SshOpener:
    """Opens models on another machine, by `localspec serve` there; `words` are flags as they were typed.

    The request is for this machine, and is not looked into before the models come home: its paths may be
    those of the other one.
    """

    offers_choices = True

    def __init__(self, host: str, words: Sequence[str], program: str, request: PairRequest) -> None:
        self.place = host
        self._words = words
        self._program = program
        self._request = request
        self._usual: Path | None = None  # the target that opens without a choice
        self._models: AttachedModels | None = None

    def open(self, choice: ModelChoice | None, watch: OpeningWatch) -> OpenedPair[OpenModels]:
        """Start a server there and ask it."""
        from localspec.inference.remote import RemoteModels

        words = [*self._words]
        if choice is not None:
            words += ["-m", str(choice.target), "-md", str(choice.draft or "")]
            if self._request.chat_template is not None and choice.target != self._usual:
                words = _without_template(words)  # which was meant for another model

        def report(line: str) -> None:
            watch.report(line, self.place)

        self._models = RemoteModels(self.place, words, self._program, watch.on_progress, report)
        if choice is None:
            self._usual = self._models.target.path
        return OpenedPair(self._models, _tuned_there(self._models), None)

    def choices(self, open_now: Sequence[ModelInfo]) -> Iterable[LocalTarget | RankedPair]:
        """Return the models on the disk there."""
        from localspec.app.recommendation import LocalTarget

        return () if self._models is None else self._models.choices(tuple[LocalTarget, ...])

    def check_tuning(self) -> None:
        """Raise `UserError`: tuning measures the machine that it runs on."""
        raise _elsewhere(f"there: `localspec tune --host {self.place}`")

    def at_home(self) -> ModelsOpener | None:
        """Return the opener of this machine."""
        return LocalOpener(self._request.without_remote_devices(), uses_rpc=False)


class AttachedOpener:
    """Uses the models of a running `localspec serve`."""

    place = ""
    offers_choices = False

    def __init__(self, address: str, key: str | None) -> None:
        self._address = address
        self._key = key

    def open(self, choice: ModelChoice | None, watch: OpeningWatch) -> OpenedPair[OpenModels]:
        """Connect to the server's models."""
        from localspec.inference.attached import AttachedModels, Server

        models = AttachedModels(Server(self._address, self._key))
        return OpenedPair(models, _tuned_there(models), None)

    def choices(self, open_now: Sequence[ModelInfo]) -> Iterable[LocalTarget | RankedPair]:
        """Return nothing: the server's models are everybody's."""
        return ()

    def check_tuning(self) -> None:
        """Raise `UserError`: tuning measures the machine that it runs on."""
        raise _elsewhere("on the machine of the server")

    def at_home(self) -> ModelsOpener | None:
        """Return None: who attaches opens nothing."""
        return None


def _without_template(words: Sequence[str]) -> list[str]:
    """Return the words of a command line without the chat template that they name."""
    kept = list[str]()
    flags = ("--chat-template-file", "--chat-template")
    for before, word in zip(("", *words), words, strict=False):
        if word.partition("=")[0] not in flags and before not in flags:
            kept.append(word)
    return kept


def _elsewhere(where: str) -> UserError:
    return UserError("these models are on another machine", f"tune them {where}")


def _tuned_there(models: AttachedModels) -> TunedLookup:
    def tuned_for(task: TaskType) -> TunedChoice | None:
        found = models.recall(task)
        return None if found is None else TunedChoice(found.settings, found.reason)

    return tuned_for


class ChatModels:
    """The models of a chat screen: who opens them, and those that were opened last."""

    def __init__(self, opener: ModelsOpener, profiles: Profiles) -> None:
        self.opener = opener
        self._profiles = profiles
        self.opened: OpenedPair[OpenModels] | None = None

    def open(self, choice: ModelChoice | None, watch: OpeningWatch) -> OpenedPair[OpenModels]:
        """Open models, as `ModelsOpener.open` does, and remember them."""
        self.opened = self.opener.open(choice, watch)
        return self.opened

    def choices(self, open_now: Sequence[ModelInfo]) -> Iterable[LocalTarget | RankedPair]:
        """Return other models that could be opened; raises LocalSpecError."""
        return self.opener.choices(open_now)

    def use_local_models(self) -> None:
        """Open models on this machine from now on."""
        self.opener = self.opener.at_home() or self.opener

    def tuned_for(self, task: TaskType) -> TunedChoice | None:
        """Return the tuned settings of a task for the open models."""
        return None if self.opened is None else self.opened.tuned_for(task)

    def check_tuning(self) -> None:
        """Raise `UserError` where the models that are open cannot be tuned from here."""
        self.opener.check_tuning()

    def tune(self, choice: TuneChoice, stop: StopSignal, on_log: OnLog) -> Iterator[TuneEvent]:
        """Tune the models that are open, and yield what the run says; raises `UserError`."""
        from localspec.app.tuning import plan_of, plan_to_tune, profiles_of, run

        request = self._tunable()
        pair = plan_to_tune(request, OpeningWatch())
        plan = plan_of(pair, profiles_of(self._profiles, choice.tasks), choice, request.fixed)
        yield from run(plan, stop, on_log)

    def run_was_stopped(self) -> bool:
        """Return whether the last run on these models can continue; raises LocalSpecError."""
        from localspec.app.tuning import stopped_profiles

        request = None if self.opened is None else self.opened.request
        if request is None:
            return False
        plan = as_asked(find_files(request, OpeningWatch()), request)
        return bool(stopped_profiles(self._profiles, plan))

    def _tunable(self) -> PairRequest:
        self.check_tuning()
        if self.opened is None or self.opened.request is None:
            raise UserError("no models are open that could be tuned", "open them first: /model")
        return self.opened.request
