"""Origins of web pages that may use the server, as `--allow-origin` names them."""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.requests import Request

from localspec.errors import UserError

ANY = "*"
_PORTS = {"http": 80, "https": 443}
_NEVER = "(?!)"
_HINT = "write it as the browser sends it: https://example.org, http://localhost:3000, chrome-extension://*"


def read_origin(text: str) -> str:
    """Return an origin as browsers send it; raises UserError for one that no browser ever sends.

    `*` is any page, `SCHEME://*` any page of an extension. A slash at the end is dropped.
    """
    if text in (ANY, "null"):
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
    each = (re.escape(origin).replace(re.escape(ANY), ".*") for origin in origins)
    return re.compile("|".join(each) or _NEVER)
