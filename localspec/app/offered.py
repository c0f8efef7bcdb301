"""The pairs that a server opens when a request names them: a table in config.toml, or the models on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from localspec import smollm2
from localspec.chat.answer_settings import SessionRequest
from localspec.demo import bundled_pair
from localspec.errors import ModelFileError, UserError
from localspec.gguf import Header, check_model_file, is_embedding_model, is_reranker, read_model
from localspec.models.default_pair import on_this_computer
from localspec.models.local import UNFINISHED, find_models, named
from localspec.models.names import stem_of
from localspec.models.pair_files import local_file
from localspec.models.pair_request import ModelChoice, PairRequest
from localspec.storage.config import NamedPair
from localspec.types.models import Pooling

EncoderKind = Literal["embeddings", "rerank"]
"""What a model is for that writes no text."""


@dataclass(frozen=True, slots=True)
class OfferedPair:
    """A pair that clients can name; with `finds_draft` the best draft model on disk belongs to it."""

    name: str
    request: PairRequest
    finds_draft: bool = False
    aliases: tuple[str, ...] = ()
    asked: SessionRequest | None = None  # settings of its answers, for what requests leave open
    parallel: int | None = None  # answers at once
    is_listed: bool = True


@dataclass(frozen=True, slots=True)
class OfferedEncoder:
    """A model for embeddings or for reranking that clients can name."""

    name: str
    path: Path
    kind: EncoderKind = "embeddings"
    is_listed: bool = True
    pooling: Pooling | None = None  # of embeddings; None: the file's own


Offered = OfferedPair | OfferedEncoder


@dataclass(frozen=True, slots=True)
class ModelSources:
    """Where a server finds its models: presets, and the `pairs` of config.toml or else models on disk.

    Those on disk are the models of a `folder`, without one all on this computer. They are not listed if they
    are among `hidden`, files that presets open.
    """

    presets: tuple[Offered, ...] = ()
    pairs: tuple[NamedPair, ...] = ()
    folder: Path | None = None
    hidden: tuple[Path, ...] = ()


def offered(
    request: PairRequest,
    sources: ModelSources,
    first: OfferedPair | None = None,
    target: Path | None = None,
) -> tuple[Offered, ...]:
    """Return the models that a server offers.

    The `first`, of a `target` on disk, goes before. All have the settings of `request`, those of a preset its
    own. Raises UserError for a folder, or a model for embeddings, that is missing.
    """
    found: dict[str, Offered] = {} if first is None else {first.name: first}
    from_table = sources.pairs and sources.folder is None
    others = _of_table(request, sources.pairs) if from_table else _on_disk(request, sources, target)
    for each in (*sources.presets, *others):
        found.setdefault(each.name, each)
    return tuple(found.values())


def name_of_file(target: Path) -> str:
    """Return the name of a model in `localspec models`, or that of its file."""
    real = os.path.realpath(target)
    same = (model.name for model in on_this_computer() if os.path.realpath(model.path) == real)
    return next(same, stem_of(target.name))


def in_folder(folder: Path, name: str) -> str:
    """Return the path of a model in a folder by its name there, the name itself if there is none."""
    model = named(name, find_models([folder], places=()))
    return name if model is None else str(model.path)


def _of_table(request: PairRequest, pairs: Sequence[NamedPair]) -> Iterator[Offered]:
    for pair in pairs:
        if pair.embeddings:
            yield OfferedEncoder(pair.name, local_file(pair.embeddings))
        elif pair.rerank:
            yield OfferedEncoder(pair.name, local_file(pair.rerank), "rerank")
        else:
            chosen = _choosing(request, pair.target, pair.draft)
            context = chosen.context if pair.context is None else pair.context
            yield OfferedPair(pair.name, replace(chosen, context=context))


def _on_disk(request: PairRequest, sources: ModelSources, first: Path | None) -> Iterator[Offered]:
    """Yield the models on disk, without those that only draft, and without the first one."""
    drafts = (bundled_pair()[1], smollm2.draft())
    taken = None if first is None else os.path.realpath(first)
    hidden = {os.path.realpath(path) for path in sources.hidden}
    folder = sources.folder
    for model in on_this_computer() if folder is None else find_models([folder], places=()):
        if model.kind != "model" or model.problem or model.path in drafts or model.name.endswith(UNFINISHED):
            continue
        if os.path.realpath(model.path) == taken:
            continue
        is_listed = os.path.realpath(model.path) not in hidden
        with suppress(ModelFileError):
            if (kind := encoder_kind(read_model(model.path))) is not None:
                yield OfferedEncoder(model.name, model.path, kind, is_listed)
                continue
            check_model_file(model.path)
            chosen = _choosing(request, str(model.path), "")
            yield OfferedPair(model.name, chosen, finds_draft=True, is_listed=is_listed)


def encoder(path: Path, kind: EncoderKind, pooling: Pooling | None = None) -> OfferedEncoder:
    """Return a model that writes no text by its file; raises UserError if it cannot be used for that."""
    header = read_model(path)
    if kind == "rerank" and not is_reranker(header):
        raise UserError(f"{header.name} has no head that ranks documents", "choose a reranking model")
    return OfferedEncoder(header.name, path, kind, pooling=pooling if kind == "embeddings" else None)


def encoder_kind(header: Header) -> EncoderKind | None:
    """Return the purpose of a model that writes no text, None for one that does."""
    if is_reranker(header):
        return "rerank"
    return "embeddings" if is_embedding_model(header) else None


def _choosing(request: PairRequest, target: str, draft: str) -> PairRequest:
    """Return a request for a target, and a draft model if one is named."""
    chosen = request.choosing(ModelChoice(Path(target), Path(draft) if draft else None))
    return replace(chosen, own_head=True)
