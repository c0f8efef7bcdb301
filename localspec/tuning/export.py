"""Tuned settings for other programs: as flags of llama.cpp's server, and as part of a profile.

The flags are those of the llama.cpp that this program is built with. Settings without a flag are in comments.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from localspec.benchmark.llama_server import draft_flags, target_flags
from localspec.decoding.drafters.prompt_lookup import SHORTEST_MATCH
from localspec.errors import UserError
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings

ExportForm = Literal["llama-server", "preset.ini", "llama-swap", "toml"]


@dataclass(frozen=True, slots=True)
class Exported:
    """Settings for a task, and the models as they are opened for it; `name` is what to call them."""

    name: str
    settings: EngineSettings
    target: ModelOptions
    draft: ModelOptions | None = None


def export(form: ExportForm, exported: Exported) -> str:
    """Return the settings as lines of text; raises UserError if a path or an override cannot be written."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # 40 ms

    found = [] if form == "toml" else flags(exported)
    for _, value in found:
        _check(form, value)
    templates = Environment(
        keep_trailing_newline=True,
        loader=FileSystemLoader(Path(__file__).parent),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    templates.filters |= {"json": json.dumps, "shell": shlex.quote}
    return templates.get_template("export.j2").render(
        form=form,
        name=exported.name,
        flags=found,
        settings=exported.settings,
        settings_by_name=asdict(exported.settings),
    )


def _check(form: ExportForm, value: str) -> None:
    """Raise UserError if a form cannot represent a flag's value."""
    if not value.isprintable():
        raise UserError(f"the path {value!r} cannot be written to a file", "rename the file or its folder")
    if form == "preset.ini" and (value != value.strip() or any(mark in value for mark in ";#")):
        raise UserError(
            f"`{value}` cannot be written in preset.ini, where ; and # begin a comment",
            "rename the file or its folder, or export llama-server",
        )
    if form == "llama-swap" and "${" in value:
        raise UserError(
            f"`{value}` cannot be written for llama-swap, where ${{ begins the name of a macro",
            "rename the file or its folder, or export llama-server",
        )


def flags(exported: Exported) -> Sequence[tuple[str, str]]:
    """Return llama-server's flags with their values; raises UserError as `target_flags` does."""
    found = [*target_flags(exported.target), ("--parallel", "1")]
    if exported.settings.mode in ("sd", "ssd") and exported.draft is not None:
        found += draft_flags(exported.target, exported.draft, exported.draft.threads)
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
            yield "--spec-draft-n-max", str(settings.draft_length)
            if settings.min_confidence is not None:
                yield "--spec-draft-p-min", f"{settings.min_confidence:g}"
