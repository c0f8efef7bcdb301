"""What the steps of `localspec setup` do on this machine."""

from __future__ import annotations

import difflib
import textwrap
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

from localspec import units
from localspec.app import placing
from localspec.app.recommendation import Ranked
from localspec.cli import recommend
from localspec.cli.pair import find_target
from localspec.cli.setup.steps import Bundled, OnDisk, Pick, Recommended, Reply, State, Step, Working
from localspec.cli.shared.console import StatusLine, say
from localspec.cli.shared.opening import fetch
from localspec.errors import PairingError, UserError
from localspec.hardware.device_info import Machine
from localspec.hardware.machine import known_machine
from localspec.hardware.memory.needs import context_size
from localspec.hardware.placement.constraints import Placement, PlacementConstraints
from localspec.hardware.placement.place import place
from localspec.models.catalogue import shipped
from localspec.models.default_pair import default_pair, on_this_computer
from localspec.models.names import parse
from localspec.models.pairing import may_serve
from localspec.models.shape import read_shape
from localspec.storage.config import example, read_config
from localspec.storage.paths import PRIVATE_FILE, write_atomically


class Work(Working):
    """One setup: what is known by now of the machine, the models and their places."""

    def __init__(self, config: Path, task: str | None) -> None:
        self._config, self._task = config, task
        self._machine: Machine | None = None
        self._ranked: tuple[Ranked, ...] = ()
        self._models: tuple[Path, Path | None] | None = None  # None keeps those of the configuration
        self._is_bundled = False
        self._option: Ranked | None = None
        self._placement: Placement | None = None
        self._edit: Edit | None = None
        self._measured = False

    def show(self, step: Step, state: State) -> None:
        """Tell what a step is about, before its question."""
        if step == "choose":
            self._show_choices()
        elif step == "download" and self._option is not None:
            for model in self._option.missing:
                say(f"To download: {model.reference}, about {units.size(model.bytes)}, {model.licence}")
        elif step == "place":
            self._show_plan()
        elif step == "write":
            self._show_edit(state)

    def do(self, state: State, reply: Reply | Pick) -> bool:
        """Do what a reply asks for; return whether models have to be downloaded. Raises UserError."""
        match state.step, reply:
            case "measure", Reply.YES | Reply.AGAIN:
                with StatusLine() as status:
                    fresh = reply is Reply.AGAIN or self._measured
                    self._machine = known_machine(fresh, status.share_of("measuring"))
                self._measured = True
            case "choose", Recommended() | Bundled() | OnDisk() as pick:
                return self._choose(pick)
            case "choose", Reply.SKIP:
                self._option, self._models, self._is_bundled = None, None, False
            case "download", Reply.YES:
                self._download()
            case "download", Reply.SKIP:
                self._option, self._models = None, None
                say("Nothing is downloaded; the models of the configuration stay.")
        return False

    def write(self) -> bool:
        """Write the configuration, and return whether anything had to be."""
        assert self._edit is not None
        if not self._edit.changes:
            say(f"{self._edit.path} says all this already.")
            return False
        self._edit.write()
        say(f"Written: {self._edit.path}. `localspec` opens these models from now on.")
        return True

    def as_json(self) -> dict[str, object]:
        """Return what was set up, for programs."""
        target, draft = self._paths()
        return {
            "config": self._config,
            "target": target,
            "draft": draft,
            "bundled": self._is_bundled,
            "plan": None if self._placement is None else asdict(self._placement),
        }

    def _seen(self) -> Machine:
        if self._machine is None:
            self._machine = known_machine(may_measure=False)
        return self._machine

    def _show_choices(self) -> None:
        ranked = recommend.ranking(self._seen(), self._task)
        usable = [option for option in ranked if option.placement and option.pair.target.kind != "bundled"]
        self._ranked = tuple(usable[: recommend.SHOWN])
        self.options = len(self._ranked)
        for device in self._seen().devices:
            free, total = units.size(device.memory_free), units.size(device.memory_total)
            say(f"{device.id}: {device.name}, {free} of {total} free")
        say("Recommended for it:" if self._ranked else "Nothing in the catalogue fits it.")
        for number, option in enumerate(self._ranked, 1):
            say(f"{number}. {recommend.title(option)}")
            for reason in option.reasons:
                say(f"   {reason}")
        say(f"(The catalogue is of {shipped().date}; sizes are rounded, speeds expected.)")

    def _choose(self, pick: Pick) -> bool:
        self._option, self._models, self._is_bundled = None, None, False
        match pick:
            case Recommended(number):
                self._option = self._ranked[number - 1]
                if self._option.missing:
                    return True
                self._take(self._option, self._option.files)
            case Bundled():
                self._models, self._is_bundled = default_pair(), True
            case OnDisk(target, draft):
                self._models = _on_disk(target, draft)
        return False

    def _download(self) -> None:
        assert self._option is not None
        got = {model.key: fetch(parse(model.reference)) for model in self._option.missing}
        entries = zip(self._option.pair.models, self._option.files, strict=True)
        self._take(self._option, tuple(path or got.get(model.key) for model, path in entries))

    def _take(self, option: Ranked, files: Sequence[Path | None]) -> None:
        """Take the files of a pair; a draft that turns out not to fit stays out, with a word."""
        self._option = replace(option, files=tuple(files))
        target, draft = (*files, None)[:2]
        assert target is not None
        if draft is not None and not self._option.opens_draft:
            draft = None
        if draft is not None:
            verdict = may_serve(target, draft)
            if not verdict.fits:
                say(f"note: the catalogue is wrong about this pair, the draft stays out: {verdict.reason}")
                draft = None
        self._models = target.absolute(), None if draft is None else draft.absolute()

    def _paths(self) -> tuple[Path, Path | None]:
        if self._models is not None:
            return self._models
        config = read_config(self._config)
        return default_pair() if config.target is None else (config.target, config.draft)

    def _show_plan(self) -> None:
        target, draft = self._paths()
        draft_shape = None if draft is None else read_shape(draft)
        self._placement = place(self._seen(), read_shape(target), draft_shape, PlacementConstraints())
        for line in placing.lines(self._placement, explain=False):
            say(textwrap.fill(line, recommend.WIDTH, subsequent_indent="    "))

    def _show_edit(self, state: State) -> None:
        target, draft = self._models or (None, None)
        if self._models is None:
            config = read_config(self._config)
            target, draft = config.target, config.draft
        elif self._is_bundled:
            target, draft = None, None
        table = ModelsTable(target, draft, self._context(state, self._paths()[0]))
        self._edit = prepare(self._config, table)
        for line in self._edit.diff():
            say(line)
        if not self._edit.changes:
            say(f"{self._config} says all this already.")

    def _context(self, state: State, target: Path) -> int | None:
        """Return the context to write: 0, the usual one, unless the plan has another."""
        if not state.sizes or self._placement is None:
            return None
        planned = self._placement.target.context
        return 0 if planned == context_size(0, read_shape(target).training_context) else planned


def _on_disk(target: str, draft: str | None) -> tuple[Path, Path | None]:
    """Return the files of named models; raises UserError where they are not here, or no pair."""
    local = on_this_computer()
    paths = []
    for name in (target, draft) if draft else (target,):
        model = find_target(name, local, shipped())
        if model.path is None:
            hint = f"`localspec pull {model.name}` downloads it"
            raise UserError(f"{model.name} is not on this computer", hint)
        paths.append(model.path.absolute())
    if len(paths) == 1:
        return paths[0], None
    verdict = may_serve(*paths)
    if not verdict.fits:
        raise PairingError(
            f"{draft} cannot serve {target}: {verdict.reason}", f"see `localspec pair {target}`"
        )
    return paths[0], paths[1]


_MARK = "\ufeff"


@dataclass(frozen=True, slots=True)
class ModelsTable:
    """What [models] is to say; no target is the default pair, a context of None stays as it is."""

    target: Path | None
    draft: Path | None
    context: int | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a configuration file that has not been written."""

    path: Path
    old: str
    new: str
    existed: bool

    @property
    def changes(self) -> bool:
        """Tell whether there is anything to write."""
        return not self.existed or self.old != self.new

    def diff(self) -> Iterable[str]:
        """Return the change as lines with + and - in front."""
        old, new = (text.splitlines() if text else [] for text in (self.old, self.new))
        name = str(self.path)
        return difflib.unified_diff(old, new, name if self.existed else "nothing", name, lineterm="", n=2)

    def write(self) -> None:
        """Write the file in one step; raises StoreError and leaves the old one if that fails."""
        mode = self.path.stat().st_mode & 0o777 if self.existed else PRIVATE_FILE
        write_atomically(self.path, self.new, mode)


def prepare(path: Path, wanted: ModelsTable) -> Edit:
    """Return how a file, or the example where there is none, would be changed; raises UserError."""
    if not path.exists():
        return Edit(path, "", edited(example(), wanted), existed=False)
    read_config(path)  # complains with the line, while nothing has been touched
    with path.open(encoding="utf-8", newline="") as file:
        old = file.read()
    return Edit(path, old, edited(old, wanted), existed=True)


def edited(text: str, wanted: ModelsTable) -> str:
    """Return the text of a configuration with other models; all other values and comments stay."""
    import tomlkit  # 30 ms
    from tomlkit.exceptions import TOMLKitError

    mark, body = (_MARK, text[1:]) if text.startswith(_MARK) else ("", text)
    try:
        document = tomlkit.parse(body)
        if "models" not in document:
            if wanted.target is None and not wanted.context:
                return text
            if body.strip():
                document.add(tomlkit.nl())
            document.add("models", tomlkit.table())
        models = cast("dict[str, object]", document["models"])
        for key, value in _values(wanted).items():
            if value is None:
                models.pop(key, None)
            elif models.get(key, 0) != value:
                models[key] = value
        result = tomlkit.dumps(document)
    except TOMLKitError as error:
        raise UserError(
            f"the configuration cannot be edited: {error}", "set [models] in it by hand"
        ) from None
    if "\r\n" in body:
        result = result.replace("\r\n", "\n").replace("\n", "\r\n")
    _check(body, result, wanted)
    return mark + result


def _values(wanted: ModelsTable) -> dict[str, str | int | None]:
    values: dict[str, str | int | None] = {}
    for key, path in (("target", wanted.target), ("draft", wanted.draft)):
        values[key] = text = None if path is None else str(path)
        if text is not None and not text.isprintable():
            raise UserError(
                f"config.toml cannot name {text!r}: it holds a character that does not print",
                "give the file or its folder another name",
            )
    return values if wanted.context is None else values | {"context": wanted.context}


def _check(old: str, new: str, wanted: ModelsTable) -> None:
    """Make sure that the new text says what was wanted, and of everything else what the old one said."""
    before, after = (tomllib.loads(text.replace("\r\n", "\n")) for text in (old, new))
    models = {**before.pop("models", {}), **_values(wanted)}
    expected = {key: value for key, value in models.items() if value is not None}
    found = after.pop("models", {})
    if after != before or {"context": 0, **found} != {"context": 0, **expected}:
        raise UserError("the configuration is written in a way that cannot be edited safely",
                        "set [models] in it by hand")  # fmt: skip
