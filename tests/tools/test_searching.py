from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from threading import Event, Timer

import pytest

from localspec.errors import UserError
from localspec.tools import searching
from localspec.tools.finding import anywhere
from localspec.tools.searching import (
    MAX_FILE,
    MAX_MATCHES,
    FileSearcher,
    SearchArguments,
    found_lines,
    ripgrep,
)
from localspec.tools.workspace import Workspace

RIPGREP = shutil.which("rg")
PROGRAMS = [None, *([RIPGREP] if RIPGREP else [])]
CATASTROPHE = "(a+)+(?<!x)$"  # what ripgrep does not know, and Python takes for ever


@pytest.fixture(autouse=True)
def a_busy_machine_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "SECONDS", 1000.0)


@pytest.fixture(params=PROGRAMS, ids=["python", "ripgrep"][: len(PROGRAMS)])
def program(request: pytest.FixtureRequest) -> str | None:
    found: str | None = request.param
    return found


def search(root: Path, program: str | None, pattern: str, path: str = ".", files: str | None = None) -> str:
    return FileSearcher(Workspace(root), program).search(SearchArguments(pattern, path, files), Event()).text


def fill(root: Path, names: dict[str, str | bytes]) -> None:
    for name, text in names.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def test_all_names_every_file_unless_one_is_called_so(tmp_path: Path, program: str | None) -> None:
    fill(tmp_path, {"a.py": "teh", "b/c.md": "teh"})
    assert search(tmp_path, program, "teh", files="all") == "a.py:1: teh\nb/c.md:1: teh"
    fill(tmp_path, {"all.txt": "teh"})
    assert search(tmp_path, program, "teh", files="all") == "all.txt:1: teh"


@pytest.mark.slow
def test_lines_are_found_in_order(tmp_path: Path, program: str | None) -> None:
    fill(
        tmp_path,
        {
            "b.py": "x = 1\ny = 2\nx = 3\n",
            "a/deep/c.py": "def x():\r\n    pass\r\n",
            "a.txt": "no match",
            "a/z": "the last x",
            ".gitignore": "*.log\n",
            "x.log": "x",
            ".hidden": "x",
            "node_modules/m.js": "x",
            "__pycache__/p": "x",
        },
    )
    assert search(tmp_path, program, "x") == (
        "a/deep/c.py:1: def x():\na/z:1: the last x\nb.py:1: x = 1\nb.py:3: x = 3"
    )
    assert search(tmp_path, program, r"x\(\):$", "a", "*.py") == "deep/c.py:1: def x():"
    assert search(tmp_path, program, "x", files="a/**") == "a/deep/c.py:1: def x():\na/z:1: the last x"
    assert search(tmp_path, program, "x = 3", "b.py") == "b.py:3: x = 3"
    assert search(tmp_path, program, "x", ".hidden") == ".hidden:1: x"
    assert search(tmp_path, program, "(?i)THE LAST") == "a/z:1: the last x"
    assert search(tmp_path, program, "nothing") == "no line matches `nothing`"


@pytest.mark.slow
def test_links_pipes_and_binary_files_are_left_out(tmp_path: Path, program: str | None) -> None:
    root = tmp_path / "work"
    fill(root, {"f": "x", "binary": b"x\nx\0", "late": b"x\n" * 40_000 + b"\0"})
    fill(tmp_path, {"outside/f": "x"})
    (root / "link").symlink_to("../outside")
    (root / "file").symlink_to("../outside/f")
    os.mkfifo(root / "pipe")
    assert search(root, program, "x") == "f:1: x"
    with pytest.raises(UserError, match="is outside"):
        search(root, program, "x", "link")


@pytest.mark.slow
def test_names_and_lines_cannot_act_on_the_terminal(tmp_path: Path, program: str | None) -> None:
    fill(tmp_path, {"a\nb\x1b[31m": "x\x1b[2K\ty", os.fsdecode(b"c\xff"): b"x\xff"})
    assert search(tmp_path, program, "x") == "a b[31m:1: x[2K y\nc\\udcff:1: x�"


@pytest.mark.slow
def test_files_that_are_too_large_are_left_out(tmp_path: Path, program: str | None) -> None:
    fill(tmp_path, {"large": b"x\n" + b"\n" * MAX_FILE, "small": "x"})
    assert search(tmp_path, program, "x") == "small:1: x"


@pytest.mark.slow
def test_a_long_line_shows_what_was_found(tmp_path: Path, program: str | None) -> None:
    fill(tmp_path, {"f": "ä" * 5000 + "needle" + "b" * 5000})
    found = search(tmp_path, program, "needle")
    assert "needle" in found
    assert len(found) < 300


@pytest.mark.slow
def test_many_matches_are_cut(tmp_path: Path, program: str | None) -> None:
    fill(tmp_path, {"f": "x\n" * 100_000})
    *lines, note = search(tmp_path, program, "x").split("\n")
    assert len(lines) == MAX_MATCHES
    assert note == "[... more than 100 lines match; narrow the pattern ...]"


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["foo(", "[a", "*.py", "a{2,1}", "(?P<", "\\"])
def test_what_is_no_expression_is_searched_as_text(tmp_path: Path, program: str | None, pattern: str) -> None:
    fill(tmp_path, {"f": f"one\ntwo {pattern} three\n"})
    assert search(tmp_path, program, pattern) == (
        f"[`{pattern}` is no regular expression; searched as plain text]\nf:2: two {pattern} three"
    )


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["-77", "--pdf-engine", "-e", "->", "--"])
def test_a_pattern_may_begin_with_a_dash(tmp_path: Path, program: str | None, pattern: str) -> None:
    fill(tmp_path, {"-f": f"one\n{pattern}\n"})
    assert search(tmp_path, program, pattern) == f"-f:2: {pattern}"
    assert search(tmp_path, program, pattern, "-f") == f"-f:2: {pattern}"


@pytest.mark.slow
def test_the_settings_of_ripgrep_do_not_count(
    tmp_path: Path, program: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, {"settings": "--hidden\n--max-count=1\n", ".f": "x", "f": "x\nx"})
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(tmp_path / "settings"))
    assert search(tmp_path, program, "^x") == "f:1: x\nf:2: x"


@pytest.mark.slow
def test_files_that_may_not_be_read_are_not_searched(tmp_path: Path, program: str | None) -> None:
    fill(tmp_path, {"secrets/key": "x", "a/id_rsa": "x", "f": "x"})
    searcher = FileSearcher(Workspace(tmp_path), program, lambda path: "secrets" in path or "id_rsa" in path)
    assert searcher.search(SearchArguments("x"), Event()).text == "f:1: x"
    assert searcher.search(SearchArguments("x", "secrets"), Event()).text == "no line matches `x`"
    assert searcher.search(SearchArguments("x", "a/id_rsa"), Event()).text == "no line matches `x`"


@pytest.mark.skipif(RIPGREP is None, reason="ripgrep is not installed")
def test_nothing_is_found_twice_where_ripgrep_could_not_read_a_file(tmp_path: Path) -> None:
    fill(tmp_path / "work", {"f": "x"})
    program = tmp_path / "rg"
    program.write_text(f'#!/bin/sh\n{RIPGREP} "$@"\nexit 2\n')
    program.chmod(0o755)
    assert search(tmp_path / "work", str(program), "x") == "f:1: x"
    assert search(tmp_path / "work", str(program), "y") == "no line matches `y`"


@pytest.mark.slow
def test_what_only_python_knows_is_searched_by_python(tmp_path: Path, program: str | None) -> None:
    fill(tmp_path, {"f": "price: 10\ncost: 20\n"})
    assert search(tmp_path, program, r"(?<=cost: )\d+") == "f:2: cost: 20"


@pytest.mark.slow
def test_files_in_utf_16_are_searched(tmp_path: Path, program: str | None) -> None:
    fill(tmp_path, {"f": "grün\nblau\n".encode("utf-16")})
    assert search(tmp_path, program, "blau") == "f:2: blau"


@pytest.mark.slow
def test_a_pattern_that_takes_for_ever_is_ended(
    tmp_path: Path, program: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "SECONDS", 1.0)
    fill(tmp_path, {"f": "a" * 5000 + "!\n"})
    assert search(tmp_path, program, CATASTROPHE).startswith("[... the search took more than 1 s")


@pytest.mark.slow
def test_a_search_is_stopped(tmp_path: Path) -> None:
    fill(tmp_path, {"f": "a" * 5000 + "!\n"})
    stop = Event()
    timer = Timer(0.3, stop.set)
    timer.start()
    FileSearcher(Workspace(tmp_path), None).search(SearchArguments("(a+)+$"), stop)  # would take for ever
    timer.join()


def test_a_search_for_lines_of_two_lines_is_refused(tmp_path: Path, program: str | None) -> None:
    for pattern in ("", "a\nb"):
        with pytest.raises(UserError, match="a text of one line"):
            search(tmp_path, program, pattern)
    with pytest.raises(UserError, match="`x` is not there"):
        search(tmp_path, program, "a", "x")


@pytest.mark.slow
@pytest.mark.skipif(ripgrep() is None, reason="ripgrep is not installed")
def test_both_ways_find_the_same_in_random_folders(tmp_path: Path) -> None:
    generator = random.Random(7)
    rules = ["*.log", "!keep.log", "build/", "/a", "**/x", "b/*", "# note", "sub/*.txt", "!b/c.txt"]
    names = [
        "a",
        "b",
        "x",
        "sub",
        "build",
        "c.txt",
        "keep.log",
        "z.log",
        ".hid",
        "node_modules",
        "é",
        "A",
        "a b",
    ]
    patterns = ["x", r"\d+", "^b", "a$", r"\bé\b", "(?i)A", "o.e", r"\s"]
    words = ["x", "a", "é", "42", "one", "b", "", "\t", "x\r"]
    for case in range(12):
        root = tmp_path / str(case)
        if case % 2:
            (root / ".git").mkdir(parents=True)
        for _ in range(25):
            folder = root.joinpath(*generator.choices(names, k=generator.randint(0, 3)))
            with_file = folder / generator.choice(names)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with_file.write_bytes("\n".join(generator.choices(words, k=5)).encode())
            except OSError:
                continue
        for folder in (root, root / "sub"):
            if folder.is_dir():
                (folder / ".gitignore").write_text("\n".join(generator.sample(rules, 3)))
        for pattern in patterns:
            found = [line for lines in found_lines(root, ".", pattern, anywhere("**")) for line in lines]
            expected = "\n".join(line.shown for line in found[:MAX_MATCHES])
            expected = expected or f"no line matches `{pattern}`"
            assert search(root, ripgrep(), pattern) == expected, (case, pattern)


def test_files_that_have_nothing_do_not_hide_others_that_have(tmp_path: Path, program: str | None) -> None:
    (tmp_path / "README.md").write_text("teh text\n")
    (tmp_path / "a.py").write_text("teh = 1\n")
    searcher = FileSearcher(Workspace(tmp_path), program)
    found = searcher.search(SearchArguments("teh", files="README"), Event()).text
    assert found == "README.md:1: teh text"  # a name without its ending
    found = searcher.search(SearchArguments("teh", files="*.txt"), Event()).text
    assert found == "[`teh` is not in files `*.txt`; in others:]\nREADME.md:1: teh text\na.py:1: teh = 1"
    assert searcher.search(SearchArguments("teh", files="*.py"), Event()).text == "a.py:1: teh = 1"
    assert (
        searcher.search(SearchArguments("absent", files="README"), Event()).text == "no line matches `absent`"
    )


@pytest.mark.parametrize("pattern", ["the", "tehh", "THE", "te", "tehe"])
def test_a_word_that_is_not_there_finds_those_that_are_spelled_nearly_the_same(
    tmp_path: Path, program: str | None, pattern: str
) -> None:
    (tmp_path / "a").write_text("has teh typo\n")
    (tmp_path / "b").write_text("nothing like it\nhatetehhate\n")
    found = search(tmp_path, program, pattern)
    exact = {"te": "a:1: has teh typo\nb:2: hatetehhate", "tehh": "b:2: hatetehhate"}
    near = f"[no line matches `{pattern}`; these lines have nearly the same:]\na:1: has teh typo"
    assert found == exact.get(pattern, near)


def test_what_is_nearly_found_here_does_not_hide_what_others_have(
    tmp_path: Path, program: str | None
) -> None:
    (tmp_path / "README.md").write_text("has teh typo\n")
    (tmp_path / "b").write_text("has the word\n")
    searcher = FileSearcher(Workspace(tmp_path), program)
    assert searcher.search(SearchArguments("the", files="README"), Event()).text == (
        "[no line matches `the`; these lines have nearly the same:]\nREADME.md:1: has teh typo\n"
        "[`the` is not in files `README`; in others:]\nb:1: has the word"
    )
