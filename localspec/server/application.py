"""The server's paths, and whom it lets in: no page of another site, and nobody without the key."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from localspec.app.figures import Json
from localspec.errors import LocalSpecError
from localspec.server import anthropic, engine, openai, responses, service, texts
from localspec.server.exchange import Handler, Refusal, error, refusal
from localspec.server.service import Service

_OPEN = ("/health", "/v1/health")  # which also who has no key may ask for


@dataclass(frozen=True, slots=True)
class Doors:
    """Whom a server lets in."""

    api_key: str | None = None
    hosts: frozenset[str] = frozenset({"127.0.0.1", "localhost", "::1"})  # empty where a key protects
    origins: frozenset[str] = frozenset()  # pages that may ask; `*` is any

    def check(self, request: Request) -> None:
        """Raise HTTPException for whom is not let in."""
        headers = request.headers
        if self.hosts and (host := _host(headers.get("host", ""))) not in self.hosts:
            raise HTTPException(403, f"this server is not {host or 'what the request calls it'}")
        origin = headers.get("origin")
        if origin is not None and self.origins.isdisjoint((origin, "*")):
            raise HTTPException(403, f"pages of {origin} may not ask this server; --allow-origin lets them")
        if self.api_key is not None and request.url.path not in _OPEN:
            scheme, _, bearer = headers.get("authorization", "").partition(" ")
            given = bearer if scheme.lower() == "bearer" else headers.get("x-api-key", "")
            if not hmac.compare_digest(given.encode(), self.api_key.encode()):
                raise HTTPException(401, "the API key is missing or wrong")


def application(served: Service, doors: Doors) -> Starlette:
    """Return the ASGI application."""
    asking = ((each, "POST") for each in (openai, responses, anthropic, texts, engine))
    protocols = [(each.protocol(served), method) for each, method in ((service, "GET"), *asking)]
    routes = [
        Route(path, _endpoint(handler, doors, protocol.error), methods=[method])
        for protocol, method in protocols
        for path, handler in protocol.handlers.items()
    ]
    cors = Middleware(
        CORSMiddleware, allow_origins=list(doors.origins), allow_methods=["*"], allow_headers=["*"]
    )
    found = Starlette(
        routes=routes,
        middleware=[cors] if doors.origins else [],
        exception_handlers={HTTPException: _failed, Exception: _failed},
    )
    found.router.redirect_slashes = False  # to wherever the request says that it is
    return found


def _endpoint(handler: Handler, doors: Doors, words: Callable[[Refusal], Json]) -> Handler:
    """Return what answers at a path; what fails is told in the protocol's words."""

    async def endpoint(request: Request) -> Response:
        try:
            doors.check(request)
            return await handler(request)
        except (LocalSpecError, HTTPException) as failed:
            refused = refusal(failed)
            return JSONResponse(words(refused), refused.status)

    return endpoint


def _host(header: str) -> str:
    with suppress(ValueError):
        return urlsplit(f"//{header}").hostname or ""
    return ""


async def _failed(_request: Request, failed: Exception) -> Response:
    mistake = f"unexpected {type(failed).__name__}: this is a mistake in LocalSpec; please report it"
    known = isinstance(failed, HTTPException)
    refused = refusal(cast(HTTPException, failed)) if known else Refusal(500, "server_error", mistake)
    return JSONResponse(error(refused), refused.status)
