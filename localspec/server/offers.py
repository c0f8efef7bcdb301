"""What a server opens: pairs of models that answer chats, and models for embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.app.offered import Offered, OfferedEmbeddings
from localspec.app.opener import OpeningWatch
from localspec.app.opening import (
    Growth,
    RoomyPair,
    find_files,
    plan_beside,
    plan_embeddings,
    saved_bytes,
    start_worker,
)
from localspec.app.recommendation import choice_named
from localspec.chat.answer_settings import THINKING
from localspec.errors import UserError
from localspec.gguf import TOKENS, read_model
from localspec.hardware.placement.room import HeldMemory
from localspec.inference.embedder import Embedder
from localspec.llama.template.template_file import read_template
from localspec.models.names import Reference
from localspec.models.pair_files import PairFiles
from localspec.models.pair_request import PairRequest
from localspec.server.queue import EngineQueue
from localspec.server.served import Kind, ModelDescription, OfferedModel, OnProgress, PreparedModel
from localspec.server.service import ChatService, EmbeddingService, ServerSettings
from localspec.storage.profiles import Profile
from localspec.thinking_tags import THINKING_TAGS
from localspec.types.models import ModelInfo, ModelOptions

if TYPE_CHECKING:
    from localspec.app.opener import OnLog
    from localspec.inference.worker.client import Worker


@dataclass(frozen=True, slots=True)
class PairSettings:
    """How a server opens its pairs; `saved` None: a share of free memory."""

    server: ServerSettings
    parallel: int
    saved: int | None = None  # bytes for KV caches of other conversations
    on_disk: int = 0  # bytes for the same
    grows: Growth = "alone"
    on_log: OnLog | None = None
    threads: int = 0  # of models for embeddings; 0: all cores


@dataclass(frozen=True, slots=True)
class ChatOffer:
    """A pair of models, with profiles by all names that clients give them."""

    request: PairRequest
    settings: PairSettings
    profiles: Mapping[str, Profile]
    ids: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    finds_draft: bool = False  # the draft model on disk that serves the target best
    kind: Kind = "chat"

    def describe(self) -> ModelDescription:
        """Describe the pair by its files; raises UserError."""
        files = find_files(self.request, _OnDisk())
        return described(files.target, files.draft, files.chat_template)

    def prepare(self, others: Sequence[HeldMemory], on_progress: OnProgress) -> PreparedModel:
        """Check the files, and plan the pair in the process that would open it."""
        watch = OpeningWatch(on_progress)
        request = self.request
        if self.finds_draft:
            request = request.choosing(choice_named(str(request.target.name), (), others))
        files = find_files(request, watch)
        watch.check([path for path in (files.target, files.draft) if path is not None])
        worker = start_worker(self.settings.on_log)
        try:
            found = self.planned(worker, request, files, others)
        except BaseException:
            worker.close()
            raise
        return PreparedModel(found.held, found.closes, partial(self._open, worker, found), worker.close)

    def planned(
        self, worker: Worker, request: PairRequest, files: PairFiles, others: Sequence[HeldMemory] = ()
    ) -> RoomyPair:
        """Plan the pair; raises UserError."""
        settings = self.settings
        found = plan_beside(request, files, others, via=worker.values_of, grows=settings.grows)
        return replace(found, seats=settings.parallel)

    def _open(self, worker: Worker, found: RoomyPair, on_progress: OnProgress) -> ChatService:
        return self.opened(worker, found, lambda first: first.load(found.plan, on_progress=on_progress))

    def opened(self, first: Worker, found: RoomyPair, load: Callable[[Worker], None]) -> ChatService:
        """Open a planned pair by `load`, and in another process whenever one has died."""
        settings = self.settings
        workers = [first]
        saved = saved_bytes() if settings.saved is None else settings.saved

        def open_models() -> Worker:
            if workers:
                worker = workers.pop()
                load(worker)
            else:
                worker = start_worker(settings.on_log)
                worker.load(found.plan)
            worker.keep_conversations(saved, settings.on_disk)
            return worker

        queue = EngineQueue(open_models, found.planned.tuned_for, settings.parallel, settings.server.report)
        return ChatService(queue, self.profiles, settings.server)


@dataclass(frozen=True, slots=True)
class EmbeddingOffer:
    """A model for embeddings, which computes on the CPU: the GPUs are for the pairs."""

    name: str
    path: Path
    threads: int = 0
    aliases: tuple[str, ...] = ()
    kind: Kind = "embeddings"

    @property
    def ids(self) -> tuple[str, ...]:
        """Return its name."""
        return (self.name,)

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """Return none."""
        return {}

    def describe(self) -> ModelDescription:
        """Describe the model by its file; raises UserError."""
        return ModelDescription(described(self.path, None, None).target)

    def prepare(self, others: Sequence[HeldMemory], on_progress: OnProgress) -> PreparedModel:
        """Check the file, and compare its size with the memory."""
        OpeningWatch(on_progress).check([self.path])
        held, closes = plan_embeddings(self.path, others)
        return PreparedModel(held, closes, lambda _on_progress: self.opened(), lambda: None)

    def opened(self) -> EmbeddingService:
        """Open the model."""
        options = ModelOptions(path=self.path, gpu_layers=0, threads=self.threads)
        return EmbeddingService(self.name, Embedder(options))


def named_offers(
    offered: Sequence[Offered], settings: PairSettings, profiles: Mapping[str, Profile]
) -> list[OfferedModel]:
    """Return the models that clients name: NAME, or NAME:PROFILE.

    The names of profiles alone mean the first pair.
    """
    found = list[OfferedModel]()
    for each in offered:
        if isinstance(each, OfferedEmbeddings):
            found.append(EmbeddingOffer(each.name, each.path, settings.threads))
            continue
        called = _called(each.name, profiles, settings.server.usual)
        by_name = dict(zip(profiles, called, strict=True)) | {profile.name: profile for profile in called}
        is_first = all(offer.kind != "chat" for offer in found)
        aliases = [profile.name for profile in called if profile.name != each.name]
        aliases += profiles if is_first else ()
        found.append(
            ChatOffer(
                each.request, settings, by_name, (each.name,), tuple(aliases), finds_draft=each.finds_draft
            )
        )
    return found


def _called(name: str, profiles: Mapping[str, Profile], usual: str) -> list[Profile]:
    """Return profiles with the name of their pair, which alone means the usual one."""
    return [
        replace(profile, name=name if own == usual else f"{name}:{own}", title=f"{name}: {profile.title}")
        for own, profile in profiles.items()
    ]


class _OnDisk:
    """Files as they are, without downloads and checks."""

    def download(self, reference: Reference) -> Path:
        """Raise UserError."""
        raise UserError(f"{reference} is not on this computer", f"`localspec pull {reference}` downloads it")

    def check(self, _files: Sequence[Path]) -> None:
        """Do nothing."""


@lru_cache(256)
def described(target: Path, draft: Path | None, template: Path | None) -> ModelDescription:
    """Describe a pair by its files; raises UserError."""
    text = read_model(target).text("tokenizer.chat_template") if template is None else read_template(template)
    thinks = THINKING in text or any(tags.opening in text for tags in THINKING_TAGS)
    return ModelDescription(_info(target), None if draft is None else _info(draft), "tools" in text, thinks)


def _info(path: Path) -> ModelInfo:
    """Describe a file; its context is the one that it was trained for."""
    header = read_model(path)
    context = header.integer("{arch}.context_length")
    return ModelInfo(
        path,
        header.name,
        header.architecture,
        header.parameters,
        header.file_bytes,
        context,
        context,
        header.counts.get(TOKENS, 0),
        devices=(),
    )
