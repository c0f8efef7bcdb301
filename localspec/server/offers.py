"""What a server opens: pairs of models that answer chats, and models that write no text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.app.offered import EncoderKind, Offered, OfferedEncoder, OfferedPair
from localspec.app.opener import OpeningWatch
from localspec.app.opening import (
    Growth,
    OnDisk,
    RoomyPair,
    find_files,
    plan_beside,
    plan_encoder,
    saved_bytes,
    start_worker,
)
from localspec.app.recommendation import choice_named
from localspec.chat.answer_settings import THINKING
from localspec.gguf import TOKENS, read_model
from localspec.hardware.placement.room import HeldMemory
from localspec.inference.encoders import Embedder, Encoder, Reranker
from localspec.llama.template.template_file import read_template
from localspec.models.pair_files import PairFiles
from localspec.models.pair_request import PairRequest
from localspec.server.queue import EngineQueue
from localspec.server.served import Kind, ModelDescription, OfferedModel, OnProgress, PreparedModel
from localspec.server.service import ChatService, EncoderService, ServerSettings
from localspec.storage.profiles import Profile
from localspec.thinking_tags import THINKING_TAGS
from localspec.types.models import GivenTemplate, ModelInfo, ModelOptions, Pooling

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
    threads: int = 0  # of models that write no text; 0: all cores


@dataclass(frozen=True, slots=True)
class ChatOffer:
    """A pair of models, with profiles by all names that clients give them."""

    request: PairRequest
    settings: PairSettings
    profiles: Mapping[str, Profile]
    ids: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    finds_draft: bool = False  # the draft model on disk that serves the target best
    is_listed: bool = True
    kind: Kind = "chat"

    def describe(self) -> ModelDescription:
        """Describe the pair by its files; raises UserError."""
        files = find_files(self.request, OnDisk())
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
class EncoderOffer:
    """A model that writes no text, which computes on the CPU: the GPUs are for the pairs."""

    name: str
    path: Path
    threads: int = 0
    aliases: tuple[str, ...] = ()
    is_listed: bool = True
    kind: EncoderKind = "embeddings"
    pooling: Pooling | None = None
    totals: Counter[str] = field(default_factory=Counter)  # of the server

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
        held, closes = plan_encoder(self.path, others)
        return PreparedModel(held, closes, lambda _on_progress: self.opened(), lambda: None)

    def opened(self) -> EncoderService[Encoder]:
        """Open the model."""
        options = ModelOptions(path=self.path, gpu_layers=0, threads=self.threads)
        opens = Reranker if self.kind == "rerank" else Embedder
        return EncoderService(self.name, opens(options, self.pooling), self.totals)


def named_offers(
    offered: Sequence[Offered], settings: PairSettings, profiles: Mapping[str, Profile]
) -> list[OfferedModel]:
    """Return the models that clients name: NAME, or NAME:PROFILE.

    The names of profiles alone mean the first pair.
    """
    found = list[OfferedModel]()
    for each in offered:
        if isinstance(each, OfferedEncoder):
            encoder = EncoderOffer(each.name, each.path, settings.threads, totals=settings.server.totals)
            found.append(replace(encoder, kind=each.kind, is_listed=each.is_listed, pooling=each.pooling))
            continue
        called = [_called(name, profiles, settings.server.usual) for name in (each.name, *each.aliases)]
        by_name = dict(zip(profiles, called[0], strict=True))
        by_name |= {profile.name: profile for group in called for profile in group}
        is_first = all(offer.kind != "chat" for offer in found)
        aliases = [profile.name for group in called for profile in group if profile.name != each.name]
        aliases += profiles if is_first else ()
        offer = ChatOffer(each.request, _settings_of(each, settings), by_name, (each.name,), tuple(aliases))
        found.append(replace(offer, finds_draft=each.finds_draft, is_listed=each.is_listed))
    return found


def _settings_of(offered: OfferedPair, settings: PairSettings) -> PairSettings:
    """Return the settings of a pair, which may have its own where it is a preset."""
    asked = settings.server.asked if offered.asked is None else offered.asked
    parallel = settings.parallel if offered.parallel is None else offered.parallel
    return replace(settings, server=replace(settings.server, asked=asked), parallel=parallel)


def _called(name: str, profiles: Mapping[str, Profile], usual: str) -> list[Profile]:
    """Return profiles with the name of their pair, which alone means the usual one."""
    return [
        replace(profile, name=name if own == usual else f"{name}:{own}", title=f"{name}: {profile.title}")
        for own, profile in profiles.items()
    ]


@lru_cache(256)
def described(target: Path, draft: Path | None, template: Path | GivenTemplate | None) -> ModelDescription:
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
