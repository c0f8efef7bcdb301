"""A server in a thread of this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from uvicorn import Server

from localspec.chat.answer_settings import SessionRequest
from localspec.chat.tool_use.kit import ToolKit
from localspec.hardware.placement.room import HeldMemory
from localspec.inference.encoders import Embedder, Reranker
from localspec.inference.interface import SharedModels
from localspec.server.application import AccessPolicy, application, http_server
from localspec.server.served import ServedModels
from localspec.server.service import ChatService, ServerSettings
from tests.server.scripted_offers import ScriptedEncoder, ScriptedPair


@dataclass(frozen=True)
class Served:
    """A server that runs, and what it told the client that started it."""

    port: int
    service: ChatService
    client: httpx2.Client
    server: Server
    lines: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, body: object, headers: dict[str, str] | None = None) -> httpx2.Response:
        return self.client.post(path, json=body, headers=headers)

    def chat(self, **body: object) -> httpx2.Response:
        return self.post("/v1/chat/completions", body)


@contextmanager
def serving(
    open_models: Callable[[], SharedModels],
    policy: AccessPolicy | None = None,
    embedder: Embedder | None = None,
    reranker: Reranker | None = None,
    kit: ToolKit | None = None,
    slots: Path | None = None,
    hidden: frozenset[str] = frozenset(),
) -> Iterator[Served]:
    """Serve what `open_models` opens, at a free port."""
    lines: list[str] = []
    settings = ServerSettings("auto", SessionRequest(), lines.append, kit=kit, slots=slots, hidden=hidden)
    pair = ScriptedPair("pair", open_models, settings, is_named=False)
    others = list[ScriptedEncoder]()
    if embedder is not None:
        others.append(ScriptedEncoder(embedder.info.name, embedder, settings.totals))
    if reranker is not None:
        others.append(ScriptedEncoder(reranker.info.name, reranker, settings.totals, kind="rerank"))
    models = ServedModels([pair, *others], settings)
    service = pair.opened()
    models.has_opened(models.all[0], service, HeldMemory())
    for model, other in zip(models.all[1:], others, strict=True):
        models.has_opened(model, other.opened(), HeldMemory())
    with serving_models(models, policy) as (port, client, server):
        yield Served(port, service, client, server, lines)


@contextmanager
def serving_models(
    models: ServedModels, policy: AccessPolicy | None = None
) -> Iterator[tuple[int, httpx2.Client, Server]]:
    """Serve models at a free port."""
    server = http_server(application(models, policy or AccessPolicy()))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            port: int = listener.getsockname()[1]
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", verify=False, timeout=30) as client:
                yield port, client, server
        finally:
            server.should_exit = True
            thread.join(timeout=10)
            models.close()
    assert not thread.is_alive()
