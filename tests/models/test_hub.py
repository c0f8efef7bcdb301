"""Downloads from the hub, end to end against a server on this machine."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from localspec.demo import bundled_pair
from localspec.errors import Cancelled, UnreachableError, UserError
from localspec.models.hub import DownloadProgress, OnProgress, RemoteModel, pull, remote_shape, resolve
from localspec.models.names import parse
from localspec.models.shape import read_shape
from tests.models.hub_server import COMMIT, Hub, Repository

NAME = "someone/tiny-GGUF"
DATA = os.urandom(300_000)


def offer(hub: Hub, *names: str, content: bytes = DATA, gated: bool = False) -> Repository:
    repository = Repository(dict.fromkeys(names, content), gated=gated)
    hub.repositories[NAME] = repository
    return repository


def into(told: list[DownloadProgress]) -> OnProgress:
    def on_progress(progress: DownloadProgress) -> bool:
        told.append(progress)
        return True

    return on_progress


def broken_off_at(fraction: float) -> OnProgress:
    def on_progress(progress: DownloadProgress) -> bool:
        return progress.done < progress.total * fraction

    return on_progress


def test_a_model_lands_where_the_hub_cache_has_it(hub: Hub, cache: Path) -> None:
    offer(hub, "README.md", "tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf")
    path = pull(parse(NAME))
    assert path == cache / "models--someone--tiny-GGUF" / "snapshots" / COMMIT / "tiny-Q4_K_M.gguf"
    assert path.read_bytes() == DATA
    assert path.is_symlink()
    assert path.resolve().name == hashlib.sha256(DATA).hexdigest()
    assert [asked.path for asked in hub.downloads] == [f"/storage/{NAME}/tiny-Q4_K_M.gguf"]


def test_huggingface_hub_finds_what_was_pulled(hub: Hub, cache: Path) -> None:
    from huggingface_hub import try_to_load_from_cache

    offer(hub, "deep/tiny-Q4_K_M.gguf")
    path = pull(parse(NAME))
    assert try_to_load_from_cache(NAME, "deep/tiny-Q4_K_M.gguf", cache_dir=cache) == str(path)


def test_what_is_there_is_not_downloaded_again(hub: Hub) -> None:
    offer(hub, "tiny-Q4_K_M.gguf")
    assert pull(parse(NAME)) == pull(parse(NAME))
    assert len(hub.downloads) == 1


def test_a_new_commit_with_the_same_file_costs_no_download(hub: Hub) -> None:
    repository = offer(hub, "tiny-Q4_K_M.gguf")
    pull(parse(NAME))
    repository.commit = "b" * 40
    path = pull(parse(NAME))
    assert path.parent.name == "b" * 40
    assert path.read_bytes() == DATA
    assert len(hub.downloads) == 1


def test_a_line_that_breaks_three_times_costs_nothing_twice(hub: Hub) -> None:
    offer(hub, "tiny-Q4_K_M.gguf")
    hub.cut_after = [90_000, 70_000, 50_000]
    assert pull(parse(NAME)).read_bytes() == DATA
    starts = [int((asked.range or "").removeprefix("bytes=").split("-")[0]) for asked in hub.downloads]
    assert starts == [0, 90_000, 160_000, 210_000]


def test_a_pull_broken_off_three_times_continues_where_it_stopped(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.models.hub._TELL_S", 0.0)  # a fast machine needs less for all of it
    offer(hub, "tiny-Q4_K_M.gguf")
    sizes = []
    for fraction in (0.2, 0.5, 0.8):
        with pytest.raises(Cancelled, match="is saved"):
            pull(parse(NAME), on_progress=broken_off_at(fraction))
        (part,) = cache.rglob("*.incomplete")
        sizes.append(part.stat().st_size)
        assert DATA.startswith(part.read_bytes())
        assert not list(cache.rglob("*.gguf"))
    assert 0 < sizes[0] < sizes[1] < sizes[2] < len(DATA)
    assert pull(parse(NAME)).read_bytes() == DATA
    assert hub.downloads[-1].range == f"bytes={sizes[2]}-{len(DATA) - 1}"
    assert not list(cache.rglob("*.incomplete"))


def test_ctrl_c_keeps_the_part(hub: Hub, cache: Path) -> None:
    offer(hub, "tiny-Q4_K_M.gguf")

    def interrupt(progress: DownloadProgress) -> bool:
        if progress.done:
            raise KeyboardInterrupt
        return True

    with pytest.raises(KeyboardInterrupt):
        pull(parse(NAME), on_progress=interrupt)
    (part,) = cache.rglob("*.incomplete")
    assert DATA.startswith(part.read_bytes())
    assert part.stat().st_size > 0


def test_damaged_bytes_are_rejected_and_thrown_away(hub: Hub, cache: Path) -> None:
    offer(hub, "tiny-Q4_K_M.gguf")
    hub.damaged = True
    with pytest.raises(UnreachableError, match="was damaged in transit: its checksum differs") as caught:
        pull(parse(NAME))
    assert "pull again" in caught.value.hint
    assert not [path for path in cache.rglob("*") if path.suffix in (".gguf", ".incomplete")]
    assert not list(cache.glob("*/blobs/*"))
    hub.damaged = False
    assert pull(parse(NAME)).read_bytes() == DATA


def test_a_damaged_part_from_before_is_noticed(hub: Hub, cache: Path) -> None:
    offer(hub, "tiny-Q4_K_M.gguf")
    blobs = cache / "models--someone--tiny-GGUF" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hub.sha(NAME, 'tiny-Q4_K_M.gguf')}.incomplete").write_bytes(b"x" * 1000)
    with pytest.raises(UserError, match="damaged in transit"):
        pull(parse(NAME))
    assert pull(parse(NAME)).read_bytes() == DATA


def test_a_part_that_is_too_long_begins_again(hub: Hub, cache: Path) -> None:
    offer(hub, "tiny-Q4_K_M.gguf")
    blobs = cache / "models--someone--tiny-GGUF" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hub.sha(NAME, 'tiny-Q4_K_M.gguf')}.incomplete").write_bytes(b"x" * (len(DATA) + 5))
    told: list[DownloadProgress] = []
    assert pull(parse(NAME), on_progress=into(told)).read_bytes() == DATA
    assert told[-1].done == len(DATA)


def test_a_server_without_ranges_sends_all_again(hub: Hub) -> None:
    offer(hub, "tiny-Q4_K_M.gguf")
    hub.no_ranges, hub.cut_after = True, [100_000]
    told: list[DownloadProgress] = []
    assert pull(parse(NAME), on_progress=into(told)).read_bytes() == DATA
    assert told[-1].done == len(DATA)


def test_small_files_are_checked_by_gits_checksum(hub: Hub) -> None:
    offer(hub, "tiny-Q4_K_M.gguf").plain_git.add("tiny-Q4_K_M.gguf")
    assert pull(parse(NAME)).read_bytes() == DATA
    changed = offer(hub, "tiny-Q4_K_M.gguf", content=DATA[::-1])
    changed.plain_git.add("tiny-Q4_K_M.gguf")
    changed.commit, hub.damaged = "b" * 40, True
    with pytest.raises(UserError, match="damaged in transit"):
        pull(parse(NAME))


def test_all_parts_of_a_split_model_come(hub: Hub) -> None:
    names = [f"Q4_K_M/big-Q4_K_M-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    hub.repositories[NAME] = Repository({name: os.urandom(5000) for name in reversed(names)})
    found: list[tuple[RemoteModel, int]] = []
    told: list[DownloadProgress] = []
    path = pull(parse(NAME), on_found=lambda *what: found.append(what), on_progress=into(told))
    assert path.name == "big-Q4_K_M-00001-of-00003.gguf"
    assert len(list(path.parent.iterdir())) == 3
    assert (found[0][0].bytes, found[0][1]) == (15_000, 15_000)
    assert (told[-1].done, told[-1].total) == (15_000, 15_000)


def test_the_token_goes_to_the_hub_alone(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(hub, "tiny-Q4_K_M.gguf", gated=True)
    hub.tokens.add("hf_member")
    monkeypatch.setenv("HF_TOKEN", "hf_member")
    pull(parse(NAME))
    tokens = {asked.path.startswith("/storage/"): asked.token for asked in hub.asked}
    assert tokens == {False: "hf_member", True: None}


def test_a_model_on_disk_is_opened_without_asking_anybody(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(hub, "tiny-Q4_K_M.gguf", content=bundled_pair()[1].read_bytes())
    path = resolve(parse(NAME))
    hub.asked.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for text in (NAME, f"{NAME}:q4_k_m", f"{NAME}/tiny-Q4_K_M.gguf"):
        assert resolve(parse(text)) == path
    assert hub.asked == []


def test_the_shape_of_a_remote_model_needs_its_header_alone(hub: Hub) -> None:
    draft = bundled_pair()[1]
    offer(hub, "tiny-Q8_0.gguf", content=draft.read_bytes() + bytes(4_000_000))
    shape, local = remote_shape(parse(NAME)), read_shape(draft)
    assert (shape.layers, shape.vocabulary_family) == (local.layers, local.vocabulary_family)
    asked = [range_.removeprefix("bytes=") for a in hub.downloads if (range_ := a.range)]
    assert asked[0] == "0-1048575"
    assert len(asked) == len(hub.downloads) <= 2


def test_a_pull_of_what_is_there_writes_nothing(hub: Hub, cache: Path) -> None:
    def written() -> dict[Path, tuple[int, int]]:
        return {path: (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in cache.rglob("*")}

    offer(hub, "tiny-Q4_K_M.gguf")
    pull(parse(NAME))
    before = written()
    pull(parse(NAME))
    assert written() == before


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("Q8_0/tiny.gguf", f"{NAME}:Q8_0"),
        ("tiny-Q8_0.gguf", f"{NAME}@{COMMIT}:Q8_0"),
        ("tiny-Q8_0.gguf", f"{NAME}@{COMMIT[:9]}"),
        ("tiny-UD-Q4_K_XL.gguf", f"{NAME}:Q4_K_XL"),
    ],
)
def test_what_was_pulled_opens_offline_by_the_same_name(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, file: str, text: str
) -> None:
    offer(hub, file, content=bundled_pair()[1].read_bytes())
    path = pull(parse(f"{NAME}" if "@" in text else text))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert resolve(parse(text)) == path


def test_another_commit_or_folder_is_another_model(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(hub, "Q4_0/tiny.gguf", content=bundled_pair()[1].read_bytes())
    pull(parse(NAME))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for text in (f"{NAME}@{'c' * 40}", f"{NAME}@aaaa", f"{NAME}/Q8_0/tiny.gguf", f"{NAME}:Q8_0"):
        with pytest.raises(UserError, match="is not on this computer"):
            resolve(parse(text))


def test_a_quant_that_only_holds_the_word_is_asked_for_online(hub: Hub) -> None:
    offer(hub, "tiny-UD-Q4_K_M.gguf", content=bundled_pair()[1].read_bytes())
    pull(parse(f"{NAME}:UD-Q4_K_M"))
    repository = offer(hub, "tiny-UD-Q4_K_M.gguf", "tiny-Q4_K_M.gguf")
    repository.commit = "b" * 40
    assert resolve(parse(f"{NAME}:Q4_K_M")).name == "tiny-Q4_K_M.gguf"
