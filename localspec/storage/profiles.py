"""Profiles: the system prompt and the sampling for one task each.

A profile is a TOML file; its name is that of the file without `.toml`. `general.toml` documents every field.
The user's files override shipped ones of the same name. This module reads and checks them; decoding applies
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, cast

from localspec.errors import UserError, os_errors_as
from localspec.storage.paths import make_private_folder, write_atomically
from localspec.storage.toml_file import Changes, TomlTable, edited, read_table, read_written
from localspec.types.request import (
    Acceptance,
    DraftLength,
    DraftTemperature,
    EngineSettings,
    Fallback,
    FanOutBudget,
    FanOutShape,
    MinConfidence,
    Mode,
    SaguaroC,
    Sampling,
    TaskType,
    ThinkingBudget,
)
from localspec.values import Line

DEFAULT_PROFILE = "general"
RESERVED = ("auto",)  # not a profile, but the choice among them
_SAMPLING = re.compile(r"^\[sampling\]\n(?:[^\[\n].*\n|\n)*", re.MULTILINE)  # of a shipped profile
_NAME = re.compile(r"\w[\w-]{0,39}")
MIN_PROMPTS = 8  # fewer say too little about a kind of work
MIN_HELD_OUT = 4  # fewer make an interval that means nothing
_FIELDS = ("title", "description", "task", "system_prompt", "like", "thinking_budget", "summary_prompt",
           "sampling", "speculation", "tools", "tuning")  # fmt: skip
_LONGEST_TITLE = 40  # it has to fit a status line


@dataclass(frozen=True, slots=True)
class Speculation:
    """A profile's part of `EngineSettings`; None leaves a field to tuned or measured values."""

    mode: Mode | None = None
    draft_length: DraftLength | None = None
    fan_out_budget: FanOutBudget | None = None
    fan_out_shape: FanOutShape | None = None
    draft_temperature: DraftTemperature | None = None
    saguaro_c: SaguaroC | None = None
    acceptance: Acceptance | None = None
    min_confidence: MinConfidence | None = None
    fallback: Fallback | None = None

    @property
    def settled(self) -> dict[str, Any]:
        """Return the settings that are not left open, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def apply(self, settings: EngineSettings) -> EngineSettings:
        """Return the settings with the profile's values."""
        return replace(settings, **self.settled)


ToolGroup = Literal["files", "run", "web", "time", "calculate"]
"""Our own tools in groups: for files of the workspace, for commands, for pages of the web, ..."""


@dataclass(frozen=True, slots=True)
class ProfileTools:
    """A profile's groups of tools and its MCP servers, which models may call once they are switched on."""

    groups: tuple[ToolGroup, ...] = ()
    servers: tuple[Line, ...] = ()  # by the names that /tools shows
    on: bool = False

    @property
    def names_on(self) -> tuple[str, ...]:
        """Return the names of all that is on."""
        return (*self.groups, *self.servers) if self.on else ()


@dataclass(frozen=True, slots=True)
class TuningPrompts:
    """The tuner's prompts: some to find settings, others to confirm them."""

    prompts: tuple[str, ...]
    held_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile.

    `sampling` is complete; `settles` names its fields that the profile sets, and `own_sampling` those of them
    that the user set, not LocalSpec.
    """

    name: str
    title: str
    description: str
    task: TaskType
    system_prompt: str
    sampling: Sampling
    path: Path
    speculation: Speculation = Speculation()
    own_tuning: TuningPrompts | None = None
    own_sampling: tuple[str, ...] = ()
    settles: tuple[str, ...] = ()
    thinking_budget: ThinkingBudget | None = None
    summary_prompt: str = ""
    tools: ProfileTools = ProfileTools()

    def tuning_prompts(self) -> TuningPrompts:
        """Return the profile's own prompts, else those of the shipped profile for the same kind of work."""
        prompts = self.own_tuning or _shipped(self.task).own_tuning
        assert prompts is not None  # every shipped profile has its own
        return prompts


@dataclass(frozen=True, slots=True)
class Profiles:
    """The profiles that can be used, and what is wrong with the others."""

    good: tuple[Profile, ...]  # the shipped one where a user's own file is broken
    problems: tuple[UserError, ...] = ()

    def __iter__(self) -> Iterator[Profile]:
        return iter(self.good)

    def named(self, name: str) -> Profile:
        """Return the profile of that name; raises UserError with the closest ones."""
        found = {profile.name: profile for profile in self.good}
        if name not in found:
            raise _unknown(name, list(found))
        return found[name]

    def for_task(self, task: TaskType) -> Profile:
        """Return the profile for a task, preferably one with a shipped name."""
        shipped = shipped_files()
        fitting = [known for known in self.good if known.task == task]
        return min(fitting, key=lambda known: known.name not in shipped, default=None) or _shipped(task)


def profiles(user_folder: Path) -> Profiles:
    """Read the shipped profiles and those in a user's folder: the default one first, then by name."""
    good: list[Profile] = []
    problems: list[UserError] = []
    shipped = shipped_files()
    own = {}
    try:
        own = files_in(user_folder)
    except UserError as error:
        problems.append(error)
    for name in sorted({*shipped, *own}, key=lambda name: (name != DEFAULT_PROFILE, name)):
        for path in (own.get(name), shipped.get(name)):
            if path is None:
                continue
            try:
                good.append(read_profile(path))
            except UserError as error:
                problems.append(error)
            else:
                break
    return Profiles(tuple(good), tuple(problems))


def profile(name: str, user_folder: Path) -> Profile:
    """Return one profile; raises UserError if there is none of that name or its file is broken."""
    return read_profile(profile_file(name, user_folder))


def profile_file(name: str, user_folder: Path) -> Path:
    """Return the file of a profile, the user's own before a shipped one; raises UserError without any."""
    files = shipped_files() | files_in(user_folder)
    if name not in files:
        raise _unknown(name, list(files))
    return files[name]


def shipped_files() -> dict[str, Path]:
    """Return the files of the profiles that come with LocalSpec, by name."""
    return files_in(_shipped_folder())


def files_in(folder: Path) -> dict[str, Path]:
    """Return the files of profiles in a folder, which may be missing, by name; raises UserError."""
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix == ".toml")
    except FileNotFoundError:  # most users have no folder
        return {}
    except OSError as error:
        raise UserError(f"cannot read the folder of profiles {folder}: {error.strerror}") from None
    return {path.stem: path for path in found if not path.name.startswith(".")}


def read_profile(path: Path) -> Profile:
    """Read a profile; raises UserError that names the line at fault."""
    table = read_table(path)
    table.allow(_FIELDS)
    for key in ("title", "task"):
        table.require(key)
    title = table.line("title")
    if not 0 < len(title.strip()) <= _LONGEST_TITLE:
        table.complain("title", f"`title` has to have 1 to {_LONGEST_TITLE} characters")
    own = table.table("sampling").fields_of(Sampling)
    sampling = _sampling_of(table) | own
    return Profile(
        name=path.stem,
        title=title.strip(),
        description=table.line("description").strip(),
        task=cast("TaskType", table.value("task", TaskType, "")),
        system_prompt=table.value("system_prompt", str, "").strip("\n"),
        sampling=Sampling(**sampling),
        path=path,
        speculation=Speculation(**table.table("speculation").fields_of(Speculation)),
        tools=ProfileTools(**table.table("tools").fields_of(ProfileTools)),
        own_tuning=_tuning(table.table("tuning")) if "tuning" in table else None,
        own_sampling=() if path.parent == _shipped_folder() else tuple(own),
        settles=tuple(sampling),
        thinking_budget=table.value("thinking_budget", ThinkingBudget, None),
        summary_prompt=table.value("summary_prompt", str, "").strip(),
    )


def _sampling_of(table: TomlTable) -> dict[str, Any]:
    """Return the sampling that a profile takes over from the shipped one that it is like."""
    like = table.line("like")
    shipped = shipped_files()
    if not like:
        return {}
    table.expect("like", like, shipped, "built-in profile")
    return read_table(shipped[like]).table("sampling").fields_of(Sampling)


def own_copy(name: str, folder: Path) -> bytes:
    """Return the text of a profile as one of the user's own.

    The sampling of a shipped one becomes a comment beside a reference to it: numbers in a user's file go
    before what the maker of a model recommends. Raises UserError.
    """
    path = profile_file(name, folder)
    data = read_written(path)
    if path.parent != _shipped_folder() or not read_profile(path).settles:
        return data
    text = _SAMPLING.sub(
        lambda found: re.sub(r"^(?=\w)", "# ", found[0], flags=re.MULTILINE), data.decode("utf-8")
    )
    return edited(text, {"like": name}).encode()


def copy_profile(name: str, new: str, folder: Path, title: str = "") -> Path:
    """Copy a profile to the user's own under a new name, and a title if one is given; raises UserError."""
    if not _NAME.fullmatch(new):
        raise UserError(f"`{new}` cannot be the name of a profile", "use letters, digits, - and _")
    if new.lower() in RESERVED:
        raise UserError(f"`{new}` cannot be the name of a profile: it means to choose one for each message")
    taken = {own.casefold(): path for own, path in files_in(folder).items()}  # some disks ignore case
    if new.casefold() in taken:
        raise UserError(f"there is a profile `{new}` of your own already: {taken[new.casefold()]}")
    data = own_copy(name, folder)
    path = folder / f"{new}.toml"
    write_own(path, edited(data.decode("utf-8"), {"title": title}).encode() if title else data)
    return path


def change_profile(name: str, changes: Changes, folder: Path) -> None:
    """Change values in the user's own file of a profile, which is copied from the shipped one if need be.

    Raises UserError and StoreError, and leaves the file alone then.
    """
    read_profile(profile_file(name, folder))  # complains with the line
    text = own_copy(name, folder).decode("utf-8")
    write_own(folder / f"{name}.toml", edited(text, changes).encode())


def write_own(path: Path, data: bytes) -> None:
    """Write a profile of the user's own; raises UserError and StoreError."""
    with os_errors_as(f"cannot make the folder `{path.parent}`"):
        make_private_folder(path.parent)
    write_atomically(path, data)


def _tuning(table: TomlTable) -> TuningPrompts:
    table.allow(("prompts", "held_out"))
    seen: dict[str, str] = {}
    prompts = _prompts(table, "prompts", MIN_PROMPTS, seen)
    return TuningPrompts(prompts, _prompts(table, "held_out", MIN_HELD_OUT, seen))


def _prompts(table: TomlTable, key: str, least: int, seen: dict[str, str]) -> tuple[str, ...]:
    """Return the prompts under a key; `seen` maps those before to their keys."""
    table.require(key)
    found = tuple(prompt.strip() for prompt in table.texts(key))
    for at, prompt in enumerate(found):
        if not prompt:
            table.complain(key, f"a prompt in `{key}` is empty", item=at)
        if prompt in seen:
            table.complain(key, f"this prompt is already in `{seen[prompt]}`", item=at)
        seen[prompt] = key
    if len(found) < least:
        table.complain(key, f"`{key}` needs at least {least} prompts, not {len(found)}")
    return found


def _shipped(task: TaskType) -> Profile:
    return next(known for known in map(read_profile, shipped_files().values()) if known.task == task)


def _shipped_folder() -> Path:
    installed = Path(__file__).parents[1] / "_profiles"
    return installed if installed.is_dir() else installed.parents[1] / "profiles"


def _unknown(name: str, names: list[str]) -> UserError:
    close = get_close_matches(name, names, n=1)
    meant = f"; did you mean `{close[0]}`?" if close else ""
    return UserError(f"there is no profile `{name}`{meant}", f"profiles: {', '.join(sorted(names))}")
