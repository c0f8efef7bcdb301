"""Tuned settings for other programs: as flags of llama.cpp's server, and as part of a profile.

The flags are those of the llama.cpp that this program is built with. What they cannot say stands in comments.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from localspec.benchmark.llama_server import draft_flags, target_flags
from localspec.decoding.drafters.prompt_lookup import SHORTEST_MATCH
from localspec.errors import UserError
from localspec.types import EngineSettings, ModelOptions

ExportForm = Literal["llama-server", "preset.ini", "llama-swap", "toml"]
SERVER = "llama-server"

Flags = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Exported:
    """Settings for a task, and the models as they are opened for it; `name` is what to call them."""

    name: str
    settings: EngineSettings
    target: ModelOptions
    draft: ModelOptions | None = None
    draft_threads: int | None = None


def export(form: ExportForm, exported: Exported) -> str:
    """Return the settings as lines of text; raises UserError if a path cannot be written."""
    notes = list(_notes(exported))
    match form:
        case "llama-server":
            return _command(exported, notes)
        case "preset.ini":
            return _section(exported, notes)
        case "llama-swap":
            return _swap_block(exported, notes)
        case "toml":
            return _speculation(exported.settings)


def flags(exported: Exported) -> Flags:
    """Return llama-server's flags with their values."""
    drafting = exported.settings.mode in ("sd", "ssd") and exported.draft is not None
    found = [*target_flags(exported.target), ("--parallel", "1")]
    if drafting and exported.draft is not None:
        found += draft_flags(exported.draft, exported.draft_threads or exported.draft.threads)
    for _, value in found:
        if not value.isprintable():
            raise UserError(
                f"the path {value!r} cannot be written to a file", "rename the file or its folder"
            )
    return [*found, *_speculation_flags(exported.settings)]


def _speculation_flags(settings: EngineSettings) -> Iterator[tuple[str, str]]:
    match settings.mode:
        case "off":
            yield "--spec-type", "none"
        case "ngram":
            yield "--spec-type", "ngram-simple"
            yield "--spec-ngram-simple-size-n", str(SHORTEST_MATCH)
            yield "--spec-ngram-simple-size-m", str(settings.draft_length)
        case "sd" | "ssd":
            yield "--spec-type", "draft-simple"
            yield "--spec-draft-n-max", str(settings.draft_length)
            if settings.min_confidence is not None:
                yield "--spec-draft-p-min", f"{settings.min_confidence:g}"


def _notes(exported: Exported) -> Iterator[str]:
    """Yield what the flags cannot say, a line each."""
    settings = exported.settings
    if settings.mode == "off":
        yield "drafting does not pay here: plain decoding"
        return
    if settings.mode == "ssd":
        yield "llama.cpp does not draft ahead (ssd): here the target waits for each draft (sd)"
        yield (
            f"no counterpart: fan-out of {settings.fan_out_budget} ({settings.fan_out_shape}), "
            f"Saguaro's C of {settings.saguaro_c:g}"
        )
    if settings.mode != "ngram" and settings.fallback == "ngram":
        yield "no counterpart: repetitions of the text instead of a model's draft, and behind it"
    if settings.min_confidence is None:
        yield "no counterpart: drafts that end where measured costs say so; these go on to their full length"
    if settings.mode != "ngram" and settings.acceptance == "rejection":
        yield (
            "llama.cpp accepts a drafted token only where its own sampler picks the same; "
            f"no counterpart: rejection sampling with a draft temperature of {settings.draft_temperature:g}"
        )


def _command(exported: Exported, notes: Sequence[str]) -> str:
    lines = [SERVER, *(f"{flag} {shlex.quote(value)}" for flag, value in flags(exported))]
    return "".join(f"# {note}\n" for note in notes) + " \\\n  ".join(lines) + "\n"


def _section(exported: Exported, notes: Sequence[str]) -> str:
    """Return a section for `llama-server --models-preset`; its format knows no quotes."""
    lines = [f"; {note}" for note in notes]
    lines.append(f"[{exported.name.replace(']', ')')}]")
    for flag, value in flags(exported):
        if value != value.strip() or any(mark in value for mark in ";#"):
            raise UserError(
                f"`{value}` cannot be written in preset.ini, where ; and # begin a comment",
                "rename the file or its folder, or export llama-server",
            )
        lines.append(f"{flag.removeprefix('--')} = {value}")
    return "\n".join(lines) + "\n"


def _swap_block(exported: Exported, notes: Sequence[str]) -> str:
    """Return a block of llama-swap's configuration, which splits the command like a shell."""
    lines = [f"# {note}" for note in notes]
    lines += ["models:", f"  {json.dumps(exported.name)}:", "    cmd: |"]
    lines.append(f"      {SERVER} --port ${{PORT}}")
    for flag, value in flags(exported):
        if "${" in value:
            raise UserError(
                f"`{value}` cannot be written for llama-swap, where ${{ begins the name of a macro",
                "rename the file or its folder, or export llama-server",
            )
        lines.append(f"      {flag} {shlex.quote(value)}")
    return "\n".join(lines) + "\n"


def _speculation(settings: EngineSettings) -> str:
    """Return the [speculation] table of a profile."""
    lines = ["[speculation]"]
    for name, value in asdict(settings).items():
        if value is None:
            lines.append(f"# {name} is left to measured costs")
        else:
            lines.append(f"{name} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"
