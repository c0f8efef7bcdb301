"""Folders and patterns in a prompt: what is attached of them, and what is said about the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.chat import attached_pattern
from localspec.chat.attachments import Attached, attach, describe_all
from localspec.chat.messages import Attachment
from localspec.chat.prompting import question_of
from localspec.errors import UserError
from tests.made_pdf import SOUND

ROUTE = "src/app/(protected)/[eventId]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("src/a.py", "src/b.py", "src/deep/c.md", f"{ROUTE}/page.tsx", "my docs/one.md", "top.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"of {name}\n")
    return tmp_path


def names(prompt: str, folder: Path) -> list[str]:
    found = attach(prompt, folder)
    assert (found.text, found.notes) == (prompt, ())
    return [file.name for file in found.files]


@pytest.mark.parametrize(
    "prompt",
    [
        "@src",
        "@src/",
        "the @src folder",
        "what is in @src?",
        "(@src)",
        "**@src**",
        "看@src吧",
        '@"src"',
        "@src and @src/",
        "@src.",
        "@src/.",
    ],
)
def test_a_folder_is_listed(prompt: str, folder: Path) -> None:
    assert names(prompt, folder) == ["src/"]


def test_a_listing_is_introduced_as_a_folder(folder: Path) -> None:
    (listed,) = attach("@src/deep", folder).files
    assert listed == Attachment("src/deep/", "c.md  17 bytes")
    assert question_of("what is it?", [listed]) == (
        "Folder src/deep/:\n```\nc.md  17 bytes\n```\n\nwhat is it?"
    )
    assert describe_all([listed]) == ("src/deep/ (a list; @src/deep/** attaches the files), 14 bytes",)


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("@my docs please", "my docs/"),
        ("@'my docs/'", "my docs/"),
        ('@"my docs/', "my docs/"),
        (r"@my\ docs/one.md", "my docs/one.md"),
        ("@./", "./"),
        ("@src/app/(protected)", "src/app/(protected)/"),
    ],
)
def test_names_of_folders(prompt: str, name: str, folder: Path) -> None:
    assert names(prompt, folder) == [name]


@pytest.mark.parametrize("prompt", ["@..", "@.", "@/", "@//", "wait @...", "@~", "@*", "@**", "f(@*args)"])
def test_signs_alone_name_nothing(prompt: str, folder: Path) -> None:
    assert attach(prompt, folder) == Attached(prompt)


@pytest.mark.parametrize(
    "prompt",
    ["me@src", "a/@src", "```\n@src\n@src/*.py\n```", "@src.route('/x')", "@srcs", "@x[0] * 2", "@b[i]/2"],
)
def test_folders_and_patterns_are_not_seen_in_other_words(prompt: str, folder: Path) -> None:
    assert attach(prompt, folder) == Attached(prompt)


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ("@src/*.py", ["src/a.py", "src/b.py"]),
        ("explain @src/*.py.", ["src/a.py", "src/b.py"]),
        ("what do @src/*.py? (and @*.md)", ["src/a.py", "src/b.py", "top.md"]),
        ("看@src/*.py吧", ["src/a.py", "src/b.py"]),
        ("*@src/*.py*", ["src/a.py", "src/b.py"]),
        ("@src/deep/**", ["src/deep/c.md"]),
        ("@**/*.md", ["top.md", "my docs/one.md", "src/deep/c.md"]),
        ("@./*.md", ["./top.md"]),
        ('@"my docs/*.md"', ["my docs/one.md"]),
        (f"@{ROUTE}/*", [f"{ROUTE}/page.tsx"]),
        (f"@{ROUTE}/page.tsx", [f"{ROUTE}/page.tsx"]),
        ("@src/a.py and @src/*.py and @./src/b.py", ["src/a.py", "src/b.py"]),
    ],
)
def test_a_pattern_attaches_files(prompt: str, wanted: list[str], folder: Path) -> None:
    assert names(prompt, folder) == wanted


def test_what_a_pattern_leaves_out_is_said(folder: Path) -> None:
    (folder / "src" / "logo.png").write_bytes(b"\x89PNG\0")
    (folder / "src" / "empty.py").touch()
    (folder / "src" / "large.csv").write_text("x" * 2000)
    (folder / "src" / "paper.pdf").write_bytes(SOUND)
    (folder / "src" / "key").symlink_to("/etc/passwd")
    found = attach("@src/*", folder, 1000)
    assert [file.name for file in found.files] == ["src/a.py", "src/b.py"]
    assert found.notes == (
        "src/*: 2 of 7 files attached; not key (a link), empty.py (empty), large.csv (1.95 KiB) and 2 others",
    )


def test_a_pattern_attaches_as_much_as_fits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = attach("@src/**", folder, 30)
    assert [file.name for file in found.files] == ["src/a.py", "src/b.py"]
    assert found.notes == ("src/**: 2 of 4 files attached; 2 more would be over the limit of 30 bytes",)
    monkeypatch.setattr(attached_pattern, "MAX_FILES", 1)
    assert attach("@src/**", folder).notes == (
        "src/**: 1 of 4 files attached; 3 more would be over the limit of 1 file",
    )


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("@src/*.rs", "no file matches `src/*.rs`; a \\ before"),
        ("@*.rs", "no file matches `*.rs`"),
        ("@build/*.log", "no file that `build/*.log` matches can be attached: a.log (empty)"),
        (
            "@*.log",
            "no file matches `*.log`; hidden files and those that git ignores are attached by their name",
        ),
    ],
)
def test_a_pattern_without_files_is_refused(prompt: str, words: str, folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".gitignore").write_text("*.log\n/build\n")
    (folder / "now.log").write_text("text")
    (folder / "build").mkdir()
    (folder / "build" / "a.log").touch()
    with pytest.raises(UserError) as caught:
        attach(prompt, folder)
    assert str(caught.value).startswith(words)


def test_a_file_that_git_ignores_is_attached_by_its_name(folder: Path) -> None:
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "now.log").write_text("text")
    assert names("@now.log", folder) == ["now.log"]


@pytest.mark.parametrize("prompt", [r"\@src", r"\@src/", r"\@src/*.py"])
def test_a_backslash_keeps_folders_and_patterns_as_text(prompt: str, folder: Path) -> None:
    assert attach(prompt, folder) == Attached(prompt[1:])


def test_many_files_are_described_as_one_sum() -> None:
    files = [Attachment(f"{number}.py", "x" * 100) for number in range(12)]
    assert describe_all(files, [30] * 12, read=11) == ("12 files, 1.17 KiB, 360 tokens",)
    assert describe_all(files, [30] * 12, read=12) == ("12 files, 1.17 KiB, 360 tokens, read",)
    assert describe_all(files[:2], [1, None], read=1) == ("0.py, 100 bytes, 1 token, read", "1.py, 100 bytes")
