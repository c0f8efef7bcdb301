"""What the flags ask of answers: sampling, system prompt, profile, limits."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields, replace
from pathlib import Path

from localspec.app.options import decoding
from localspec.chat.answer_settings import SessionRequest
from localspec.chat.auto import AUTO, with_auto
from localspec.errors import UserError
from localspec.storage.paths import config_dir
from localspec.storage.profiles import DEFAULT_PROFILE, Profile, files_in, profile
from localspec.types import Sampling


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


def session_request(args: argparse.Namespace) -> SessionRequest:
    """Return what the flags ask of answers; raises UserError."""
    if "" in args.stop:
        raise UserError("--stop got an empty text", "leave it out, or name the text that ends the answer")
    return SessionRequest(
        speculation=decoding(args).asked,
        sampling=sampling_given(args).apply,
        system=system_given(args),
        max_tokens=args.predict,
        stop=tuple(args.stop),
        seed=args.seed,
        template_variables=args.chat_template_kwargs,
    )


def sampling_given(args: argparse.Namespace) -> SamplingFlags:
    """Return the sampling flags that were given."""
    return SamplingFlags(**{field.name: getattr(args, field.name) for field in fields(SamplingFlags)})


def system_given(args: argparse.Namespace) -> str | None:
    """Return the system prompt that was given, None if none was; raises UserError."""
    return _system_prompt(args.system_prompt, args.system_prompt_file)


def profiles_named(name: str | None) -> tuple[Profile, ...]:
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
