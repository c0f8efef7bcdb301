"""A hub that lies in every field, and breaks every answer: a model comes whole, or one line says why not."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from localspec.errors import UserError
from localspec.models.hub import pull, remote_shape
from localspec.models.names import parse
from tests.campaign.log import Log, require
from tests.models.hub_server import COMMIT, Hub, Repository, in_place_of_the_hub

NAME, FILE = "someone/tiny-GGUF", "tiny-Q4_K_M.gguf"
_DATA = b"GGUF" + bytes(range(256)) * 40
_CASE_S = 8.0
_NAMES = (
    "",
    "..",
    ".",
    "/",
    "\\",
    "C:",
    "\0",
    "\x1b]52;c;aGk=\x07",
    "\ud800",
    "x" * 300,
    COMMIT,
    "main",
    "blobs",
)
_FIELDS = (
    "id",
    "modelId",
    "sha",
    "siblings",
    "tags",
    "gated",
    "private",
    "disabled",
    "cardData",
    "gguf",
    "lastModified",
)
_OF_FILE = ("rfilename", "size", "blobId", "lfs")
_JSON = "HTTP/1.1 200 OK\r\nContent-Type: application/json"
_HEADERS = (
    "HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n{}",
    "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}",
    "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}",
    "HTTP/1.1 206 OK\r\nContent-Range: bytes 5-1/9\r\nContent-Length: 2\r\n\r\n{}",
    "HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 302 Found\r\nLocation: SELF\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 999 \x1b[31mHm\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nX: " + "y" * 70_000 + "\r\nContent-Length: 2\r\n\r\n{}",
    "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
    "SSH-2.0-OpenSSH_9.6\r\n",
    "",
)


def _anything(rng: random.Random, depth: int = 0) -> object:
    some: list[object] = [
        None, True, 0, -1, 1.5, 2**70, float("nan"), float("inf"), "", "main", "a" * 40, "../" * 9,
        "/etc/passwd", rng.choice(_NAMES),
    ]  # fmt: skip
    if depth < 3 and rng.random() < 0.4:
        inner = [_anything(rng, depth + 1) for _ in range(rng.randrange(4))]
        return rng.choice((inner, {rng.choice(_FIELDS + _OF_FILE): value for value in inner}))
    return rng.choice(some)


def _lie(rng: random.Random, hub: Hub) -> str:
    """Let a hub lie in one or more of its fields or answers; return how."""
    places = (f"/api/models/{NAME}", f"/{NAME}/resolve", "/storage")
    match rng.randrange(6):
        case 0:
            hub.listed = {rng.choice(_FIELDS): _anything(rng) for _ in range(rng.choice((1, 1, 3)))}
        case 1:
            parts = [rng.choice(_NAMES) for _ in range(rng.randrange(1, 4))]
            value = rng.choice((_anything(rng), "/".join(parts) + ".gguf"))
            hub.listed_of_file = {rng.choice(_OF_FILE): value}
        case 2:
            hub.raw = {rng.choice(places): rng.choice(_HEADERS).encode("utf-8", "replace")}
        case 3:
            body = rng.choice(
                ("[" * 100_000, '{"a":' * 50_000, "null", "[]", "1e999", '{"siblings": 5}', "\ufeff{}", "")
            )
            head = f"{_JSON}\r\nContent-Length: {len(body.encode())}\r\n\r\n"
            hub.raw = {places[0]: (head + body).encode()}
        case 4:
            hub.damaged, hub.no_ranges, hub.html = (rng.random() < 0.5 for _ in range(3))
            hub.cut_after = [rng.choice((0, 1, 5_000)) for _ in range(rng.randrange(12))]
        case _:
            hub.failing = {
                rng.choice(places): [rng.choice((400, 401, 403, 404, 416, 418, 429, 500, 503))]
                * rng.choice((1, 9))
            }
    return f"{hub.listed} {hub.listed_of_file} {list(hub.raw.values())!r:.120} {hub.failing}"


def lying_hub(log: Log, folder: Path) -> None:
    """Pull from a hub that lies differently every time; nothing but the cache may change."""
    for number in log.numbers():
        home = folder / f"{number}"
        mine = home / "documents" / FILE
        mine.parent.mkdir(parents=True)
        mine.write_text("mine")
        with (
            pytest.MonkeyPatch.context() as changed,
            patch.dict(os.environ, _home(home)),
            patch("socketserver.BaseServer.handle_error"),  # of connections that are cut
            in_place_of_the_hub(changed) as hub,
        ):
            hub.repositories[NAME] = Repository({FILE: _DATA})
            lie = _lie(log.random(number), hub)
            with log.case(number, _CASE_S, lie[:300]):
                _pulled(home)
            hub.released.set()
        with log.case(number):
            log.cases -= 1
            own = (home / "cache" / "huggingface", home / "data", home / "state")
            files = [path for path in home.rglob("*") if not path.is_dir() or path.is_symlink()]
            strange = [path for path in files if path != mine and not any(map(path.is_relative_to, own))]
            require(not strange, f"outside the cache: {strange} {lie[:300]}")
            require(
                mine.read_text() == "mine" and not mine.is_symlink(), f"a person's file changed: {lie[:300]}"
            )


def _home(home: Path) -> dict[str, str]:
    kinds = ("CACHE", "CONFIG", "DATA", "STATE")
    return {"HOME": str(home), **{f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in kinds}}


def _pulled(home: Path) -> None:
    with suppress(UserError):
        remote_shape(parse(NAME))
    try:
        path = pull(parse(NAME))
    except UserError as error:
        require(
            "\n" not in str(error) and len(str(error)) < 1_000, f"refused in many words: {str(error)[:900]!r}"
        )
    else:
        require(path.read_bytes() == _DATA, "other bytes than the checksum promised")
        require(path.is_relative_to(home / "cache"), f"put into {path}")
