"""Profiles: what the assistant is told and how it picks its words, for one kind of work each.

A profile is a TOML file; its name is that of the file without `.toml`. `general.toml` documents every field.
Files of the user's own go before shipped ones of the same name. Owns reading and checking, not applying.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import cast, get_args

from localspec.errors import UserError
from localspec.tables import Range, Table, read_table
from localspec.types import Sampling, TaskType

SAMPLING_RANGES: Mapping[str, Range] = MappingProxyType(
    {
        "temperature": (0, 100),
        "top_k": (0, 1_000_000),
        "top_p": (0, 1),
        "min_p": (0, 1),
        "repetition_penalty": (0.01, 10),
        "presence_penalty": (-10, 10),
        "frequency_penalty": (-10, 10),
        "penalty_window": (0, 1_000_000),
    }
)
"""The least and the largest value of every field of `Sampling`."""

DEFAULT_PROFILE = "general"
_FIELDS = ("title", "description", "task", "system_prompt", "sampling")
_LONGEST_TITLE = 40  # it has to fit a status line


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to be assisted."""

    name: str
    title: str
    description: str
    task: TaskType
    system_prompt: str
    sampling: Sampling
    path: Path


@dataclass(frozen=True, slots=True)
class Profiles:
    """The profiles that can be used, and what is wrong with the others.

    Where a user's own file is broken, the shipped profile of that name is used.
    """

    good: tuple[Profile, ...]
    problems: tuple[UserError, ...] = ()

    def __iter__(self) -> Iterator[Profile]:
        return iter(self.good)

    def named(self, name: str) -> Profile:
        """Return the profile of that name; raises UserError with the closest ones."""
        for profile in self.good:
            if profile.name == name:
                return profile
        raise _unknown(name, [profile.name for profile in self.good])


def profiles(user_folder: Path) -> Profiles:
    """Read the shipped profiles and those in a user's folder: the usual one first, then by name."""
    good: list[Profile] = []
    problems: list[UserError] = []
    shipped, own = _files(_shipped_folder()), {}
    try:
        own = _files(user_folder)
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
    files = _files(_shipped_folder()) | _files(user_folder)
    if name not in files:
        raise _unknown(name, list(files))
    return read_profile(files[name])


def read_profile(path: Path) -> Profile:
    """Read a profile; raises UserError that names the line at fault."""
    table = read_table(path)
    table.allow(_FIELDS)
    for key in ("title", "task"):
        table.require(key)
    title = table.line("title")
    if not 0 < len(title.strip()) <= _LONGEST_TITLE:
        table.complain("title", f"`title` has to have 1 to {_LONGEST_TITLE} characters")
    return Profile(
        name=path.stem,
        title=title.strip(),
        description=table.line("description").strip(),
        task=cast("TaskType", table.choice("task", get_args(TaskType), "")),
        system_prompt=table.text("system_prompt").strip("\n"),
        sampling=_sampling(table.table("sampling")),
        path=path,
    )


def _sampling(table: Table) -> Sampling:
    table.allow(tuple(SAMPLING_RANGES))
    limits, usual = SAMPLING_RANGES, Sampling()
    return Sampling(
        temperature=table.number("temperature", limits["temperature"], usual.temperature),
        top_k=table.whole("top_k", limits["top_k"], usual.top_k),
        top_p=table.number("top_p", limits["top_p"], usual.top_p),
        min_p=table.number("min_p", limits["min_p"], usual.min_p),
        repetition_penalty=table.number(
            "repetition_penalty", limits["repetition_penalty"], usual.repetition_penalty
        ),
        presence_penalty=table.number("presence_penalty", limits["presence_penalty"], usual.presence_penalty),
        frequency_penalty=table.number(
            "frequency_penalty", limits["frequency_penalty"], usual.frequency_penalty
        ),
        penalty_window=table.whole("penalty_window", limits["penalty_window"], usual.penalty_window),
    )


def _files(folder: Path) -> dict[str, Path]:
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix == ".toml")
    except FileNotFoundError:  # most users have no folder of their own
        return {}
    except OSError as error:
        raise UserError(f"cannot read the folder of profiles {folder}: {error.strerror}") from None
    return {path.stem: path for path in found if not path.name.startswith(".")}


def _shipped_folder() -> Path:
    package = Path(__file__).parent
    installed = package / "_profiles"
    return installed if installed.is_dir() else package.parent / "profiles"


def _unknown(name: str, names: list[str]) -> UserError:
    close = get_close_matches(name, names, n=1)
    meant = f"; did you mean `{close[0]}`?" if close else ""
    return UserError(f"there is no profile `{name}`{meant}", f"profiles: {', '.join(sorted(names))}")
