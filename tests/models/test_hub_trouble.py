"""What can go wrong on the way to the hub, and what is said about it: one line, and what to do."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from huggingface_hub import constants

from localspec.errors import UserError
from localspec.models import hub as hub_module
from localspec.models.hub import pull, remote_shape
from localspec.models.names import parse
from localspec.units import size
from tests.models.hub_server import COMMIT, Hub, Repository

NAME = "someone/tiny-GGUF"
FILE = "tiny-Q4_K_M.gguf"
DATA = os.urandom(50_000)
API = f"/api/models/{NAME}"
RESOLVE = f"/{NAME}/resolve"


@pytest.fixture(autouse=True)
def offered(hub: Hub) -> Repository:
    hub.repositories[NAME] = Repository({FILE: DATA, "tiny-Q8_0.gguf": DATA, "mmproj-tiny-F16.gguf": DATA})
    return hub.repositories[NAME]


def refusal(text: str = NAME) -> tuple[str, str]:
    with pytest.raises(UserError) as caught:
        pull(parse(text))
    assert "\n" not in caught.value.message + caught.value.hint
    return caught.value.message, caught.value.hint


def test_a_repository_that_is_not_there() -> None:
    message, hint = refusal("someone/tyny-GGUF")
    assert message.endswith("has no public repository someone/tyny-GGUF")
    assert hint.startswith("check the spelling; for a private or gated one, make a token")


def test_a_repository_that_is_not_there_for_a_token_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert refusal("someone/tyny-GGUF")[1] == "check the spelling"


def test_a_quant_that_is_not_there_lists_those_that_are() -> None:
    message, hint = refusal(f"{NAME}:Q4_K_L")
    assert message == f"{NAME} has no quant Q4_K_L; did you mean Q4_K_M?"
    assert hint == "there are: Q4_K_M, Q8_0"


def test_a_file_that_is_not_there() -> None:
    assert refusal(f"{NAME}/tiny-Q4_K_X.gguf")[1] == f"did you mean {FILE}?"


def test_a_revision_that_is_not_there() -> None:
    assert "does not exist in this revision" in refusal(f"{NAME}@v9")[0]


def test_a_gated_repository_without_a_token(offered: Repository) -> None:
    offered.gated = True
    message, hint = refusal()
    assert message == f"{NAME} is gated: its owner wants you to accept terms first"
    assert "set HF_TOKEN" in hint


def test_a_refusal_leaves_no_unfinished_download(offered: Repository, cache: Path) -> None:
    offered.gated = True
    refusal()
    assert not list(cache.rglob("*.incomplete"))


def test_a_gated_repository_with_a_token_of_someone_else(
    offered: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered.gated = True
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    message, hint = refusal()
    assert "is gated" in message
    assert "with the account of your HF_TOKEN" in hint


def test_a_wrong_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_bad")
    message, hint = refusal()
    assert "refuses access" in message
    assert "HTTP 401" in message
    assert "HF_TOKEN" in hint
    assert "hf_bad" not in message + hint


@pytest.mark.parametrize(
    ("status", "words"),
    [(403, "is gated"), (404, "has no public repository"), (418, "HTTP 418"), (429, "fewer requests"),
     (500, "has a server error (HTTP 500)"), (503, "has a server error (HTTP 503)")],
)  # fmt: skip
def test_other_refusals(hub: Hub, status: int, words: str) -> None:
    hub.failing = {API: [status]}
    assert words in refusal()[0]


def test_a_server_that_recovers_while_downloading(hub: Hub) -> None:
    hub.failing = {RESOLVE: [503, 500], "/storage": [502]}
    assert pull(parse(NAME)).read_bytes() == DATA


def test_a_server_that_does_not_recover(hub: Hub) -> None:
    hub.failing = {RESOLVE: [503] * 9}
    assert refusal()[1] == "try again later; the part so far is saved"
    assert len([asked for asked in hub.asked if asked.path.startswith(RESOLVE)]) == 4


@pytest.mark.slow
def test_a_line_that_goes_dead_is_dropped_and_tried_again(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    hub.stalls = 1
    assert pull(parse(NAME)).read_bytes() == DATA
    assert [asked.range for asked in hub.downloads] == ["bytes=0-49999", "bytes=25000-49999"]


def test_a_line_that_stays_dead(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.05)
    monkeypatch.setattr(hub_module, "PAUSES_S", ())
    hub.stalls = 1
    assert "does not answer in time" in refusal()[0]


def test_no_one_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    message, hint = refusal()
    assert message.startswith(f"127.0.0.1:{port} cannot be reached: ")
    assert "network connection" in hint


def test_a_name_that_cannot_be_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_arguments: object, **_more: object) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    assert refusal() == (
        "the name hub.invalid cannot be resolved",
        "check the network connection and HF_ENDPOINT",
    )


def test_the_login_page_of_a_hotel(hub: Hub) -> None:
    hub.html = True
    message, hint = refusal()
    assert message.endswith("is not a Hugging Face hub")
    assert "log in to this network" in hint


def test_offline_asks_nobody(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    message, hint = refusal()
    assert message == f"{NAME} is not on this computer, and HF_HUB_OFFLINE forbids to download it"
    assert "unset HF_HUB_OFFLINE" in hint
    assert hub.asked == []


def test_no_space_is_noticed_before_the_first_byte(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=len(DATA) - 1))
    message, hint = refusal()
    assert f"needs {size(len(DATA))} more, but only {size(len(DATA) - 1)} are free in " in message
    assert "HF_HUB_CACHE" in hint
    assert hub.downloads == []


def test_space_counts_only_for_what_is_missing(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    part = cache / "models--someone--tiny-GGUF" / "blobs" / f"{hub.sha(NAME, FILE)}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(DATA[:40_000])
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=10_000))
    assert pull(parse(NAME)).read_bytes() == DATA


def test_a_disk_that_fills_up_keeps_the_part(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    def full(*_arguments: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    message, hint = refusal()
    assert message == f"the disk is full at {cache / 'models--someone--tiny-GGUF'}"
    assert hint == "free some space and pull again: the part so far is saved"
    assert [path.stat().st_size for path in cache.rglob("*.incomplete")] == [len(DATA)]


def test_a_cache_that_cannot_be_written(cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where a folder should be")
    message, hint = refusal()
    assert message.startswith("the download cannot be written")
    assert "HF_HUB_CACHE" in hint


@pytest.mark.slow
def test_two_pulls_of_one_file_do_not_mix(hub: Hub, cache: Path) -> None:
    from filelock import FileLock

    lock = cache / ".locks" / "models--someone--tiny-GGUF" / f"{hub.sha(NAME, FILE)}.lock"
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        assert refusal()[0] == f"another program is downloading {NAME}"
    assert pull(parse(NAME)).read_bytes() == DATA


def test_a_server_that_lists_evil_paths_is_not_followed(hub: Hub, offered: Repository) -> None:
    offered.files = {"../../../../evil.gguf": DATA}
    assert "without safe names and checksums" in refusal()[0]
    assert hub.downloads == []


def test_more_bytes_than_listed_are_rejected(hub: Hub, offered: Repository) -> None:
    class Growing(dict[str, bytes]):
        def __getitem__(self, name: str) -> bytes:
            content = super().__getitem__(name)
            return content + b"more" if hub.asked[-1].path.startswith("/storage/") else content

    offered.files, hub.no_ranges = Growing(offered.files), True
    assert refusal()[0] == f"{FILE} is longer than on Hugging Face"


def test_the_remote_shape_of_what_is_not_a_model() -> None:
    with pytest.raises(UserError, match=f"{NAME} is not a GGUF file"):
        remote_shape(parse(NAME))


def test_the_commit_of_a_named_revision_does_not_become_the_newest(cache: Path) -> None:
    pull(parse(f"{NAME}@{COMMIT}"))
    assert not (cache / "models--someone--tiny-GGUF" / "refs" / "main").exists()


@pytest.mark.parametrize("lengths", [[10, 10], [11, 10, 11, 10]])  # a page with the time, say
def test_a_server_that_always_begins_again_and_never_ends_is_dropped(
    hub: Hub, offered: Repository, lengths: list[int]
) -> None:

    left = list(lengths)

    class Changing(dict[str, bytes]):
        def __getitem__(self, name: str) -> bytes:
            content = super().__getitem__(name)
            is_download = hub.asked[-1].path.startswith("/storage/")
            return content[: left.pop(0)] if is_download and left else content

    offered.files, hub.no_ranges = Changing(offered.files), True
    assert refusal()[0] == f"the server sends nothing of {FILE}"
