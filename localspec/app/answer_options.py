"""How answers are to be written: as the flags say, then the profile, as it suits the model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from localspec.chat.auto import AUTO, Asked, followed, with_auto
from localspec.errors import UserError
from localspec.storage.paths import config_dir
from localspec.storage.profiles import DEFAULT_PROFILE, Profile, files_in, profile
from localspec.types import Sampling

TemplateVariables = tuple[tuple[str, bool | int | float | str], ...]


@dataclass(frozen=True, slots=True)
class SamplingFlags:
    """The fields of `Sampling` that were given as flags; None for the others."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    penalty_window: int | None = None

    def apply(self, sampling: Sampling) -> Sampling:
        """Return a sampling in which what was given replaces what was there."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(sampling, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How each answer is written; `profiles` are those that the profile `auto` may follow."""

    system: str
    profile: Profile
    flags: SamplingFlags
    max_tokens: int | None
    stop: tuple[str, ...]
    seed: int | None
    template_variables: TemplateVariables
    profiles: tuple[Profile, ...] = ()

    @property
    def sampling(self) -> Sampling:
        """Return how tokens are picked: as the flags say, then the profile."""
        return self.flags.apply(self.profile.sampling)

    def on(self, target: Path) -> AnswerOptions:
        """Return the options for answers of a target."""
        from localspec.models.default_pair import suited  # only looked for when wanted

        profiles = tuple(suited(profile, target) for profile in self.profiles)
        return replace(self, profile=suited(self.profile, target), profiles=profiles)

    def under(self, questions: Sequence[str]) -> AnswerOptions:
        """Return the options for an answer to the last of these questions: `auto` follows another profile."""
        known = {profile.name: profile for profile in self.profiles}
        return replace(self, profile=followed(self.profile, known, [Asked(text) for text in questions]))


def answer_options(args: argparse.Namespace) -> AnswerOptions:
    """Return how answers are to be written: as the flags say, then the profile; raises UserError."""
    if "" in args.stop:
        raise UserError("--stop got an empty text", "leave it out, or name the text that ends the answer")
    system, profiles = system_given(args), _profiles(args.profile)
    if system is None and not getattr(args, "no_chat", False):
        system = profiles[0].system_prompt
    return AnswerOptions(
        system=system or "",
        profile=profiles[0],
        flags=sampling_given(args),
        max_tokens=args.predict,
        stop=tuple(args.stop),
        seed=args.seed,
        template_variables=args.chat_template_kwargs,
        profiles=profiles,
    )


def sampling_given(args: argparse.Namespace) -> SamplingFlags:
    """Return the sampling flags that were given."""
    return SamplingFlags(**{field.name: getattr(args, field.name) for field in fields(SamplingFlags)})


def system_given(args: argparse.Namespace) -> str | None:
    """Return the system prompt that was given, None if none was; raises UserError."""
    return _system_prompt(args.system_prompt, args.system_prompt_file)


def _profiles(name: str | None) -> tuple[Profile, ...]:
    """Return the profile of that name, and those that it may follow; without a name one that asks nothing."""
    folder = config_dir() / "profiles"
    if name is None:
        return (Profile(DEFAULT_PROFILE, "General", "", "dialogue", "", Sampling(), folder),)
    if name != AUTO or AUTO in files_in(folder):
        return (profile(name, folder),)
    *others, auto = with_auto((profile(DEFAULT_PROFILE, folder), profile("coding", folder)))
    return (auto, *others)


def _system_prompt(text: str | None, file: str | None) -> str | None:
    if text is not None and file is not None:
        raise UserError("-sys and -sysf both give a system prompt", "keep one of them")
    if file is None:
        return text
    try:
        return Path(file).read_text(encoding="utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"system prompt file `{file}` is not UTF-8 text: byte {error.object[error.start]:#04x} "
            f"at offset {error.start}",
            "save it as UTF-8",
        ) from None
    except OSError as error:
        raise UserError(f"cannot read system prompt file `{file}`: {error.strerror}") from None
