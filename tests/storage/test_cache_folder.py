"""Copies of caches in files: what comes back, what is refused, what makes room."""

from __future__ import annotations

import os
import random
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from localspec.errors import StoreError
from localspec.storage import cache_file, cache_folder
from localspec.storage.cache_file import DamagedFileError
from localspec.storage.cache_folder import CacheFolder, KeptFile
from localspec.storage.kept_caches import caches_dir, figures, forget_all, forget_named
from localspec.types.saved_states import CachedText, ConversationCopy, SavedState

MODELS = ("a" * 24, "b" * 24)
PLENTY = 2**30


@pytest.fixture(autouse=True)
def ample_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int = 2**40

    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage())


def state(length: int, size: int = 1000) -> SavedState:
    return SavedState(length, np.frombuffer(random.Random(length).randbytes(size), np.uint8))


def copy(
    tokens: Sequence[int], name: str | None = "", size: int = 1000, *, drafts: bool = True
) -> ConversationCopy:
    whole = state(len(tokens), size)
    hybrid = SavedState(whole.length, whole.state, ((len(tokens) // 2, state(7, 50).state),))
    draft = CachedText(tuple(tokens[:-5]), state(len(tokens) - 5, size)) if drafts else None
    return ConversationCopy(CachedText(tuple(tokens), hybrid), draft, name)


def same(found: ConversationCopy | None, expected: ConversationCopy) -> bool:
    assert found is not None
    pairs = ((found.target, expected.target), (found.draft, expected.draft))
    return all(
        one is other is None
        or (
            one is not None
            and other is not None
            and one.tokens == other.tokens
            and one.saved.length == other.saved.length
            and bytes(one.saved.state) == bytes(other.saved.state)
            and [(at, bytes(each)) for at, each in one.saved.checkpoints]
            == [(at, bytes(each)) for at, each in other.saved.checkpoints]
        )
        for one, other in pairs
    )


def write(folder: CacheFolder, kept: ConversationCopy) -> None:
    folder.write(kept, lambda: True)


def read(folder: CacheFolder, found: KeptFile) -> ConversationCopy | None:
    return folder.read(found, lambda size: np.zeros(size, np.uint8), lambda: True)


def copies(folder: CacheFolder) -> Iterator[ConversationCopy]:
    files, damaged = folder.files()
    assert damaged == []
    for found in files:
        each = read(folder, found)
        assert each is not None
        yield each


def texts(folder: CacheFolder) -> set[int]:
    """Return the first tokens of the texts that are there."""
    return {found.tokens[0] for found in folder.files()[0]}


def text(first: int, length: int = 200) -> list[int]:
    return [first, *range(1000, 999 + length)]


def test_a_copy_comes_back_in_another_program() -> None:
    kept = copy(text(1), "chat7")
    write(CacheFolder(PLENTY, MODELS), kept)
    (found,) = copies(CacheFolder(PLENTY, MODELS))
    assert same(found, kept)
    assert found.kept_as == "chat7"


def test_only_the_owner_can_look_into_files() -> None:
    caches_dir().mkdir(parents=True, mode=0o755)
    write(CacheFolder(PLENTY, MODELS), copy(text(1)))
    (path,) = caches_dir().iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(caches_dir().stat().st_mode) == 0o700


def test_another_model_finds_nothing_and_another_draft_model_only_the_target() -> None:
    write(CacheFolder(PLENTY, MODELS), copy(text(1)))
    assert not list(copies(CacheFolder(PLENTY, ("c" * 24, MODELS[1]))))
    for models in ((MODELS[0], "c" * 24), MODELS[:1]):
        assert [each.draft for each in copies(CacheFolder(PLENTY, models))] == [None]


def test_a_file_of_another_model_under_a_wrong_name_is_deleted() -> None:
    write(CacheFolder(PLENTY, MODELS), copy(text(1)))
    (path,) = caches_dir().iterdir()
    path.rename(path.with_name(path.name.replace("a" * 24, "d" * 24)))
    files, damaged = CacheFolder(PLENTY, ("d" * 24, MODELS[1])).files()
    assert files == []
    assert "of another model" in str(damaged[0])
    assert figures().count == 0


def test_a_damaged_file_is_never_taken_for_a_copy() -> None:
    drawn = random.Random(1)
    for number in range(60):
        check_damage(drawn, copy(text(1)), empties=not number)


def check_damage(drawn: random.Random, kept: ConversationCopy, *, empties: bool) -> None:
    write(CacheFolder(PLENTY, MODELS), kept)
    (path,) = caches_dir().iterdir()
    whole = path.read_bytes()
    if drawn.random() < 0.4:  # as a full disk or a power cut leaves it
        data = bytearray(whole[: drawn.randrange(len(whole))])
    else:
        data = bytearray(whole)
        at = drawn.randrange(len(data))
        data[at] ^= 1 << drawn.randrange(8)
    if drawn.random() < 0.3:
        data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    path.write_bytes(b"" if empties else data)
    folder = CacheFolder(PLENTY, MODELS)
    files, damaged = folder.files()
    for found in files:
        with pytest.raises(DamagedFileError):
            read(folder, found)
    assert len(files) + len(damaged) == 1
    assert figures().count == 0, "it is deleted"


def test_the_limit_counts_files_of_earlier_programs_and_other_models() -> None:
    first = CacheFolder(PLENTY, ("e" * 24,))
    for number in range(3):
        write(first, copy(text(number), size=10_000, drafts=False))
    small = CacheFolder(35_000, MODELS)
    for number in range(10, 13):
        write(small, copy(text(number), size=10_000, drafts=False))
        assert figures().bytes <= 35_000
    assert texts(small) == {10, 11, 12}
    assert texts(first) == set()


def test_the_least_recently_used_go_first() -> None:
    folder, now = CacheFolder(36_000, MODELS), time.time()
    for number in range(3):
        write(folder, copy(text(number), size=10_000, drafts=False))
        for found in folder.files()[0]:
            if found.tokens[0] == number:
                os.utime(found.path, (now - 100 + number,) * 2)
    oldest = next(found for found in folder.files()[0] if found.tokens[0] == 0)
    assert read(folder, oldest) is not None  # which is a use
    write(folder, copy(text(3), size=10_000, drafts=False))
    assert texts(folder) == {0, 2, 3}


def test_what_is_larger_than_the_limit_spares_the_others() -> None:
    folder = CacheFolder(30_000, MODELS)
    write(folder, copy(text(1), drafts=False))
    write(folder, copy(text(2), size=40_000, drafts=False))
    assert texts(folder) == {1}


def test_a_longer_text_replaces_what_it_continues_and_hardly_more_is_not_written() -> None:
    folder = CacheFolder(PLENTY, MODELS)
    write(folder, copy(text(1, 200)))
    write(folder, copy(text(1, 400)))
    write(folder, copy(text(1, 405)))
    assert [len(found.tokens) for found in folder.files()[0]] == [400]


def test_one_beginning_of_two_texts_is_kept_with_both() -> None:
    folder = CacheFolder(PLENTY, MODELS)
    for number in (1, 2):
        write(folder, copy([*text(9, 400), *text(number, 100)]))
    assert len(folder.files()[0]) == 2


def test_a_full_disk_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    folder = CacheFolder(PLENTY, MODELS)
    write(folder, copy(text(1)))
    monkeypatch.setattr(cache_file, "write_copy", fails)
    with pytest.raises(OSError, match="No space left"):
        write(folder, copy(text(2)))
    assert texts(folder) == {1}
    assert len(list(caches_dir().iterdir())) == 1


def test_a_disk_that_is_nearly_full_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CacheFolder(PLENTY, MODELS)
    write(folder, copy(text(1)))

    class Usage(NamedTuple):
        free: int = cache_folder.SPARE - 10**6

    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage())
    write(folder, copy(text(2)))
    assert figures().count == 0, "those that are there give way"


def test_what_killed_programs_left_and_what_nobody_uses_goes() -> None:
    folder, now = CacheFolder(PLENTY, MODELS), time.time()
    for number in (1, 2):
        write(folder, copy(text(number)))
    for found in folder.files()[0]:
        if found.tokens[0] == 1:
            os.utime(found.path, (now - cache_folder.KEPT_S - 60,) * 2)
    for name, age_s in (("old.tmp", 3600), ("new.tmp", 5)):
        (caches_dir() / name).write_bytes(b"unfinished")
        os.utime(caches_dir() / name, (now - age_s,) * 2)
    write(folder, copy(text(3)))
    assert texts(folder) == {2, 3}
    assert [path.name for path in caches_dir().glob("*.tmp")] == ["new.tmp"]


def test_a_copy_that_is_no_longer_wanted_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_file, "_PIECE", 100)
    answers = iter([True] * 5)
    CacheFolder(PLENTY, MODELS).write(copy(text(1)), lambda: next(answers, False))
    assert list(caches_dir().iterdir()) == []


def test_pipes_and_links_are_not_read(tmp_path: Path) -> None:
    folder = CacheFolder(PLENTY, MODELS)
    write(folder, copy(text(1)))
    (path,) = caches_dir().iterdir()
    path.rename(tmp_path / "elsewhere.kv")
    path.symlink_to(tmp_path / "elsewhere.kv")
    os.mkfifo(path.with_name(f"{MODELS[0]}-pipe.kv"))
    assert folder.files() == ([], [])


def test_a_chat_is_forgotten_and_all_are() -> None:
    folder = CacheFolder(PLENTY, MODELS)
    for number, name in enumerate(("chat1", "chat12", "", None, "../../etc/x")):
        write(folder, copy(text(number), name))
    forget_named("chat1")
    assert texts(folder) == {1, 2, 3, 4}
    forget_named("")
    assert figures().count == 4
    (caches_dir() / "x.tmp").write_bytes(b"1")
    assert forget_all().count == 5
    assert list(caches_dir().iterdir()) == []


def test_a_folder_that_cannot_be_read_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_STATE_DIR", str(tmp_path / "file"))
    (tmp_path / "file").write_text("not a folder")
    folder = CacheFolder(PLENTY, MODELS)
    assert folder.files() == ([], [])
    assert figures().count == 0
    with pytest.raises((OSError, StoreError)):
        write(folder, copy(text(1)))
