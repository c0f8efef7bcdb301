"""Origins of web pages that may use the server, as `--allow-origin` names them, and what they may do."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from localspec.errors import UserError

ANY = "*"
LOCALHOST = "localhost"
_OF_THIS_MACHINE = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?"
_PORTS = {"http": 80, "https": 443}
_NEVER = "(?!)"
_HINT = "write it as the browser sends it: https://example.org, http://localhost:3000, chrome-extension://*"


def read_origin(text: str) -> str:
    """Return an origin as browsers send it; raises UserError for one that no browser ever sends.

    `*` is any page, `SCHEME://*` any page of an extension, `localhost` any page of this machine. A slash at
    the end is dropped.
    """
    if text in (ANY, LOCALHOST, "null"):
        return text
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
        port = parts.port
    except ValueError:
        raise UserError(f"--allow-origin {text} is not an origin", _HINT) from None
    if not parts.scheme or not host or parts.username is not None or not text.isascii():
        raise UserError(f"--allow-origin {text} is not an origin", _HINT)
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise UserError(f"--allow-origin {text} has a path, which browsers do not send", _HINT)
    if ANY in host and (host != ANY or parts.scheme in _PORTS):
        raise UserError(f"--allow-origin {text}: only the pages of extensions are named together", _HINT)
    shown = f"[{host}]" if ":" in host else host
    is_usual = port is None or port == _PORTS.get(parts.scheme)
    return f"{parts.scheme}://{shown}{'' if is_usual else f':{port}'}"


def is_own(origin: str, host: str | None) -> bool:
    """Return whether a page comes from the address that it asks."""
    return urlsplit(origin).netloc == host


def is_foreign(request: Request) -> bool:
    """Return whether a page of another address asks, also one that may use the models."""
    origin = request.headers.get("origin")
    if origin is not None and not is_own(origin, request.headers.get("host")):
        return True
    return request.headers.get("sec-fetch-site") in ("cross-site", "same-site")


def pattern(origins: Collection[str]) -> re.Pattern[str]:
    """Return the pattern of allowed pages' origins."""
    return re.compile("|".join(map(_pattern, origins)) or _NEVER)


def _pattern(origin: str) -> str:
    return _OF_THIS_MACHINE if origin == LOCALHOST else re.escape(origin).replace(re.escape(ANY), ".*")


@dataclass(frozen=True, slots=True)
class CrossOrigin:
    """What pages of the allowed origins may do: the answer to a browser that asks before it sends."""

    methods: tuple[str, ...] = (ANY,)
    headers: tuple[str, ...] = (ANY,)
    credentials: bool = False


EVERYTHING = CrossOrigin()


class CrossOriginMiddleware(CORSMiddleware):
    """Tells a browser what a page may do; one of another origin is told nothing, which is a refusal."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a browser's question, or pass a request on."""
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        asks = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        if asks and origin is not None and not self.is_allowed_origin(origin):
            scope.setdefault("state", {})["failure"] = refusal(origin)  # for the log
            await Response(headers={"Vary": "Origin"})(scope, receive, send)
            return

        async def spelled(message: Message) -> None:
            """Send a message with the names as the standard spells them: some clients compare them."""
            if message["type"] == "http.response.start":
                own = b"access-control-"
                headers = (
                    (name.title() if name.startswith(own) else name, text)
                    for name, text in message["headers"]
                )
                message = {**message, "headers": [*headers]}
            await send(message)

        await super().__call__(scope, receive, spelled)


def refusal(origin: str) -> HTTPException:
    """Return the error for a page that may not use the server."""
    return HTTPException(403, f"pages of {origin} may not use this server; see --allow-origin")


def middleware(origins: Collection[str], allowed: CrossOrigin) -> Middleware:
    """Return the middleware for pages of some origins.

    With credentials, browsers do not take `*` for the origin: it is then named.
    """
    return Middleware(
        CrossOriginMiddleware,
        allow_origins=[ANY] if ANY in origins and not allowed.credentials else [],
        allow_origin_regex=pattern(origins).pattern,
        allow_methods=allowed.methods,
        allow_headers=allowed.headers,
        allow_credentials=allowed.credentials,
        allow_private_network=True,
    )
