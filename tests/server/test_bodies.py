"""Bodies as clients send them: compressed, with a mark before them, or broken."""

from __future__ import annotations

import gzip
import json
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module

import httpx2
import pytest
from starlette.exceptions import HTTPException

from localspec.server import exchange
from localspec.server.encodings import unpacked
from tests.server.running import Served, serving
from tests.server.test_doors import ASK, CHAT
from tests.server.turning_models import TurningModels

DATA = json.dumps(ASK).encode()


@pytest.fixture(scope="module")
def made_up() -> Iterator[Served]:
    with serving(TurningModels) as running:
        yield running


def bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def posted(served: Served, data: bytes, encoding: str = "") -> httpx2.Response:
    return served.client.post(CHAT, content=data, headers={"Content-Encoding": encoding} if encoding else {})


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("GZIP", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
        ("deflate", zlib.compress),
        ("deflate", bare_deflate),
        ("identity", bytes),
        ("gzip, identity", gzip.compress),
        ("deflate, gzip", lambda data: gzip.compress(zlib.compress(data))),
    ],
)
def test_packed_bodies_are_read(made_up: Served, encoding: str, packed: Callable[[bytes], bytes]) -> None:
    assert posted(made_up, packed(DATA), encoding).json()["choices"][0]["message"]["content"] == "HHH"


@pytest.mark.skipif(sys.version_info < (3, 14), reason="zstd comes with Python 3.14")
def test_zstd_is_read() -> None:
    zstd = import_module("compression.zstd")
    with serving(TurningModels) as served:
        assert posted(served, zstd.compress(DATA), "zstd").status_code == 200
        assert posted(served, zstd.compress(DATA)[:-3], "zstd").status_code == 400


@pytest.mark.parametrize("encoding", ["br", "compress", *(["zstd"] if sys.version_info < (3, 14) else [])])
def test_an_encoding_that_is_not_known_is_named(made_up: Served, encoding: str) -> None:
    reply = posted(made_up, DATA, encoding)
    assert reply.status_code == 415
    assert encoding in reply.json()["error"]["message"]
    assert "features.enable_request_compression=false" in reply.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize(
    "broken",
    [DATA, gzip.compress(DATA)[:-9], gzip.compress(DATA)[:20], b"\x1f\x8b"],
    ids=[
        "not packed",
        "without its end",
        "its beginning",
        "its mark",
    ],  # gzip writes the time into its header
)
def test_damaged_bodies_are_refused(made_up: Served, encoding: str, broken: bytes) -> None:
    reply = posted(made_up, broken, encoding)
    assert reply.status_code == 400
    assert f"Content-Encoding {encoding}" in reply.json()["error"]["message"]


def test_a_body_that_unpacks_to_too_much_is_refused(made_up: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MAX_BODY", 1000)
    bomb = gzip.compress(b" " * 500_000)
    assert len(bomb) < 1000
    assert posted(made_up, bomb, "gzip").status_code == 413
    assert posted(made_up, gzip.compress(DATA), "gzip").status_code == 200


def test_no_more_is_unpacked_than_is_allowed() -> None:
    bomb = gzip.compress(b" " * 5_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(HTTPException, match="413"):
            unpacked(bomb, "gzip", 1000)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


def test_a_byte_order_mark_is_passed_over(made_up: Served) -> None:
    assert posted(made_up, b"\xef\xbb\xbf" + DATA).status_code == 200
