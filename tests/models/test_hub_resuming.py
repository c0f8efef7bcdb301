"""What is asked of the hub again, and what is not, after a download that did not end well."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from localspec.errors import UserError
from localspec.models import hub as hub_module
from localspec.models.hub import pull
from localspec.models.names import parse
from tests.models.hub_server import Hub, Repository

NAME = "someone/tiny-GGUF"
FILE = "tiny-Q4_K_M.gguf"
DATA = os.urandom(50_000)


@pytest.fixture(autouse=True)
def offered(hub: Hub) -> Repository:
    hub.repositories[NAME] = Repository({FILE: DATA})
    return hub.repositories[NAME]


def blobs(cache: Path) -> Path:
    return cache / "models--someone--tiny-GGUF" / "blobs"


def test_a_part_that_is_all_there_needs_no_download(hub: Hub, cache: Path) -> None:
    blobs(cache).mkdir(parents=True)
    (blobs(cache) / f"{hub.sha(NAME, FILE)}.incomplete").write_bytes(DATA)
    assert pull(parse(NAME)).read_bytes() == DATA
    assert hub.downloads == []


def test_a_line_may_break_any_number_of_times_while_something_arrives(hub: Hub) -> None:
    hub.cut_after = [5_000] * 2 * len(hub_module.PAUSES_S)
    assert pull(parse(NAME)).read_bytes() == DATA
    assert len(hub.downloads) == 2 * len(hub_module.PAUSES_S) + 1


def test_large_files_are_asked_for_in_pieces(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_MAX_REQUEST", 20_000)
    assert pull(parse(NAME)).read_bytes() == DATA
    assert [asked.range for asked in hub.downloads] == [
        "bytes=0-19999",
        "bytes=20000-39999",
        "bytes=40000-49999",
    ]


def test_a_server_that_wants_fewer_requests_is_asked_again(hub: Hub) -> None:
    hub.failing = {f"/{NAME}/resolve": [429, 429]}
    assert pull(parse(NAME)).read_bytes() == DATA


def test_a_link_to_a_blob_that_is_gone_is_fixed(cache: Path) -> None:
    path = pull(parse(NAME))
    path.resolve().unlink()
    assert pull(parse(NAME)) == path
    assert path.is_symlink()
    assert [blob.read_bytes() for blob in blobs(cache).iterdir()] == [DATA]


def test_a_file_that_stands_where_a_link_belongs_gives_way(hub: Hub, cache: Path) -> None:
    path = pull(parse(NAME))
    path.unlink()
    path.write_bytes(DATA[:100])
    assert pull(parse(NAME)) == path
    assert path.is_symlink()
    assert (path.read_bytes(), len(hub.downloads)) == (DATA, 1)
    assert [blob.read_bytes() for blob in blobs(cache).iterdir()] == [DATA]


@pytest.mark.parametrize("name", ["/evil.gguf", "..\\evil.gguf"])
def test_no_listed_file_may_lie_elsewhere(hub: Hub, offered: Repository, name: str) -> None:
    offered.files = {name: DATA}
    with pytest.raises(UserError, match="without safe names and checksums"):
        pull(parse(NAME))
    assert hub.downloads == []


def test_a_refusal_of_a_token_is_not_taken_for_a_gate(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    hub.failing = {f"/api/models/{NAME}": [403]}
    with pytest.raises(UserError, match=r"refuses access to .* with this token \(HTTP 403\)"):
        pull(parse(NAME))


@pytest.mark.parametrize("word", ["1", "yes", " True "])
def test_every_word_for_offline_is_understood(hub: Hub, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", word)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE forbids"):
        pull(parse(NAME))
    assert hub.asked == []
