"""A set-up of this machine: which models to open, where they are placed, and the configuration to write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localspec.app.fetching import files_of
from localspec.app.opening import Reporter, with_moved
from localspec.app.recommendation import RankedPair, find_target, ranking
from localspec.errors import PairingError, UnavailableError, UnreachableError, UserError
from localspec.hardware.device_info import Machine
from localspec.hardware.machine import Progress, known_machine
from localspec.hardware.memory.needs import context_size
from localspec.hardware.placement.candidates import Placement
from localspec.hardware.placement.place import lines, place
from localspec.models.catalogue import shipped
from localspec.models.default_pair import default_pair, nameable, on_this_computer
from localspec.models.names import Reference, parse
from localspec.models.pair_request import PairRequest
from localspec.models.pairing import may_serve
from localspec.models.shape import read_shape
from localspec.storage.config import Edit, models_table, prepare, read_config
from localspec.types.request import TaskType

Models = tuple[Path | None, Path | None]  # target and draft; without a target the default pair
BUNDLED: Models = (None, None)
Check = Callable[[Sequence[Path]], None]
Download = Callable[[Reference], Path]


@dataclass
class Setup:
    """What has been chosen and found so far; `may_retry` says that a failed download can be tried again."""

    config: Path
    task: TaskType | None = None
    may_retry: bool = True
    models: Models | None = None  # None keeps those of the configuration
    option: RankedPair | None = None
    placement: Placement | None = None
    writes_context: bool = False
    written: bool = False
    _machine: Machine | None = None
    _measured: bool = False
    _edit: Edit | None = None
    _kept_context: int | None = None
    _unavailable: set[str] = field(default_factory=set)  # keys of models that cannot be downloaded
    _unreached: int = 0  # downloads that failed for want of an answer

    @property
    def machine(self) -> Machine:
        """Return the machine as it is known."""
        if self._machine is None:
            self._machine = known_machine(may_measure=False)
        return self._machine

    def measure(self, on_progress: Progress, *, again: bool) -> None:
        """Measure the machine, unless its rates are known and this is the first time."""
        self._machine = known_machine(again or self._measured, on_progress)
        self._measured = True

    def recommended(self, most: int) -> tuple[RankedPair, ...]:
        """Return the best pairs that can be used here."""
        usable = [
            option
            for option in ranking(self.machine, self.task)
            if option.placement
            and option.pair.target.kind != "bundled"
            and not self._unavailable.intersection(model.key for model in option.missing)
        ]
        return tuple(usable[:most])

    def choose(self, option: RankedPair, check: Check, report: Reporter) -> bool:
        """Choose a recommended pair; return whether some of its files have to be downloaded first."""
        self.option = option
        if option.missing:
            return True
        self.models = files_of(option, check, report)
        return False

    def choose_files(self, names: Sequence[str]) -> None:
        """Choose models on disk by name; raises UserError where they are not here, or no pair."""
        local = on_this_computer()
        paths = []
        for name in names:
            model = find_target(name, local, shipped())
            if model.path is None:
                hint = f"`localspec pull {model.name}` downloads it"
                raise UserError(f"{model.name} is not on this computer", hint)
            paths.append(model.path.absolute())
        if len(paths) == 1:
            self.models = paths[0], None
            return
        verdict = may_serve(*paths)
        if not verdict.fits:
            target, draft = names
            raise PairingError(
                f"{draft} cannot draft for {target}: {verdict.reason}", f"see `localspec pair {target}`"
            )
        self.models = paths[0], paths[1]

    def download(self, download: Download, check: Check, report: Reporter) -> None:
        """Download what the chosen pair lacks; raises UserError, and then no longer recommends the model."""
        assert self.option is not None
        got = {}
        for model in self.option.missing:
            try:
                got[model.key] = download(parse(model.reference))
            except UserError as error:
                if isinstance(error, UnavailableError) or not self.may_retry:
                    self._unavailable.add(model.key)
                self._unreached += isinstance(error, UnreachableError)
                if self._unreached > 1 and not self.may_retry:  # nothing else will come from there
                    self._unavailable |= {known.key for known in shipped().models if not known.packages}
                raise
        self.models = files_of(self.option.having(got), check, report)

    def plan(self) -> Sequence[str]:
        """Place the chosen models, and return the plan in lines.

        The context is that of the configuration, if these models have as much.
        """
        target, draft = self.paths()
        draft_shape = None if draft is None else read_shape(draft)
        shape = read_shape(target)
        written = read_config(self.config).context
        self._kept_context = written if 0 < written <= shape.training_context else None
        wanted = PairRequest(context=self._kept_context)
        self.placement = place(self.machine, shape, draft_shape, wanted)
        return lines(self.placement, explain=False)

    def edit(self) -> Edit:
        """Prepare the change of the configuration."""
        context = self._context() if self.writes_context else None
        target, draft = nameable(*self._named())
        self._edit = prepare(self.config, models_table(target, draft, context))
        return self._edit

    @property
    def omits_draft(self) -> bool:
        """Return whether the draft model comes with LocalSpec, so that the configuration cannot name it."""
        target, draft = nameable(*self._named())
        return draft is None and self._named()[1] is not None and target is not None

    def write(self) -> bool:
        """Write the prepared change; return whether there was any."""
        assert self._edit is not None
        if self._edit.changes:
            self._edit.write()
            self.written = True
        return bool(self._edit.changes)

    def paths(self) -> tuple[Path, Path | None]:
        """Return the files that open after this set-up."""
        target, draft = self._named()
        return default_pair() if target is None else (target, draft)

    def _named(self) -> Models:
        """Return the models that the configuration is to name."""
        if self.models is not None:
            return self.models
        config = with_moved(read_config(self.config))
        return config.target, config.draft

    def _context(self) -> int | None:
        """Return the context to write: 0, the usual one, unless the plan has another; None keeps it."""
        if self.placement is None or self.placement.target.context == self._kept_context:
            return None
        planned = self.placement.target.context
        usual = context_size(0, read_shape(self.paths()[0]).training_context)
        return 0 if planned == usual else planned
