"""The pairs that a server opens when a request names them: a table in config.toml, or the models on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from localspec import smollm2
from localspec.demo import bundled_pair
from localspec.errors import ModelFileError
from localspec.gguf import check_model_file, is_embedding_model, read_model
from localspec.models.default_pair import on_this_computer
from localspec.models.local import UNFINISHED
from localspec.models.names import stem_of
from localspec.models.pair_files import local_file
from localspec.models.pair_request import ModelChoice, PairRequest
from localspec.storage.config import NamedPair


@dataclass(frozen=True, slots=True)
class OfferedPair:
    """A pair that clients can name; with `finds_draft` the best draft model on disk belongs to it."""

    name: str
    request: PairRequest
    finds_draft: bool = False


@dataclass(frozen=True, slots=True)
class OfferedEmbeddings:
    """A model for embeddings that clients can name."""

    name: str
    path: Path


Offered = OfferedPair | OfferedEmbeddings


def offered(
    request: PairRequest,
    pairs: Sequence[NamedPair],
    first: OfferedPair | None = None,
    target: Path | None = None,
) -> tuple[Offered, ...]:
    """Return the models that a server offers: the `pairs` of config.toml, or else the models on disk.

    The `first`, of a `target` on disk, goes before. All have the settings of `request`. Raises UserError for
    a model for embeddings that is missing.
    """
    others = _of_table(request, pairs) if pairs else _on_disk(request, target)
    found: dict[str, Offered] = {} if first is None else {first.name: first}
    for each in others:
        found.setdefault(each.name, each)
    return tuple(found.values())


def name_of_file(target: Path) -> str:
    """Return the name of a model in `localspec models`, or that of its file."""
    real = os.path.realpath(target)
    same = (model.name for model in on_this_computer() if os.path.realpath(model.path) == real)
    return next(same, stem_of(target.name))


def _of_table(request: PairRequest, pairs: Sequence[NamedPair]) -> Iterator[Offered]:
    for pair in pairs:
        if pair.embeddings:
            yield OfferedEmbeddings(pair.name, local_file(pair.embeddings))
        else:
            chosen = _choosing(request, pair.target, pair.draft)
            context = chosen.context if pair.context is None else pair.context
            yield OfferedPair(pair.name, replace(chosen, context=context))


def _on_disk(request: PairRequest, first: Path | None) -> Iterator[Offered]:
    """Yield the models on this computer, without those that only draft, and without the first one."""
    drafts = (bundled_pair()[1], smollm2.draft())
    taken = None if first is None else os.path.realpath(first)
    for model in on_this_computer():
        if model.kind != "model" or model.problem or model.path in drafts or model.name.endswith(UNFINISHED):
            continue
        if os.path.realpath(model.path) == taken:
            continue
        with suppress(ModelFileError):
            if is_embedding_model(read_model(model.path)):
                yield OfferedEmbeddings(model.name, model.path)
                continue
            check_model_file(model.path)
            yield OfferedPair(model.name, _choosing(request, str(model.path), ""), finds_draft=True)


def _choosing(request: PairRequest, target: str, draft: str) -> PairRequest:
    """Return a request for a target, and a draft model if one is named."""
    chosen = request.choosing(ModelChoice(Path(target), Path(draft) if draft else None))
    return replace(chosen, own_head=True)
