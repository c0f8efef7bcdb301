"""Which paths are ignored: each row was compared with `git ls-files --exclude-standard`."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.folders.contents import Entry, walk

TREE = (
    "keep.py",
    "note.txt",
    "build/out.py",
    "build/keep.py",
    "src/main.py",
    "src/build/deep.py",
    "src/[id]/page.py",
    "src/#odd",
    "src/!odd",
)


def made(root: Path, rules: dict[str, str], tree: tuple[str, ...] = TREE) -> Path:
    (root / ".git").mkdir()
    for name in tree:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    for folder, text in rules.items():
        (root / folder / ".gitignore").write_text(text)
    return root


def seen(root: Path) -> set[str]:
    def enters(entry: Entry) -> bool:
        return entry.name != ".git"

    return {entry.path for scan in walk(root, enters) for entry in scan.entries if entry.path in TREE}


@pytest.mark.parametrize(
    ("rules", "ignored"),
    [
        ({".": "build"}, {"build/out.py", "build/keep.py", "src/build/deep.py"}),
        ({".": "/build/"}, {"build/out.py", "build/keep.py"}),
        ({".": "keep.py/"}, set()),
        ({".": "# a comment\n\n*.txt  \n"}, {"note.txt"}),
        ({".": "build/*\n!build/keep.py"}, {"build/out.py"}),
        ({".": "build/\n!build/keep.py"}, {"build/out.py", "build/keep.py", "src/build/deep.py"}),
        ({".": "*\n!*/\n!*.py"}, {"note.txt", "src/#odd", "src/!odd"}),
        ({".": "*.py", "src": "!main.py"}, {*TREE} - {"src/main.py", "note.txt", "src/#odd", "src/!odd"}),
        ({".": "src/**/deep.py"}, {"src/build/deep.py"}),
        ({".": "**/page.py"}, {"src/[id]/page.py"}),
        ({".": "src/\\[id\\]"}, {"src/[id]/page.py"}),
        ({".": "\\#odd\n\\!odd"}, {"src/#odd", "src/!odd"}),
        ({".": "/"}, set()),
        ({".": "n?te.[a-t]x[!a]"}, {"note.txt"}),
        ({".": "\ufeff*.txt\r\n"}, {"note.txt"}),
        ({"src": "/main.py\n/src/main.py"}, {"src/main.py"}),
    ],
)
def test_rules_are_read_as_git_reads_them(rules: dict[str, str], ignored: set[str], tmp_path: Path) -> None:
    assert {*TREE} - seen(made(tmp_path, rules)) == ignored


def test_rules_above_a_folder_count_in_it(tmp_path: Path) -> None:
    root = made(tmp_path, {".": "*.txt\n/src/build"}, (*TREE, "src/a.txt"))
    paths = {entry.path for scan in walk(root / "src", lambda _: True) for entry in scan.entries}
    assert "main.py" in paths
    assert not paths & {"a.txt", "build", "build/deep.py"}


def test_a_folder_that_is_ignored_itself_is_looked_at_when_it_is_named(tmp_path: Path) -> None:
    root = made(tmp_path, {".": "build\n*.py"})
    assert [entry.path for scan in walk(root / "build", lambda _: True) for entry in scan.entries] == [
        "keep.py",
        "out.py",
    ]


def test_local_rules_of_the_repository_count(tmp_path: Path) -> None:
    root = made(tmp_path, {})
    (root / ".git" / "info").mkdir()
    (root / ".git" / "info" / "exclude").write_text("note.txt\n")
    assert {*TREE} - seen(root) == {"note.txt"}


def test_a_hostile_rule_takes_no_time(tmp_path: Path) -> None:
    (tmp_path / ("a" * 250)).touch()
    deep = tmp_path.joinpath(*"a" * 40)
    deep.mkdir(parents=True)
    (tmp_path / ".gitignore").write_text(f"{'*a' * 60}b\n{'**/a/' * 30}b\n")
    assert sum(len(scan.entries) for scan in walk(tmp_path, lambda _: True)) == 42
