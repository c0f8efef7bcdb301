from __future__ import annotations

from pathlib import Path
from threading import Event, Thread

import pytest

from localspec.errors import UserError
from localspec.tools.finding import FileFinder, FindArguments, ListArguments
from localspec.tools.reading import LONGEST_LINE, MAX_READ, MAX_SHOWN, FileReader, ReadArguments
from localspec.tools.workspace import Workspace
from tests.made_pdf import text_pdf


def read(root: Path, path: str, from_line: int | None = None, to_line: int | None = None) -> str:
    return FileReader(Workspace(root)).read(ReadArguments(path, from_line, to_line), Event()).text


def test_lines_come_with_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"one\r\n\ttwo\r\n\r\nfour")
    assert read(tmp_path, "f") == "1\tone\n2\t\ttwo\n3\t\n4\tfour"
    assert read(tmp_path, "f", 2, 3) == "2\t\ttwo\n3\t\n[... the file has 4 lines ...]"
    assert read(tmp_path, "f", 4, 999) == "4\tfour"
    assert read(tmp_path, "f", None, 1) == "1\tone\n[... the file has 4 lines ...]"


def test_bytes_that_are_not_utf_8_are_shown_and_noted(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"caf\xe9\nx")
    assert read(tmp_path, "f") == "1\tcaf�\n2\tx\n[... bytes that are not UTF-8 are shown as � ...]"


def test_an_empty_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    assert read(tmp_path, "f") == "`f` is empty"


def test_a_long_file_is_cut_and_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("".join(f"{number}\n" for number in range(1, 1001)))
    lines = read(tmp_path, "f").split("\n")
    assert len(lines) == MAX_SHOWN + 1
    assert lines[-1] == "[... lines 401-1000 left out; go on with from_line=401 ...]"
    assert read(tmp_path, "f", 401, 500).endswith("500\t500\n[... the file has 1,000 lines ...]")


def test_long_lines_are_cut(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x" * 3_000_000)
    text = read(tmp_path, "f")
    assert len(text) < LONGEST_LINE + 100
    assert text.endswith("[... 2,999,000 more characters]")
    (tmp_path / "g").write_text(("y" * 900 + "\n") * 400)
    assert len(read(tmp_path, "g")) < 25_000


@pytest.mark.parametrize(
    ("name", "data", "complaint"),
    [
        ("a.bin", b"\x7fELF\0\0", "is binary: a zero byte"),
        pytest.param("huge", b"x" * (MAX_READ + 1), "has more than 16 MiB; search_files finds", id="huge"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, name: str, data: bytes, complaint: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=complaint) as caught:
        read(tmp_path, name)
    assert "\n" not in str(caught.value)


def test_a_sparse_file_of_a_terabyte_takes_no_memory(tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match="has more than"):
        read(tmp_path, "f")


def test_lines_that_are_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\ntwo\n")
    with pytest.raises(UserError, match="`f` has 2 lines, and no line 3"):
        read(tmp_path, "f", 3)
    with pytest.raises(UserError, match="`to_line` 1 is before `from_line` 2"):
        read(tmp_path, "f", 2, 1)
    with pytest.raises(UserError, match="there is no file `g`; list_folder and find_files"):
        read(tmp_path, "g")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "settings.py").write_text("")
    with pytest.raises(UserError, match=r"no file `src/setting\.py`; did you mean `src/settings\.py`\?"):
        read(tmp_path, "src/setting.py")


@pytest.mark.slow
def test_a_file_that_grows_while_it_is_read_ends(tmp_path: Path) -> None:
    path, over = tmp_path / "f", Event()
    path.write_text("line\n")

    def grow() -> None:
        with path.open("ab", buffering=0) as file:
            while not over.is_set() and file.tell() < 2 * MAX_READ:
                file.write(b"line\n" * 1000)

    writer = Thread(target=grow)
    writer.start()
    try:
        for _ in range(20):
            try:
                assert read(tmp_path, "f").startswith("1\tline")
            except UserError as error:
                assert "has more than" in str(error)  # noqa: PT017 - either is right
    finally:
        over.set()
        writer.join()


@pytest.mark.slow
def test_the_text_of_a_pdf_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "f.pdf").write_bytes(text_pdf("first words", "second words"))
    assert "first words" in read(tmp_path, "f.pdf")
    assert "first" not in read(tmp_path, "f.pdf", 2)


def test_a_folder_is_listed_without_what_git_ignores(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / ".git").mkdir()
    for name, text in {"src/a.py": "x", "src/b.log": "", ".gitignore": "*.log", "n\nx\x1b[31m": ""}.items():
        (tmp_path / name).write_text(text)
    finder = FileFinder(Workspace(tmp_path))
    assert finder.list(ListArguments(), Event()).split("\n") == [
        ".git/  (not listed)",
        ".gitignore  5 bytes",
        "n x[31m  0 bytes",
        "src/",
        "  a.py  1 byte",
        "  (1 ignored by git)",
    ]
    assert finder.list(ListArguments("src"), Event()) == "a.py  1 byte\n(1 ignored by git)"
    with pytest.raises(UserError, match=r"`src/a\.py` is not a folder"):
        finder.list(ListArguments("src/a.py"), Event())
    with pytest.raises(UserError, match="`lib` is not there"):
        finder.list(ListArguments("lib"), Event())


@pytest.mark.slow
def test_files_are_found_by_patterns(tmp_path: Path) -> None:
    for name in ("a.py", "src/b.py", "src/deep/c.py", "src/d.txt", ".github/e.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "l.py").symlink_to("/etc/passwd")
    finder = FileFinder(Workspace(tmp_path))

    def find(pattern: str, path: str = ".") -> str:
        return finder.find(FindArguments(pattern, path), Event()).text

    assert find("*.py") == "a.py\nl.py\nsrc/b.py\nsrc/deep/c.py"
    assert find("src/*.py") == "src/b.py"
    assert find("*.py", "src") == "b.py\ndeep/c.py"
    assert find(".github/*") == ".github/e.py"
    assert find("*.c") == "no file matches"
    for number in range(300):
        (tmp_path / f"{number}.md").write_text("")
    assert find("*.md").endswith("\n[... 100 more ...]")


def test_folders_are_found_so_deep_and_so_many(tmp_path: Path) -> None:
    for name in ("top.txt", "a/mid.txt", "a/b/deep.txt", "build/made/out.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    finder = FileFinder(Workspace(tmp_path))

    def find(wanted: FindArguments) -> list[str]:
        found = finder.find(wanted, Event())
        assert found.data["base"] == str(tmp_path)
        names = [f"{each['path']}{'/' * (each['type'] == 'dir')}" for each in found.data["entries"]]
        assert found.text.split("\n")[: len(names)] == names
        return names

    assert find(FindArguments(type="dir")) == ["a/", "a/b/", "build/"]  # which is not looked into
    assert find(FindArguments(type="all", pattern="*b*")) == ["a/b/", "build/"]
    assert find(FindArguments(max_depth=1)) == ["top.txt"]
    assert find(FindArguments(max_depth=2)) == ["a/mid.txt", "top.txt"]
    assert find(FindArguments(limit=1)) == ["a/b/deep.txt"]
    assert finder.find(FindArguments(limit=1), Event()).data["matches"] == 3
    assert finder.find(FindArguments("*.c", type="all"), Event()).text == "no file or folder matches"
