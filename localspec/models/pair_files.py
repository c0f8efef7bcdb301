"""From the names of models to files that are on disk and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from localspec.errors import UserError
from localspec.gguf import check_adapter_file, read_header
from localspec.models.default_pair import default_pair, on_this_computer
from localspec.models.names import Reference, file_named
from localspec.models.pair_request import ModelRequest, PairRequest
from localspec.types.models import FLOAT_TYPES, GivenTemplate
from localspec.types.request import Mode

_DRAFT_FLAGS = {
    "threads": "-td",
    "gpu_layers": "-ngld",
    "devices": "-devd",
    "kv_type_k": "-ctkd",
    "kv_type_v": "-ctvd",
    "experts_at_home": "-ncmoed",
    "overrides": "-otd",
}


class ModelSource(Protocol):
    """How a named model becomes a file that may be opened."""

    def download(self, reference: Reference) -> Path:
        """Download a model that is not on disk, and return its file; raises UserError."""

    def check(self, files: Sequence[Path]) -> None:
        """Check files from the Hub, unless that was done before; raises UserError."""


@dataclass(frozen=True, slots=True)
class PairFiles:
    """The files to open; the target's file as draft means the head in it.

    `chat_template` replaces the target's template; a path is its file. `notes` are for the user.
    """

    target: Path
    draft: Path | None = None
    chat_template: Path | GivenTemplate | None = None
    notes: tuple[str, ...] = ()


def find_pair(request: PairRequest, source: ModelSource) -> PairFiles:
    """Return the files that a request names, the default pair where it names none.

    Raises UserError for combinations without sense, and what `source` raises.
    """
    _check_request(request)
    asked = request.chat_template
    template = None if asked == "own" else read_chat_template(asked)  # before anything is downloaded
    target, draft = _paths(request, source)
    _check_adapters(request, target)
    draft, notes = _drafting(request, target, draft)
    _check_draft(request, has_draft=draft is not None)
    return PairFiles(target, draft, template, notes)


def _check_adapters(request: PairRequest, target: Path) -> None:
    """Raise ModelFileError for LoRA adapters that are none, or are for other models than the target."""
    for adapter in request.target.adapters:
        check_adapter_file(adapter.path, read_header(target).architecture)


def read_chat_template(given: Path | GivenTemplate | None) -> Path | GivenTemplate | None:
    """Return a chat template after checking that it has a text, or is known; raises `UserError`."""
    if given is not None:
        from localspec.llama.template.template_file import read_template  # and what starts processes: 10 ms

        read_template(given)
    return given


def _check_request(request: PairRequest) -> None:
    if request.draft.name and not request.target.name:
        raise UserError(
            "-md or -hfd names a draft model, but there is no target",
            "add -m FILE or -hf USER/REPO",
        )
    if request.micro_batch_size > request.batch_size:
        raise UserError(
            f"-ub/--ubatch-size {request.micro_batch_size} is larger than the batch of {request.batch_size}",
            "lower -ub or raise -b/--batch-size",
        )
    for asked, flag in ((request.target, "-ctv"), (request.draft, "-ctvd")):
        if request.flash is False and asked.kv_types[1] not in FLOAT_TYPES:
            raise UserError(
                f"{flag} {asked.kv_types[1]} needs flash attention, which -fa off forbids",
                "leave -fa out, or use f16 for values",
            )
    if request.mode == "ssd" and isinstance(request.target.name, Reference) and not request.draft.name:
        raise _no_draft(request.mode)  # a head in the file would not do either, so it need not be downloaded
    if request.file is not None and not isinstance(request.target.name, Reference):
        raise UserError("-hff names a file, but no repository", "name the repository too: -hf USER/REPO")


def _paths(request: PairRequest, source: ModelSource) -> tuple[Path, Path | None]:
    target = request.target.name
    draft = request.draft.name
    if not target:
        return default_pair()
    if request.file is not None and isinstance(target, Reference):
        target = replace(target, file=request.file)
    return _model_path(target, source), _model_path(draft, source) if draft else None


def _model_path(named: str | Reference, source: ModelSource) -> Path:
    if isinstance(named, Reference):
        from localspec.models.hub import resolve

        return resolve(named, source.download, source.check)
    return local_file(named, source)


def local_file(text: str, source: ModelSource | None = None) -> Path:
    """Return the file that a text means: its path, or its name in `localspec models`; raises UserError."""
    path = file_named(text)
    if path is not None:
        return path
    from localspec.models.local import named, no_such_model

    models = on_this_computer()
    model = named(text, models)
    if model is None:
        raise no_such_model(text, models)
    if source is not None:
        source.check(model.files)
    return model.path


def _drafting(request: PairRequest, target: Path, draft: Path | None) -> tuple[Path | None, tuple[str, ...]]:
    """Return the file to draft with, which may be the target's, and notes on departures from the request.

    Raises `UserError` if --spec-type requires another kind.
    """
    from localspec.models.heads import kind_of_draft, unsupported_draft

    if draft is None and not request.own_head:
        return None, ()
    notes: tuple[str, ...] = ()
    if draft is not None and (problem := unsupported_draft(draft)):
        draft = None
        notes = (problem,)
    wanted = request.draft_kind
    kind = kind_of_draft(target, draft)
    if draft is None and kind is not None and request.mode not in ("off", "ngram"):
        draft = target
    if kind is not None and request.mode == "ssd":
        notes += (
            "a head waits for its target's states and cannot draft ahead: mode sd is used instead of ssd",
        )
    if wanted is not None and draft is not None and wanted != (found := f"draft-{kind or 'simple'}"):
        raise UserError(f"--spec-type {wanted} does not fit {draft.name}: that is {found}", f"use {found}")
    return draft, notes


def _check_draft(request: PairRequest, *, has_draft: bool) -> None:
    if has_draft:
        if request.context and request.draft_length and request.draft_length >= request.context:
            raise UserError(
                f"--draft-length {request.draft_length} does not fit a context of {request.context} tokens",
                "lower --draft-length or raise -c/--ctx-size",
            )
        return
    if request.mode in ("sd", "ssd"):
        raise _no_draft(request.mode)
    for name, flag in _DRAFT_FLAGS.items():
        if getattr(request.draft, name) != getattr(ModelRequest(), name):
            raise UserError(f"{flag} needs a draft model", "add -md FILE")


def _no_draft(mode: Mode) -> UserError:
    return UserError(f"--mode {mode} needs a draft model", "add -md FILE, or use --mode ngram")
