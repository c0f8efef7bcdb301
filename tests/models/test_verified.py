"""A file of the hub's cache is used once its checksum was found right, and is not read for that again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from localspec.errors import UserError
from localspec.models.caches import ModelFolder
from localspec.models.hub import DownloadProgress, pull, resolve
from localspec.models.local import LocalModel, find_models
from localspec.models.names import parse
from localspec.models.verified import verify
from localspec.storage.paths import state_dir
from tests.models.disk import REPOSITORY, model_bytes, put
from tests.models.hub_server import Hub, Repository

FILE = "tiny-Q8_0.gguf"
DATA = model_bytes()


@pytest.fixture
def offering(hub: Hub) -> Hub:
    hub.repositories[REPOSITORY] = Repository({FILE: DATA})
    return hub


def flip_a_bit(path: Path) -> None:
    """Damage a file as a disk does: its size stays, and no one hears of it."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def on_disk(cache: Path) -> LocalModel:
    (model,) = find_models(places=[ModelFolder(cache, "hub")])
    return model


def read_for(model: LocalModel) -> float:
    """How much of a model is read to check it."""
    told = [0.0]
    verify(model.files, told.append)
    return told[-1]


def test_what_another_program_downloaded_is_read_once(cache: Path) -> None:
    path = put(cache, FILE, DATA)
    assert read_for(on_disk(cache)) == 1.0
    assert read_for(on_disk(cache)) == 0.0
    os.utime(path.resolve(), (1, 1))
    assert read_for(on_disk(cache)) == 1.0


def test_a_download_of_our_own_is_not_read_again(offering: Hub, cache: Path) -> None:
    pull(parse(REPOSITORY))
    assert offering.downloads
    assert read_for(on_disk(cache)) == 0.0


def test_a_damaged_file_is_not_used(cache: Path) -> None:
    path = put(cache, FILE, DATA)
    flip_a_bit(path.resolve())
    for _ in range(2):  # damage is not remembered: someone may mend it
        with pytest.raises(UserError, match="is damaged: its checksum differs") as caught:
            resolve(parse(REPOSITORY))
        assert "localspec pull" in caught.value.hint
    path.resolve().write_bytes(DATA)
    assert resolve(parse(REPOSITORY)) == path


def test_a_file_that_changes_after_it_was_found_right_is_read_again(cache: Path) -> None:
    path = put(cache, FILE, DATA)
    assert resolve(parse(REPOSITORY)) == path
    flip_a_bit(path.resolve())
    os.utime(path.resolve(), (1, 1))  # a clock may be coarser than a test is fast
    with pytest.raises(UserError, match="is damaged"):
        resolve(parse(REPOSITORY))


def test_every_part_of_a_model_is_checked(cache: Path) -> None:
    parts = [put(cache, f"tiny-Q8_0-0000{number}-of-00002.gguf", DATA + bytes([number])) for number in (1, 2)]
    assert read_for(on_disk(cache)) == 1.0
    flip_a_bit(parts[1].resolve())
    os.utime(parts[1].resolve(), (1, 1))
    with pytest.raises(UserError, match=r"00002-of-00002\.gguf is damaged"):
        verify(on_disk(cache).files)


def test_a_pull_replaces_a_damaged_file(offering: Hub, cache: Path) -> None:
    path = put(cache, FILE, DATA)
    flip_a_bit(path.resolve())
    assert pull(parse(REPOSITORY)).read_bytes() == DATA
    assert len(offering.downloads) == 1
    assert read_for(on_disk(cache)) == 0.0


def test_a_pull_reads_what_is_here_once_and_reports(offering: Hub, cache: Path) -> None:
    put(cache, FILE, DATA)
    told: list[DownloadProgress] = []

    def on_progress(progress: DownloadProgress) -> bool:
        told.append(progress)
        return True

    pull(parse(REPOSITORY), on_progress=on_progress)
    assert told[-1] == DownloadProgress(
        FILE, len(DATA), len(DATA), told[-1].rate, told[-1].left_s, is_check=True
    )
    told.clear()
    pull(parse(REPOSITORY), on_progress=on_progress)
    assert (told, offering.downloads) == ([], [])


def test_gits_checksum_of_a_small_file_counts_too(cache: Path) -> None:
    path = put(cache, FILE, DATA)
    git = hashlib.sha1(b"blob %d\0" % len(DATA) + DATA).hexdigest()
    blob = path.resolve().rename(path.resolve().with_name(git))
    path.unlink()
    path.symlink_to(blob)
    assert read_for(on_disk(cache)) == 1.0
    flip_a_bit(blob)
    os.utime(blob, (1, 1))
    with pytest.raises(UserError, match="is damaged"):
        verify(on_disk(cache).files)


def test_where_there_are_not_links_a_model_is_not_downloaded_twice(
    offering: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_arguments: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "symlink_to", none)
    path = pull(parse(REPOSITORY))
    assert not path.is_symlink()
    assert read_for(on_disk(cache)) == 0.0
    assert pull(parse(REPOSITORY)) == path
    assert len(offering.downloads) == 1


def test_files_that_no_one_lists_a_checksum_of_are_not_read(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").write_bytes(DATA)
    (model,) = find_models([tmp_path], places=[])
    assert read_for(model) == 0.0
    path = put(cache, FILE, DATA)
    blob = path.resolve().rename(path.resolve().with_name("an-etag-of-a-mirror"))
    path.unlink()
    path.symlink_to(blob)
    assert read_for(on_disk(cache)) == 0.0


def test_a_memory_that_cannot_be_kept_costs_only_time(cache: Path) -> None:
    put(cache, FILE, DATA)
    (state_dir() / "verified").write_text("a file where a folder should be")
    assert read_for(on_disk(cache)) == read_for(on_disk(cache)) == 1.0


@pytest.mark.parametrize("memory", [b"", b"\xff\xfe", b"1 2 3", b"x" * 100_000])
def test_a_memory_that_was_damaged_is_made_again(cache: Path, memory: bytes) -> None:
    put(cache, FILE, DATA)
    assert read_for(on_disk(cache)) == 1.0
    (note,) = (state_dir() / "verified").iterdir()
    note.write_bytes(memory)
    assert read_for(on_disk(cache)) == 1.0
    assert read_for(on_disk(cache)) == 0.0
