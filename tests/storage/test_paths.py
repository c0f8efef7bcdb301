from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from localspec.errors import StoreError
from localspec.storage import paths

FOLDERS = [("config", paths.config_dir), ("data", paths.data_dir), ("state", paths.state_dir)]


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("kind", "folder"), FOLDERS)
def test_folders_lie_where_the_system_wants_them(
    empty_home: Path, kind: str, folder: Callable[[], Path]
) -> None:
    found = folder()
    assert found.is_relative_to(empty_home)
    assert kind in str(found)
    assert found.name == "localspec"


@pytest.mark.parametrize(("kind", "folder"), FOLDERS)
def test_a_folder_is_made_where_something_is_written_and_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, folder: Callable[[], Path]
) -> None:
    monkeypatch.setenv(f"LOCALSPEC_{kind.upper()}_DIR", str(tmp_path / "deep" / "down"))
    assert folder() == tmp_path / "deep" / "down"
    assert list(tmp_path.iterdir()) == []
    paths.write_atomically(folder() / "below" / "file", "text")
    assert [permissions(tmp_path / each) for each in ("deep", "deep/down", "deep/down/below")] == [0o700] * 3


def test_a_variable_may_name_the_home_folder_or_start_at_the_current_one(
    empty_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", "~/chats")
    assert paths.data_dir() == empty_home / "chats"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", "here")
    assert paths.data_dir() == tmp_path / "here"


def test_a_folder_that_someone_made_keeps_its_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path))
    assert paths.data_dir() == tmp_path
    assert permissions(tmp_path) == 0o755


@pytest.mark.parametrize(("kind", "folder"), FOLDERS)
def test_a_folder_that_cannot_be_made_matters_where_something_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, folder: Callable[[], Path]
) -> None:
    (tmp_path / "file").write_text("")
    variable = f"LOCALSPEC_{kind.upper()}_DIR"
    monkeypatch.setenv(variable, str(tmp_path / "file" / "below"))
    assert folder() == tmp_path / "file" / "below"
    with pytest.raises(StoreError, match=f"cannot write.*; {variable} names another folder"):
        paths.write_atomically(folder() / "x", "text")
    with pytest.raises(StoreError, match="cannot write") as elsewhere:
        paths.write_atomically(tmp_path / "file" / "x", "text")
    assert "LOCALSPEC" not in str(elsewhere.value)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
@pytest.mark.parametrize(("kind", "folder"), FOLDERS)
def test_where_nothing_may_be_written_a_folder_is_named_and_not_there(
    monkeypatch: pytest.MonkeyPatch, kind: str, folder: Callable[[], Path], number: int
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(paths, "make_private_folder", refuse)
    assert folder().name == "localspec"
    assert kind in str(folder())
    with pytest.raises(StoreError, match="cannot write"):
        paths.write_atomically(folder() / "file", "text")


def test_a_file_is_written_whole_and_private(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    paths.write_atomically(file, "é\n")
    assert file.read_bytes() == b"\xc3\xa9\n"
    assert permissions(file) == 0o600
    paths.write_atomically(file, "new", mode=0o644)
    assert file.read_text() == "new"
    assert permissions(file) == 0o644
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "real.toml", tmp_path / "link.toml"
    link.symlink_to(real)
    paths.write_atomically(link, "text")
    assert link.is_symlink()
    assert real.read_text() == "text"


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_what_fails_half_way_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_text("old")

    def fail(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(StoreError, match=r"config\.toml`: No space left .* unchanged"):
        paths.write_atomically(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_that_is_not_there_is_made(tmp_path: Path) -> None:
    paths.write_atomically(tmp_path / "missing" / "file", "text")
    assert (tmp_path / "missing" / "file").read_text() == "text"


def test_a_home_is_found_in_a_path_and_nobodys_home_stays_as_written(empty_home: Path) -> None:
    assert paths.expanded("~/models") == empty_home / "models"
    assert paths.expanded(Path("~nobody-of-that-name/x")) == Path("~nobody-of-that-name/x")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("file:///home/me/a.gguf", "/home/me/a.gguf"),
        ("file:///home/me/a%20%C3%A9%23.gguf", "/home/me/a é#.gguf"),
        ("file://localhost/home/me", "/home/me"),
        ("FILE:/home/me", "/home/me"),
        ("file:///%FF", os.fsdecode(b"/\xff")),
        ("file:///\udcff", os.fsdecode(b"/\xff")),
        ("file:///", "/"),
        ("file://elsewhere/home/me", "file://elsewhere/home/me"),
        ("file:a.gguf", "file:a.gguf"),
        ("file://", "file://"),
        ("profile:/x", "profile:/x"),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="paths of Windows begin with a letter")
def test_an_address_of_a_local_file_is_its_path(text: str, path: str) -> None:
    assert paths.expanded(text) == Path(path)
