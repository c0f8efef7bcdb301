"""A server on this machine that speaks the hub's protocol, and misbehaves on request."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from localspec.models import hub as hub_module

COMMIT = "a" * 40
AUTHORITY = Path(__file__).parent / "authority.pem"  # it has signed nothing
_PIECE = 4096


@dataclass(slots=True)
class Repository:
    """What the server knows of a repository."""

    files: dict[str, bytes] = field(repr=False)
    commit: str = COMMIT
    gated: bool = False
    plain_git: set[str] = field(default_factory=set)  # small files that are not in Git LFS


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came in."""

    method: str
    path: str
    range: str | None
    token: str | None
    agent: str


@dataclass(slots=True)
class Hub:
    """The server: its repositories, its faults, and what it was asked."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=lambda: {"hf_good"})
    asked: list[Asked] = field(default_factory=list, repr=False)
    cut_after: list[int] = field(default_factory=list)  # for each download: bytes before the line breaks
    stalls: int = 0  # N downloads stop half-way, without an end
    first_stall: int = 1  # which of the downloads is the first of them
    released: threading.Event = field(default_factory=threading.Event)
    damaged: bool = False  # a byte of each download is wrong
    no_ranges: bool = False  # answers a range with everything
    failing: dict[str, list[int]] = field(default_factory=dict)  # path prefix -> statuses to answer with
    warning: str = ""  # a header that huggingface_hub prints
    html: bool = False  # answers like the login page of a hotel
    listed: dict[str, object] = field(default_factory=dict)  # instead of what is true of a repository
    listed_of_file: dict[str, object] = field(default_factory=dict)  # and of each of its files
    raw: dict[str, bytes] = field(default_factory=dict)  # path prefix -> all that is sent for an answer
    url: str = ""
    storage_url: str = ""  # where files really lie: another origin, as on the hub

    @property
    def downloads(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.path.startswith("/storage/")]

    def sha(self, repository: str, name: str) -> str:
        return hashlib.sha256(self.repositories[repository].files[name]).hexdigest()


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve on two ports: the hub itself, and the storage that it sends everybody to."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
    for server, thread in zip(servers, threads, strict=True):
        server.daemon_threads = True
        thread.start()
    hub.url, hub.storage_url = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    try:
        yield hub
    finally:
        hub.released.set()
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


@contextmanager
def in_place_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve, and let the code under test take the server for the hub, without pauses."""
    from huggingface_hub import close_session

    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hub_module, "PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(hub_module, "_TELL_S", 0.0)
    monkeypatch.setenv("SSL_CERT_FILE", str(AUTHORITY))  # each session would read certifi's, 19 ms
    with serving(Hub()) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running
        close_session()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name upstream
        pass

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(
            Asked(
                self.command,
                path,
                self.headers["Range"],
                (self.headers["Authorization"] or "").removeprefix("Bearer ") or None,
                self.headers["User-Agent"] or "",
            )
        )
        with suppress(BrokenPipeError, ConnectionResetError):
            for prefix, statuses in self.hub.failing.items():
                if path.startswith(prefix) and statuses:
                    self._refuse(statuses.pop(0))
                    return
            for prefix, sent in self.hub.raw.items():
                if path.startswith(prefix):
                    self.wfile.write(sent.replace(b"SELF", self.path.encode()))
                    self.close_connection = True
                    return
            if self.hub.html:
                self._send(200, b"<!doctype html><title>Welcome to the hotel</title>", {})
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
                self._info(found[1], found[2])
            elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                self._redirect(found[1], found[2], found[3])
            elif found := re.fullmatch(r"/storage/([^/]+/[^/]+)/(.+)", path):
                self._file(self.hub.repositories[found[1]].files[found[2]], body=body)
            else:
                self._refuse(404)

    def _known(self, name: str, *, opens_gate: bool) -> Repository | None:
        repository, token = self.hub.repositories.get(self._spelled(name)), self.hub.asked[-1].token
        if token is not None and token not in self.hub.tokens:
            self._refuse(401, message="Invalid credentials in Authorization header")
        elif repository is None:
            self._refuse(404 if token else 401, "RepoNotFound", "Repository not found")
        elif repository.gated and opens_gate and token is None:
            self._refuse(401, "GatedRepo", "Access to this model is restricted")
        elif repository.gated and opens_gate and token != "hf_member":
            self._refuse(403, "GatedRepo", "Access to this model is restricted")
        else:
            return repository
        return None

    def _spelled(self, name: str) -> str:
        """Return how a repository is spelled that was asked for in any case, as on the hub."""
        return next((each for each in self.hub.repositories if each.lower() == name.lower()), name)

    def _info(self, name: str, revision: str | None) -> None:
        repository = self._known(name, opens_gate=False)
        if repository is None:
            return
        if revision not in (None, "main", repository.commit):
            self._refuse(404, "RevisionNotFound", "Invalid rev id")
            return
        with_sizes = "blobs" in parse_qs(urlsplit(self.path).query)
        siblings = [
            _sibling(repository, file, with_sizes=with_sizes) | self.hub.listed_of_file
            for file in repository.files
        ]
        info = {
            "id": self._spelled(name),
            "modelId": name,
            "sha": repository.commit,
            "siblings": siblings,
            "tags": [],
        }
        self._send(200, json.dumps(info | self.hub.listed).encode(), {"Content-Type": "application/json"})

    def _redirect(self, name: str, revision: str, file: str) -> None:
        repository = self._known(name, opens_gate=True)
        if repository is None:
            return
        if revision not in ("main", repository.commit) or file not in repository.files:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        content = repository.files[file]
        digest = hashlib.sha256(content).hexdigest()
        headers = {
            "Location": f"{self.hub.storage_url}/storage/{self._spelled(name)}/{file}?signature=1",
            "X-Repo-Commit": repository.commit,
            "X-Linked-Etag": f'"{digest}"',
            "X-Linked-Size": str(len(content)),
            "ETag": f'"{digest}"',
        }
        self._send(302, b"", headers)

    def _file(self, content: bytes, *, body: bool) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        if self.hub.damaged:
            middle = len(content) // 2
            content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        start, end = 0, len(content)
        if asked and not self.hub.no_ranges:
            start, end = int(asked[1]), min(end, int(asked[2] or end) + 1)
        status = 206 if asked and not self.hub.no_ranges else 200
        self.send_response(status)
        self.send_header("Content-Length", str(end - start))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        self.end_headers()
        if not body:
            return
        if self.hub.stalls and len(self.hub.downloads) >= self.hub.first_stall:
            self.hub.stalls -= 1
            self.wfile.write(content[start : (start + end) // 2])
            self.hub.released.wait()
            self.close_connection = True
            return
        cut = self.hub.cut_after.pop(0) if self.hub.cut_after else len(content)
        for at in range(start, min(end, start + cut), _PIECE):
            self.wfile.write(content[at : min(at + _PIECE, end, start + cut)])
        if start + cut < end:
            self.wfile.flush()
            self.close_connection = True

    def _refuse(self, status: int, code: str = "", message: str = "") -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        body = json.dumps({"error": message}).encode()
        self._send(status, body, {name: value for name, value in headers.items() if value})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        if self.hub.warning:
            headers = headers | {"X-HF-Warning": f"unauthenticated; {self.hub.warning}"}
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _sibling(repository: Repository, file: str, *, with_sizes: bool) -> dict[str, object]:
    content = repository.files[file]
    if not with_sizes:
        return {"rfilename": file}
    git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    sibling: dict[str, object] = {"rfilename": file, "size": len(content), "blobId": git}
    if file not in repository.plain_git:
        digest = hashlib.sha256(content).hexdigest()
        sibling["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 135}
    return sibling
