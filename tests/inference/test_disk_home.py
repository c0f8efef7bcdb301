"""When copies of caches are written to disk, and when not."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from localspec.inference import disk_copies
from localspec.inference.disk_copies import DiskHome
from localspec.storage.cache_folder import CacheFolder
from localspec.types.saved_states import ConversationCopy
from tests.storage.test_cache_folder import copy, text


class Disk:
    """A disk that writes when it may."""

    def __init__(self) -> None:
        self.written: list[int] = []  # first tokens
        self.may_write = threading.Event()

    def write(self, kept: ConversationCopy, _is_wanted: object) -> None:
        assert self.may_write.wait(60)
        self.written.append(kept.tokens[0])


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(CacheFolder, "write", disk.write)
    yield disk
    disk.may_write.set()


def home() -> DiskHome:
    return DiskHome(2**30, lambda _scales: ("a" * 24,), 4096)


def test_all_that_waits_is_written_at_the_end_the_newest_first(disk: Disk) -> None:
    kept, copies = home(), [copy(text(number)) for number in range(3)]
    for each in copies:
        kept.keep(each)
    kept.drop(copies[1])
    disk.may_write.set()
    kept.finish(60.0)
    assert disk.written == [2, 0]
    kept.keep(copies[1], at_once=True)
    kept.finish(60.0)
    assert disk.written == [2, 0], "it has ended"


def test_a_copy_is_written_once_it_has_rested(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_copies, "REST_S", 0.0)
    disk.may_write.set()
    kept, written = home(), threading.Event()
    monkeypatch.setattr(CacheFolder, "write", lambda *_: written.set())
    kept.keep(copy(text(1)))
    assert written.wait(60)
    kept.finish(60.0)


def test_memory_that_makes_room_goes_to_the_disk_one_copy_at_a_time(disk: Disk) -> None:
    kept, copies = home(), [copy(text(number)) for number in range(5)]
    for each in copies[:3]:
        kept.keep(each)
    for each in (copies[3], *copies[:3]):  # the first of them goes on, or is written already
        kept.hurry(each)
    kept.keep(copies[4])
    disk.may_write.set()
    kept.finish(60.0)
    assert set(disk.written) <= {0, 1, 4}, "more would take memory until the disk has time"
    assert {0, 4} <= set(disk.written)


def test_what_is_forgotten_is_written_when_it_is_used_again(disk: Disk) -> None:
    kept = home()
    kept.keep(copy(text(1), "chat1"))
    kept.forget("chat1")
    kept.keep(copy(text(2), "chat1"))
    kept.keep(copy(text(3), "chat2"))
    kept.remember("chat1")
    kept.keep(copy(text(4), "chat1"))
    disk.may_write.set()
    kept.finish(60.0)
    assert set(disk.written) == {3, 4}


def test_the_end_does_not_wait_for_a_disk_that_hangs(disk: Disk) -> None:
    kept = home()
    kept.keep(copy(text(1)), at_once=True)
    kept.finish(0.01)
    assert disk.written == []
