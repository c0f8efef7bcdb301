"""One document downloaded by HTTP, within limits of size, time and redirects.

A redirect to another site is not followed but reported: the user consented to this one.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic
from typing import Any
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from localspec import units
from localspec.errors import Cancelled, UserError
from localspec.safe_text import safe_line
from localspec.tools.web.addresses import connect
from localspec.version import __version__

SECONDS = 30.0
MAX_BYTES = 4 * 2**20  # also of what was compressed
MAX_REDIRECTS = 5
_LOOK_S = 0.05
_PIECE = 64 * 1024
_REDIRECTS = (301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}
_KEPT = "%/:=&?~#+!$,;'@()*[]"  # signs that an address may have as they are


@dataclass(frozen=True, slots=True)
class Document:
    """What was downloaded; `charset` is empty if the server names none."""

    url: str
    kind: str  # media type
    charset: str
    data: bytes


def download(url: str, private_hosts: Collection[str], stop: Event) -> Document:
    """Download a document; raises UserError, and Cancelled if `stop` is set meanwhile."""
    task = _Download(private_hosts)
    worker = Thread(target=task.run, args=(url,), name="localspec-fetch", daemon=True)
    worker.start()
    ends = monotonic() + SECONDS
    while not task.over.wait(_LOOK_S):
        if stop.is_set():
            task.end()
            raise Cancelled("the page was not fetched")
        if monotonic() > ends:
            task.end()
            raise UserError(f"`{url}` takes more than {SECONDS:.0f} s")
    if task.error is not None:
        raise task.error
    assert task.document is not None
    return task.document


class _Download:
    """A download in a thread of its own, because looking up a name can neither be limited nor ended."""

    def __init__(self, private_hosts: Collection[str]) -> None:
        self._private_hosts = private_hosts
        self._line: socket.socket | None = None
        self._is_ended = False
        self.over = Event()
        self.error: UserError | None = None
        self.document: Document | None = None

    def run(self, url: str) -> None:
        try:
            self.document = self._followed(url)
        except UserError as error:
            self.error = error
        except (OSError, http.client.HTTPException, zlib.error, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            self.error = UserError(f"cannot fetch `{url}`: {why}")
        finally:
            self.over.set()

    def end(self) -> None:
        """End it: what it waits for comes to nothing."""
        self._is_ended = True
        if self._line is not None:
            with suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)

    def _followed(self, url: str) -> Document:
        parts = checked(url)
        for _ in range(MAX_REDIRECTS + 1):
            with self._connected(parts) as connection, _answer(parts, connection) as response:
                if response.status not in _REDIRECTS:
                    return _document(parts, response)
                target = response.headers.get("Location", "")
            new = checked(urljoin(parts.geturl(), target))
            if not _is_same_site(parts, new):
                raise UserError(f"`{url}` redirects to {new.geturl()}", "fetch that page if it is wanted")
            parts = new
        raise UserError(f"`{url}` redirects more than {MAX_REDIRECTS} times")

    @contextmanager
    def _connected(self, parts: SplitResult) -> Iterator[http.client.HTTPConnection]:
        host = parts.hostname or ""
        port = _port(parts)
        line = connect(host, port, self._private_hosts)
        try:
            if parts.scheme == "https":
                context = ssl.create_default_context()
                line = context.wrap_socket(line, server_hostname=host, do_handshake_on_connect=False)
            self._line = line  # before anything waits for the other side
            if self._is_ended:
                raise OSError("ended")
            if isinstance(line, ssl.SSLSocket):
                line.do_handshake()
            connection = http.client.HTTPConnection(host, port)
            connection.sock = line
            yield connection
        finally:
            line.close()


def _answer(parts: SplitResult, connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
    """Ask for the document; return the beginning of the answer."""
    query = f"?{quote(parts.query, _KEPT)}" if parts.query else ""
    is_usual = _port(parts) == _PORTS[parts.scheme]
    target = quote(parts.path or "/", _KEPT) + query
    connection.putrequest("GET", target, skip_host=True, skip_accept_encoding=True)
    for name, value in {
        "Host": parts.netloc.removesuffix(f":{_port(parts)}") if is_usual else parts.netloc,
        "User-Agent": f"LocalSpec/{__version__}",
        "Accept": "text/html, text/*, application/json, application/xml;q=0.9, */*;q=0.1",
        "Accept-Encoding": "gzip",
        "Connection": "close",
    }.items():
        connection.putheader(name, value)
    connection.endheaders()
    return connection.getresponse()


def _document(parts: SplitResult, response: http.client.HTTPResponse) -> Document:
    url = parts.geturl()
    if response.status != http.client.OK:
        raise UserError(f"`{url}` answers {response.status} {safe_line(response.reason)}")
    headers = response.headers
    data = _body(url, response, is_packed=headers.get("Content-Encoding", "").lower() == "gzip")
    return Document(url, headers.get_content_type(), headers.get_content_charset() or "", data)


def checked(url: str) -> SplitResult:
    """Return the parts of an address; raises UserError unless it is one of the web that hides nothing."""
    try:
        parts = urlsplit(url.strip())
        _port(parts)
    except ValueError:
        raise UserError(f"`{safe_line(url)}` is not an address of the web") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise UserError(
            f"`{safe_line(url)}` is not an address of the web", "begin it with https:// or http://"
        )
    if "@" in parts.netloc or "\\" in url or not url.strip().isprintable() or " " in parts.netloc:
        what = f"`{safe_line(url)}` has a user name or signs that hide where it leads"
        raise UserError(what, "leave them out")
    return parts._replace(fragment="")


def _port(parts: SplitResult) -> int:
    return parts.port or _PORTS.get(parts.scheme, 0)


def _is_same_site(old: SplitResult, new: SplitResult) -> bool:
    """Return whether an address has the same host and port, or the usual ports of HTTP and then HTTPS."""
    ports = (_port(old), _port(new))
    return old.hostname == new.hostname and (ports[0] == ports[1] or ports == (80, 443))


def _body(url: str, response: http.client.HTTPResponse, *, is_packed: bool) -> bytes:
    unpacker: Any = zlib.decompressobj(zlib.MAX_WBITS | 16) if is_packed else None
    data = bytearray()
    while piece := response.read(_PIECE):
        data += piece if unpacker is None else unpacker.decompress(piece, MAX_BYTES + 1 - len(data))
        if len(data) > MAX_BYTES:
            raise UserError(f"`{url}` has more than {units.size(MAX_BYTES)}")
    return bytes(data)
