from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from localspec.errors import UserError
from localspec.storage import regular_file
from localspec.storage.paths import config_dir, data_dir
from localspec.storage.regular_file import check_regular
from localspec.tools.workspace import Location, Workspace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.txt").write_text("inside")
    (tmp_path / "work-other").mkdir()
    (tmp_path / "work-other" / "secret").write_text("outside")
    return folder


def read(root: Path, name: str) -> bytes:
    workspace = Workspace(root)
    return workspace.read(workspace.locate(name), 100)


def write(root: Path, name: str, data: bytes = b"new") -> None:
    workspace = Workspace(root)
    workspace.write(workspace.locate(name), data)


@pytest.mark.parametrize("name", ["src/a.txt", "./src/../src/a.txt", "src//a.txt"])
def test_a_file_in_it_is_read(root: Path, name: str) -> None:
    assert read(root, name) == b"inside"
    assert read(root, str(root / name)) == b"inside"


@pytest.mark.parametrize(
    "name",
    ["..", "../work-other/secret", "src/../../work-other/secret", "/etc/passwd", "~/x", "file:///etc/passwd"],
)
def test_a_path_outside_is_one_line(root: Path, name: str) -> None:
    with pytest.raises(UserError, match="is outside of the workspace") as caught:
        Workspace(root).locate(name)
    assert "\n" not in str(caught.value)


def test_a_folder_with_the_same_beginning_is_outside(root: Path) -> None:
    with pytest.raises(UserError, match="is outside"):
        Workspace(root).locate(f"{root}-other/secret")


def test_links_that_lead_out_are_not_followed(root: Path) -> None:
    (root / "file").symlink_to("../work-other/secret")
    (root / "folder").symlink_to("../work-other")
    (root / "chain").symlink_to("folder/secret")
    for name in ("file", "folder/secret", "chain", "folder"):
        with pytest.raises(UserError, match="is outside"):
            read(root, name)


def test_a_new_file_below_a_link_that_leads_out_is_not_made(root: Path) -> None:
    (root / "folder").symlink_to("../work-other")
    (root / "dangling").symlink_to("../work-other/new")
    for name in ("folder/new", "folder/a/b/new", "dangling"):
        with pytest.raises(UserError, match="is outside"):
            write(root, name)
    assert [path.name for path in (root.parent / "work-other").iterdir()] == ["secret"]


def test_a_link_within_it_is_followed_and_stays(root: Path) -> None:
    (root / "link").symlink_to("src/a.txt")
    write(root, "link", b"changed")
    assert (root / "link").is_symlink()
    assert (root / "src" / "a.txt").read_bytes() == b"changed"


def test_a_link_that_comes_between_check_and_use_leads_nowhere(root: Path) -> None:
    workspace = Workspace(root)
    place = workspace.locate("src/a.txt")
    (root / "src").rename(root / "old")
    (root / "src").symlink_to("../work-other")
    (root.parent / "work-other" / "a.txt").write_text("outside")
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        workspace.read(place, 100)
    with pytest.raises(UserError, match=r"cannot write `src/a\.txt`"):
        workspace.write(place, b"new")
    (root / "src").unlink()
    (root / "src").mkdir()
    (root / "src" / "a.txt").symlink_to("../../work-other/a.txt")
    with pytest.raises(UserError, match="is a link"):
        workspace.read(place, 100)
    with pytest.raises(UserError, match="is a link"):
        workspace.write(place, b"new")
    assert (root.parent / "work-other" / "a.txt").read_text() == "outside"


def test_a_file_that_becomes_a_link_after_the_check_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swap(status: os.stat_result, name: str) -> None:
        check_regular(status, name)
        if not (root / "src" / "a.txt").is_symlink():
            (root / "src" / "a.txt").unlink()
            (root / "src" / "a.txt").symlink_to("../../work-other/secret")

    monkeypatch.setattr(regular_file, "check_regular", swap)
    with pytest.raises(OSError, match="symbolic links"):
        read(root, "src/a.txt")


@pytest.mark.slow
def test_folders_that_swap_with_a_link_never_let_anything_out(root: Path) -> None:
    (root.parent / "work-other" / "a.txt").write_text("outside")
    (root / "link").symlink_to("../work-other")
    over = Event()

    def swap() -> None:
        while not over.is_set():
            for first, second in (("src", "old"), ("link", "src"), ("src", "link"), ("old", "src")):
                with suppress(OSError):  # where a write has made the folder meanwhile
                    (root / first).rename(root / second)

    swapper = Thread(target=swap)
    swapper.start()
    seen, workspace = set(), Workspace(root)
    try:
        for _ in range(150):
            try:
                place = workspace.locate("src/a.txt")
                seen.add(workspace.read(place, 100))
                workspace.write(place, b"inside")
            except (UserError, OSError):
                continue
    finally:
        over.set()
        swapper.join()
    assert seen <= {b"inside"}
    assert (root.parent / "work-other" / "a.txt").read_text() == "outside"


@pytest.mark.parametrize("name", ["proc/self/environ", "/proc/1/mem", "dev/zero", "sys"])
def test_files_of_the_system_are_refused_in_any_workspace(name: str) -> None:
    with pytest.raises(UserError, match="belongs to the system"):
        Workspace(Path("/")).locate(name)


def test_no_way_through_the_system_leads_out(root: Path) -> None:
    (root / "link").symlink_to("/proc/self/cwd/../hosts")
    with pytest.raises(UserError, match="is outside"):
        Workspace(root).locate("link")


def test_files_of_localspec_are_refused() -> None:
    root = Path(os.path.commonpath([config_dir(), data_dir()]))
    for folder in (config_dir(), data_dir()):
        with pytest.raises(UserError, match="belongs to LocalSpec itself"):
            Workspace(root).locate(str(folder / "config.toml"))


def test_pipes_and_folders_are_neither_read_nor_replaced(root: Path) -> None:
    os.mkfifo(root / "pipe")
    for name, kind in (("pipe", "a pipe"), ("src", "a folder")):
        with pytest.raises(UserError, match=f"is {kind}"):
            read(root, name)
        with pytest.raises(UserError, match=f"is {kind}"):
            write(root, name)
    assert stat.S_ISFIFO((root / "pipe").stat().st_mode)


@pytest.mark.parametrize("mode", [0o755, 0o600, 0o444 | 0o200, 0o777])
def test_the_mode_of_a_file_stays(root: Path, mode: int) -> None:
    (root / "run.sh").write_text("x")
    (root / "run.sh").chmod(mode)
    write(root, "run.sh")
    assert stat.S_IMODE((root / "run.sh").stat().st_mode) == mode
    assert [path.name for path in root.iterdir() if path.name.startswith(".")] == []


def test_a_new_file_gets_the_usual_mode_and_its_folders(root: Path) -> None:
    write(root, "new/deep/f.txt")
    (root / "usual").write_text("")
    assert (root / "new/deep/f.txt").stat().st_mode == (root / "usual").stat().st_mode


def test_a_hard_link_from_outside_is_not_written_through(root: Path) -> None:
    os.link(root.parent / "work-other" / "secret", root / "same")
    write(root, "same")
    assert (root.parent / "work-other" / "secret").read_text() == "outside"


@pytest.mark.parametrize(
    "name", [".git/config", ".git/hooks/pre-commit", "sub/.git/config", ".GIT/config", ".git"]
)
def test_what_git_runs_is_not_written(root: Path, name: str) -> None:
    with pytest.raises(UserError, match="belongs to git"):
        write(root, name)


def test_a_protected_file_is_not_replaced(root: Path) -> None:
    (root / "src" / "a.txt").chmod(0o444)
    with pytest.raises(UserError, match="is write-protected"):
        write(root, "src/a.txt")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(UserError, match=r"cannot write `src/a\.txt`: No space left"):
        write(root, "src/a.txt")
    assert [path.name for path in (root / "src").iterdir()] == ["a.txt"]
    assert (root / "src" / "a.txt").read_text() == "inside"


def test_a_name_with_control_characters_is_shown_harmlessly() -> None:
    assert Location(Path("x"), "a\n\x1b[31mb").shown == "a [31mb"
    with pytest.raises(UserError, match="is not the name of a file"):
        Workspace(Path("/")).locate("a\0b")


def test_paths_count_from_a_folder_of_it_and_stay_in_the_whole(root: Path) -> None:
    inner = Workspace(root).within("src")
    assert inner.locate("a.txt") == Workspace(root).locate("src/a.txt")
    assert inner.locate("..").name == "."
    with pytest.raises(UserError, match="is outside of the workspace"):
        inner.locate("../..")
    for name, problem in (("..", "is outside"), ("none", "is not there"), ("src/a.txt", "is not a folder")):
        with pytest.raises(UserError, match=problem):
            Workspace(root).within(name)
    inner.write(inner.locate("b.txt"), b"new")
    assert (root / "src" / "b.txt").read_bytes() == b"new"
