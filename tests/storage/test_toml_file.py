from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

from localspec.errors import UserError
from localspec.storage.toml_file import TomlTable, line_of, parse_table, read_table
from localspec.values import Range

DIGIT = Annotated[int, Range(0, 9)]
SHARE = Annotated[float, Range(0, 1)]
SIZE = Annotated[float, Range(0, 2)]
COLOUR = Literal["red", "green"]


@dataclass(frozen=True, slots=True)
class Painted:
    key: COLOUR
    share: SHARE = 0.5
    other: str = ""


TEXT = '''# a comment with a = sign
first = 1

"quoted key" = """
fake = 1
[fake]
"""
literal = \'\'\'
fake = 2\'\'\'
list = [  # [fake]
    "fake = 3", "]",
    { inner = 1 },
]
dotted.deep = "a # b"
escaped = "\\\\" # fake = 4

[table]  # here
key = { inner = 1 }
  [ table . "sub.table" ]
  key=true
'''


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], TomlTable]:
    def table(text: str) -> TomlTable:
        path = tmp_path / "file.toml"
        path.write_bytes(text.encode())
        return read_table(path)

    return table


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("first",), 2),
        (("quoted key",), 4),
        (("literal",), 8),
        (("list",), 10),
        (("dotted",), 14),
        (("dotted", "deep"), 14),
        (("escaped",), 15),
        (("table",), 17),
        (("table", "key"), 18),
        (("table", "key", "inner"), 18),
        (("table", "sub.table"), 19),
        (("table", "sub.table", "key"), 20),
        (("fake",), 0),
        (("table", "first"), 0),
        (("first", "deep"), 0),
    ],
)
def test_every_key_is_found_on_its_line(key: tuple[str, ...], line: int) -> None:
    assert line_of(TEXT, key) == line


@pytest.mark.parametrize("text", ["a = 1", "\n\na = 1", "a = '''x'''''\nb = 1", 'a = """\n""""" # "\nb = 1'])
def test_lines_are_counted_from_the_first_to_the_last(text: str) -> None:
    for key in tomllib.loads(text):
        assert text.splitlines()[line_of(text, (key,)) - 1].startswith(f"{key} =")
    assert line_of("", ("a",)) == 0


ITEMS = '''
texts = [  # "no item"
    "one", "two",
    # "no item, either"
    """
three ] , "
""" ,
    ["four", "not five"], { six = 1 },
    'seven']
[table]
flat = ["a", "b",]
empty = [
]
none = 1  # , 2
after = ["c"]
'''


@pytest.mark.parametrize(
    ("key", "lines"),
    [
        (("texts",), (3, 3, 5, 8, 8, 9)),
        (("table", "flat"), (11, 11)),
        (("table", "empty"), ()),
        (("table", "none"), ()),
        (("table", "after"), (15,)),
        (("nothing",), ()),
    ],
)
def test_every_item_of_a_list_is_found_on_its_line(key: tuple[str, ...], lines: tuple[int, ...]) -> None:
    assert tuple(line_of(ITEMS, (*key, item)) for item in range(len(lines) + 1)) == (*lines, 0)


def message_of(action: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        action()
    return str(caught.value)


def test_values_are_handed_out(write: Callable[[str], TomlTable]) -> None:
    table = write(
        'text = "a\\nb"\nwhole = 3\nnumber = 2\nyes = true\nwords = ["a", " b"]\nsplit = "c, d"\n[sub]\nx = 1'
    )
    assert table.value("text", str, "") == "a\nb"
    assert table.value("whole", DIGIT, 1) == 3
    assert isinstance(table.value("number", SIZE, 0.5), float)
    assert table.value("yes", bool, False) is True
    assert table.words("words") == ("a", "b")
    assert table.words("split") == ("c", "d")
    assert table.texts("words") == ("a", " b")
    assert list(table.table("sub")) == ["x"]
    assert ("text" in table, "other" in table) == (True, False)


def test_dotted_names_are_found_at_any_depth(write: Callable[[str], TomlTable]) -> None:
    table = write('a = 1\nb.c = 2\n"d.e" = 3\n[f]\ng.h = 4')
    assert [(name, inner.value(key, DIGIT, 0)) for name, inner, key in table.leaves()] == [
        ("a", 1),
        ("b.c", 2),
        ("d.e", 3),
        ("f.g.h", 4),
    ]


def test_what_is_absent_has_its_default(write: Callable[[str], TomlTable]) -> None:
    table = write("")
    assert (table.value("a", str, "x"), table.line("a"), table.value("a", DIGIT, 3)) == ("x", "", 3)
    assert (table.words("a"), list(table.table("a"))) == ((), [])
    assert table.texts("a") == ()


@pytest.mark.parametrize(
    ("value", "action", "words"),
    [
        ("1", lambda t: t.value("key", str, ""), '`key` has to be a text, not 1; put it in quotes: "..."'),
        (
            '"a\\nb"',
            lambda t: t.line("key"),
            "one line of plain text, not 'a\\nb'; in \"...\" a back",
        ),
        ("1", lambda t: t.line("key"), "a text, not 1"),
        ('"blue"', lambda t: t.value("key", COLOUR, "red"), "cannot be `blue`; choose from: red, green"),
        ("1", lambda t: t.value("key", bool, False), "true or false, not 1"),
        ("true", lambda t: t.value("key", SHARE, 1), "a number from 0 to 1, not true"),
        ("nan", lambda t: t.value("key", SHARE, 1), "a number from 0 to 1, not nan"),
        ("2.5", lambda t: t.value("key", SHARE, 1), "not 2.5"),
        ("1.0", lambda t: t.value("key", DIGIT, 1), "a whole number from 0 to 9, not 1.0"),
        ("true", lambda t: t.value("key", DIGIT, 1), "not true"),
        ("-1", lambda t: t.value("key", DIGIT, 1), "not -1"),
        ("1", lambda t: t.words("key"), "a text or a list of texts, not 1"),
        ('["a", 1]', lambda t: t.words("key"), "an item of `key` has to be a text, not 1"),
        ('"a, b"', lambda t: t.texts("key"), "a list of texts, not `a, b`"),
        ('["a", 1]', lambda t: t.texts("key"), "an item of `key` has to be a text, not 1"),
        ("7", lambda t: t.fields_of(Painted), "`key` cannot be 7; choose from: red, green"),
        ("1", lambda t: t.table("key"), "has to be a table: [key]"),
        ("1", lambda t: t.allow(("keys",)), "there is no key `key`; did you mean `keys`?"),
        ("1", lambda t: t.expect("key", "x", ("b", "a"), "colour"), "there is no colour `x`; known: a, b"),
        ("1", lambda t: t.complain("key", "odd", "even"), "odd; even"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(
    write: Callable[[str], TomlTable], value: str, action: Callable[[TomlTable], object], words: str
) -> None:
    table = write(f"# first\nkey = {value}\n")
    message = message_of(lambda: action(table))
    assert "file.toml, line 2: " in message
    assert words in message


def test_a_long_value_is_shortened(write: Callable[[str], TomlTable]) -> None:
    message = message_of(lambda: write(f'key = "{"x" * 500}"').value("key", bool, True))
    assert len(message) < 300


def test_what_is_missing_is_named_with_its_table(write: Callable[[str], TomlTable]) -> None:
    table = write("a = 1\n\n[sub]\n")
    assert message_of(lambda: table.require("b")).endswith("file.toml: `b` is missing from the file")
    message = message_of(lambda: table.table("sub").require("b"))
    assert message.endswith("file.toml, line 3: `b` is missing from the table [sub]")
    table.require("a")


def test_some_fields_of_a_dataclass_are_read(write: Callable[[str], TomlTable]) -> None:
    assert write('key = "red"\nshare = 1').fields_of(Painted) == {"key": "red", "share": 1.0}
    assert write("share = 1").fields_of(Painted, ("share",)) == {"share": 1.0}
    table = write('[sub]\nkey = "red"\nshare = 2').table("sub")
    message = message_of(lambda: table.fields_of(Painted))
    assert message.endswith("line 3: `share` has to be a number from 0 to 1, not 2")
    assert "there is no key `key`" in message_of(lambda: table.fields_of(Painted, ("share",)))
    assert "`key` is missing from the file" in message_of(lambda: write("share = 1").fields_of(Painted))


def test_a_key_in_a_table_has_its_own_line(write: Callable[[str], TomlTable]) -> None:
    table = write("[sub]\n\nkey = 1").table("sub")
    assert "file.toml, line 3: " in message_of(lambda: table.value("key", str, ""))


def test_a_key_in_an_inline_table_has_the_line_of_that(write: Callable[[str], TomlTable]) -> None:
    table = write("\nsub = { a = 1 }").table("sub")
    assert "line 2: there is no key `a`" in message_of(lambda: table.allow(()))


@pytest.mark.parametrize(
    ("text", "line"), [("a = 1\nb = \n", 2), ("a = 1\na = 2", 2), ("\n\na = [1,\n", 3), ("[a]\n[a]", 2)]
)
def test_a_file_that_is_not_a_toml(write: Callable[[str], TomlTable], text: str, line: int) -> None:
    message = message_of(lambda: write(text))
    assert f"file.toml, line {line}: " in message
    assert "valid TOML" in message


def test_a_file_that_is_not_a_text_or_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "file.toml"
    assert "No such file" in message_of(lambda: read_table(path))
    path.write_bytes(b"a = 1\nb = '\xff'")
    assert "file.toml, line 2: byte 0xff is not UTF-8" in message_of(lambda: read_table(path))


def test_byte_order_marks_and_windows_line_ends(write: Callable[[str], TomlTable]) -> None:
    table = write("\ufeffa = 1\r\n\r\nb = 2\r\n")
    assert "line 3" in message_of(lambda: table.complain("b", "odd"))


def test_an_item_is_named_with_its_own_line(write: Callable[[str], TomlTable]) -> None:
    table = write('[sub]\nkey = [\n"a",\n1,\n]').table("sub")
    assert "file.toml, line 4: " in message_of(lambda: table.texts("key"))
    assert "file.toml, line 3: odd" in message_of(lambda: table.complain("key", "odd", item=0))


def test_an_item_in_an_inline_table_has_the_line_of_that(write: Callable[[str], TomlTable]) -> None:
    table = write('\nsub = { key = ["a", 1] }').table("sub")
    assert "file.toml, line 2: " in message_of(lambda: table.texts("key"))


def test_a_text_that_is_not_on_disk_is_read_as_if_it_were(tmp_path: Path) -> None:
    path = tmp_path / "file.toml"
    assert parse_table(path, b"a = 'x'").value("a", str, "") == "x"
    assert message_of(lambda: parse_table(path, b"\na = ")).startswith(f"{path}, line 2: ")


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000 + "]" * 5000], ids=["number", "nesting"])
def test_what_is_beyond_all_measure_is_a_mistake_in_the_file(
    write: Callable[[str], TomlTable], value: str
) -> None:
    assert "file.toml: " in message_of(lambda: write(f"a = {value}"))


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (r'target = "C:\Users\me\model.gguf"', "write the path in '...', or with /"),
        (r'target = "C:\models\qwen.gguf"', "write the path in '...', or with /"),
        (r'target = "~\models"', "write the path in '...', or with /"),
        ("target = “a.gguf”", "straight quotes"),
        ("target = ~/models/a.gguf", "put a text in quotes"),
        ("target = a.gguf  # mine", "put a text in quotes"),
        ("target: 'a.gguf'", "with = instead of :"),
        ("sidebar = True", "write true or false"),
        ("sidebar = off # no", "write true or false"),
        ("width = 0,5", "with a point"),
        ("// target", "a comment begins with #"),
        ("a = 1\na = 2", "it is in the file before"),
        ("[t]\n[t]", "it is in the file before"),
        ("a = [1", "valid TOML"),
    ],
)
def test_a_default_mistake_is_named(line: str, hint: str, tmp_path: Path) -> None:
    path = tmp_path / "file.toml"
    path.write_text(f"# first\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_table(path)
    assert hint in caught.value.hint


@pytest.mark.parametrize("value", [r"C:\temp\a.gguf", r"D:\new", r"C:\bin\foo", r"C:\foo\real"])
def test_a_path_whose_backslashes_mean_something_is_reported_as_such(value: str, tmp_path: Path) -> None:
    path = tmp_path / "file.toml"
    path.write_text(f'key = "{value}"\n', encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_table(path).line("key")
    assert "write the path in '...', or with /" in caught.value.hint
    path.write_text(f"key = '{value}'\n", encoding="utf-8")
    assert read_table(path).line("key") == value


def test_an_unknown_key_may_be_of_a_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "file.toml"
    path.write_text("new_setting = true\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_table(path).allow(("theme",))
    assert "known: theme; if a newer LocalSpec wrote it" in caught.value.hint


def test_tables_of_a_list_have_their_own_lines(write: Callable[[str], TomlTable]) -> None:
    table = write("a = 1\n[[card]]\nb = 1\n\n[[card]]\nc = 2\n")
    first, second = table.tables("card")
    assert (first.value("b", int, 0), second.value("c", int, 0)) == (1, 2)
    message = message_of(lambda: second.require("b", "write it"))
    assert message.endswith("file.toml, line 5: `b` is missing from the table [[card]]; write it")
    assert "file.toml, line 6: there is no key `c`" in message_of(lambda: second.allow(("b",)))
    assert table.tables("other") == ()


@pytest.mark.parametrize("value", ["1", "[1]", "{ b = 1 }"])
def test_what_is_not_a_list_of_tables(write: Callable[[str], TomlTable], value: str) -> None:
    message = message_of(lambda: write(f"card = {value}").tables("card"))
    assert message.endswith("line 1: `card` has to be a list of tables: [[card]]")
