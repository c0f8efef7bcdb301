"""Servers that answer, and oddly: one line each, and no one waits for what will not change."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import UserError
from localspec.models.hub import pull
from localspec.models.names import parse
from tests.models.hub_server import Hub, Repository

NAME = "someone/tiny-GGUF"
FILE = "tiny-Q4_K_M.gguf"
DATA = b"GGUF" + os.urandom(2_000)
CLOSE = b"Connection: close\r\n"


@pytest.fixture(autouse=True)
def offered(hub: Hub) -> Repository:
    hub.repositories[NAME] = Repository({FILE: DATA})
    return hub.repositories[NAME]


def refusal() -> str:
    with pytest.raises(UserError) as caught:
        pull(parse(NAME))
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    return caught.value.message


def redirect(address: bytes) -> bytes:
    return b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n" + CLOSE + b"Location: " + address + b"\r\n\r\n"


def ok(header: bytes, body: bytes = b"abcd") -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + CLOSE + header + b"\r\n\r\n" + body


ODD = [
    (ok(b": x"), "does not speak HTTP: illegal header line"),
    (ok(b"X: \0"), "does not speak HTTP: illegal header line"),
    (ok(b"X: " + b"a" * 300_000), "does not speak HTTP: "),
    (ok(b"Content-Length: many"), "does not speak HTTP: bad Content-Length"),
    (ok(b"Content-Length: -4"), "does not speak HTTP: bad Content-Length"),
    (ok(b"Content-Encoding: gzip\r\nContent-Length: 4"), "does not speak HTTP: "),
    (b"what?\r\n\r\n", "does not speak HTTP: illegal status line"),
    (
        ok(b"Content-Type: text/html; charset=utf-8\r\nContent-Length: 4"),
        "is not a Hugging Face hub: it sends a web page",
    ),
    (b"HTTP/1.1 204 Fine\r\n" + CLOSE + b"\r\n", "is not a Hugging Face hub: it says HTTP 204"),
    (
        b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n" + CLOSE + b"\r\n",
        "is not a Hugging Face hub: it says HTTP 302",
    ),
    (redirect(b"file:///etc/passwd"), "does not speak HTTP: "),
    (redirect(b"ftp://127.0.0.1/file"), "does not speak HTTP: "),
    (redirect(b"javascript:alert(1)"), "does not speak HTTP: "),
    (redirect(b"http://127.0.0.1/\x01"), "does not speak HTTP: "),
]


@pytest.mark.parametrize("place", ["/api/", f"/{NAME}/resolve/"])
@pytest.mark.parametrize(("sent", "words"), ODD, ids=lambda value: repr(value)[:60])
def test_an_odd_answer_is_reported_at_once(hub: Hub, place: str, sent: bytes, words: str) -> None:
    hub.raw[place] = sent
    message = refusal()
    assert words in message
    assert message.removeprefix("http://").startswith(hub.url.removeprefix("http://"))
    assert len([asked for asked in hub.asked if asked.path.startswith(place)]) == 1


@pytest.mark.parametrize("place", ["/api/", f"/{NAME}/resolve/"])
def test_a_redirect_in_circles_is_followed_once(hub: Hub, place: str) -> None:
    hub.raw[place] = redirect(b"SELF")
    assert "redirects" in refusal()
    assert len(hub.asked) <= 22  # the HTTP library follows 20


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        ok(b"Content-Length: 9999", b""),
        ok(b"Content-Length: 9999"),
        ok(b"Transfer-Encoding: chunked", b""),
    ],
)
def test_answers_that_end_early_are_asked_for_three_times(hub: Hub, sent: bytes) -> None:
    hub.raw["/storage/"] = sent
    assert "closes connections early: " in refusal()
    assert 3 <= len(hub.downloads) <= 4  # the first that brings something is none of the three


def test_a_listing_that_ends_early(hub: Hub) -> None:
    hub.raw["/api/"] = ok(b"Content-Length: 9999", b"{}")
    assert "closes connections early: " in refusal()


def test_another_part_than_was_asked_for_is_not_kept(hub: Hub, cache: Path) -> None:
    part = cache / "models--someone--tiny-GGUF" / "blobs" / f"{hub.sha(NAME, FILE)}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(DATA[:1000])
    headers = b"Content-Range: bytes 900-2003/2004\r\nContent-Length: 1104"
    hub.raw["/storage/"] = ok(headers, DATA[900:]).replace(b"200 OK", b"206 Part")
    assert "it sends another part of the file" in refusal()
    assert part.read_bytes() == DATA[:1000]
    hub.raw.clear()
    assert pull(parse(NAME)).read_bytes() == DATA


def test_a_web_page_never_becomes_part_of_a_file(hub: Hub, cache: Path) -> None:
    hub.raw["/storage/"] = ok(b"Content-Type: text/html\r\nContent-Length: 4")
    refusal()
    assert not list(cache.rglob("*.incomplete"))


def test_a_server_that_begins_again_and_breaks_anywhere_is_dropped(hub: Hub) -> None:
    hub.no_ranges, hub.cut_after = True, [200, 300, 250, 290] * 20
    assert "closes connections early: " in refusal()
    assert len(hub.downloads) < 10


@pytest.mark.parametrize(
    "body", [b'{"error": "\xf3"}', b"[" * 200_000, b"{}"], ids=lambda body: repr(body[:9])
)
@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (404, b"RepoNotFound", "has no public repository"),
        (403, b"GatedRepo", "is gated"),
        (404, b"EntryNotFound", "is no longer there"),
        (400, b"", "refuses someone/tiny-GGUF (HTTP 400)"),
        (500, b"", "has a server error (HTTP 500)"),
    ],
)
def test_what_a_refusal_says_besides_is_not_read(
    hub: Hub, status: int, code: bytes, words: str, body: bytes
) -> None:
    head = b"HTTP/1.1 %d No\r\nX-Error-Code: %s\r\nContent-Length: %d\r\n" % (status, code, len(body) + 10**9)
    hub.raw["/api/"] = head + CLOSE + b"\r\n" + body
    assert words in refusal()


def test_a_name_that_no_redirect_should_lead_to_is_tried_once(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def resolved(host: str, *more: Any, **words: Any) -> Any:  # noqa: ANN401 - as in socket
        asked.append(host)
        if host == "nowhere.invalid":
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return known(host, *more, **words)

    known = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    hub.raw[f"/{NAME}/resolve"] = redirect(b"http://nowhere.invalid/file")
    assert refusal() == "the name nowhere.invalid cannot be resolved"
    assert asked.count("nowhere.invalid") == 1
