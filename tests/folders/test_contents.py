from __future__ import annotations

import os
from pathlib import Path

import pytest

from localspec.folders import contents
from localspec.folders.contents import listing, matches
from localspec.folders.patterns import path_pattern, split_base


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "README.md",
        "main.py",
        "sub/a.py",
        "sub/deep/b.py",
        "sub/deep/c.md",
        ".env",
        ".github/ci.yml",
        "node_modules/x/index.js",
        "build/out.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("12345")
    (tmp_path / ".gitignore").write_text("build/\n")
    return tmp_path


def found(pattern: str, folder: Path) -> tuple[str, ...]:
    return matches(folder, path_pattern(pattern)).paths


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("*.py", ("main.py",)),
        ("**", ("main.py", "README.md", "sub/a.py", "sub/deep/b.py", "sub/deep/c.md")),
        ("**/*.py", ("main.py", "sub/a.py", "sub/deep/b.py")),
        ("sub/*", ("sub/a.py",)),
        ("sub/**", ("sub/a.py", "sub/deep/b.py", "sub/deep/c.md")),
        ("sub/**/c.md", ("sub/deep/c.md",)),
        ("*/*/*.[mp]*", ("sub/deep/b.py", "sub/deep/c.md")),
        ("m?in.py", ("main.py",)),
        ("[!m]*.md", ("README.md",)),
        (".e*", (".env",)),
        (".github/*", (".github/ci.yml",)),
        ("node_modules/**", ("node_modules/x/index.js",)),
        ("*.txt", ()),
        ("sub", ()),
        ("[", ()),
    ],
)
def test_a_pattern_matches_files(pattern: str, paths: tuple[str, ...], folder: Path) -> None:
    assert found(pattern, folder) == paths


def test_what_was_built_is_left_out_where_git_says_nothing(folder: Path) -> None:
    (folder / ".gitignore").write_text("*.log\n")
    assert "build/out.py" in found("**/*.py", folder)
    (folder / ".gitignore").unlink()
    assert "build/out.py" not in found("**/*.py", folder)
    assert found("build/*", folder) == ("build/out.py",)
    assert found("*.py", folder / "build") == ("out.py",)


def test_what_is_ignored_on_the_way_is_counted(folder: Path) -> None:
    assert matches(folder, path_pattern("**/out.py")) == contents.Matches((), ignored=1)


def test_links_are_found_and_not_followed(folder: Path) -> None:
    (folder / "sub" / "up").symlink_to("..")
    (folder / "sub" / "key.py").symlink_to("/etc/passwd")
    result = matches(folder, path_pattern("**/*.py"))
    assert result.paths == ("main.py", "sub/a.py", "sub/deep/b.py")
    assert result.links == ("sub/key.py",)


def test_a_listing_names_everything_and_opens_nothing_hidden(folder: Path) -> None:
    (folder / "new\nline").touch()
    (folder / "up").symlink_to("sub")
    (folder / "empty").mkdir()
    assert listing(folder).splitlines() == [
        ".env  5 bytes",
        ".github/  (not listed)",
        ".gitignore  7 bytes",
        "empty/",
        "  (empty)",
        "main.py  5 bytes",
        "new line  0 bytes",
        "node_modules/  (not listed)",
        "README.md  5 bytes",
        "sub/",
        "  a.py  5 bytes",
        "  deep/",
        "    b.py  5 bytes",
        "    c.md  5 bytes",
        "up -> sub",
        "(1 ignored by git)",
    ]


def test_a_listing_has_an_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MAX_LISTED", 10)
    monkeypatch.setattr(contents, "MAX_LISTED_EACH", 4)
    lines = listing(folder).splitlines()
    assert len(lines) == 6
    assert lines[-2:] == ["(3 more)", "(1 ignored by git)"]
    monkeypatch.setattr(contents, "MAX_LOOKED_AT", 3)
    assert listing(folder).splitlines()[-1] == "(and others: 3 entries were looked at)"


def test_a_pattern_says_that_it_did_not_look_at_everything(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not matches(folder, path_pattern("**")).is_cut
    for most in (3, 8):  # within a folder, and at the end of one
        monkeypatch.setattr(contents, "MAX_LOOKED_AT", most)
        assert matches(folder, path_pattern("**")).is_cut


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_says_so(folder: Path) -> None:
    (folder / "sub" / "deep").chmod(0)
    assert "    (cannot be read: Permission denied)" in listing(folder).splitlines()
    (folder / "sub" / "deep").chmod(0o700)


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("src/*.py", ("src/", "*.py")),
        ("*.py", ("", "*.py")),
        ("/a/b/**", ("/a/b/", "**")),
        ("a/b?/c", ("a/", "b?/c")),
    ],
)
def test_the_folders_before_the_first_sign_are_the_base(pattern: str, parts: tuple[str, str]) -> None:
    assert split_base(pattern) == parts
