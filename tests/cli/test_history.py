from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from localspec.chat.store import Store
from localspec.storage.paths import chats_file
from tests.chat.sample_record import RECORD
from tests.cli.conftest import Invoke

ROOT = Path(__file__).parents[2]
EXPORTS = ROOT / "tests" / "chat" / "exports"


@pytest.fixture
def two_chats() -> None:
    """Chat 1 about llamas with an answer, chat 2 about alpacas without one."""
    with Store(chats_file()) as store:
        store.add(store.new_chat().id, None, "user", "What is a llama?")
        answer = store.add(1, 1, "assistant", "", state="writing").id
        store.write(answer, "An animal\x1b[2J of the Andes.", "stopped", RECORD)
        store.add(store.new_chat().id, None, "user", "And an alpaca?")


pytestmark = pytest.mark.usefixtures("two_chats")


def numbers(invoke: Invoke, *more: str) -> list[int]:
    return [chat["id"] for chat in json.loads(invoke("history", "--json", *more).out)["chats"]]


@pytest.mark.parametrize("arguments", [["history"], ["history", "list"]])
def test_the_list(invoke: Invoke, arguments: list[str]) -> None:
    outcome = invoke(*arguments)
    assert (outcome.code, outcome.err) == (0, "")
    assert re.fullmatch(
        r"2  [\d-]{10} [\d:]{5}      1 message  And an alpaca\?\n"
        r"1  [\d-]{10} [\d:]{5}     2 messages  What is a llama\?\n",
        outcome.out,
    )


def test_the_list_for_programs(invoke: Invoke) -> None:
    for arguments in (["history", "--json"], ["history", "list", "--json"], ["history", "--json", "list"]):
        value = json.loads(invoke(*arguments).out)
        assert value["schema"] == 1
        assert [(chat["id"], chat["title"], chat["messages"]) for chat in value["chats"]] == [
            (2, "And an alpaca?", 1),
            (1, "What is a llama?", 2),
        ]


def test_the_list_is_narrowed_by_tags_folders_and_words(invoke: Invoke) -> None:
    with Store(chats_file()) as store:
        store.rename(1, "#zoo What is a llama?")
        store.set_folder(1, "Old animals")
        store.set_folder(2, "Old")
    assert "llama?  (in Old animals)\n" in invoke("history", "list", "in:old", "animals").out
    cases = {("#zoo",): [1], ("in:Old",): [2, 1], ("in:old animals",): [1], ("in:old", "alpaca"): [2]}
    for names, found in {**cases, ("ALPACA",): [2]}.items():
        assert numbers(invoke, "list", *names) == found
    listed = json.loads(invoke("history", "list", "--json", "#zoo").out)["chats"][0]
    assert (listed["folder"], listed["tags"]) == ("Old animals", ["zoo"])
    assert invoke("history", "list", "#zoo", "alpaca").err == "nothing found\n"
    assert "llama" in invoke("history", "search", "animal", "in:old", "animals").out
    assert invoke("history", "search", "animal", "in:old", "alpaca").err == "nothing found\n"


def test_nothing_there_yet(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path))
    outcome = invoke("history")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "no chats yet\n")
    assert invoke("history", "export", "--all").out == ""


def test_searching(invoke: Invoke) -> None:
    outcome = invoke("history", "search", "and", "alp")
    title, excerpt = outcome.out.splitlines()
    assert title.endswith("And an alpaca?")
    assert excerpt == "    And an alpaca?"
    value = json.loads(invoke("history", "search", "--json", "andes").out)
    (hit,) = value["hits"]
    assert (value["schema"], hit["chat"]["id"], hit["message"]) == (1, 1, 2)
    ((start, end),) = hit["marks"]
    assert hit["excerpt"][start:end] == "Andes"
    assert len(invoke("history", "search", "-n", "1", "a").out.splitlines()) == 1
    outcome = invoke("history", "search", "guanaco")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "nothing found\n")


def test_showing_a_chat(invoke: Invoke) -> None:
    outcome = invoke("history", "show", "1")
    assert outcome.out.startswith("# What is a llama?\n")
    assert "## Assistant (Large) (stopped)\n\nAn animal\x1b[2J of the Andes.\n" in outcome.out
    assert json.loads(invoke("history", "show", "1", "--json").out)["chat"]["title"] == "What is a llama?"


def test_a_terminal_is_safe_from_what_a_model_wrote(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "An animal of the Andes.\n" in invoke("history", "show", "1").out


@pytest.mark.parametrize("command", ["show", "export", "delete", "restore"])
def test_a_number_that_no_chat_has(invoke: Invoke, command: str) -> None:
    outcome = invoke("history", command, "9")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: there is no chat 9\n  hint: `localspec history` lists")


def test_exporting_to_a_file(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "llamas.md"
    outcome = invoke("history", "export", "1", "-o", str(file))
    assert (outcome.code, outcome.out) == (0, f"{file}\n")
    assert file.read_text(encoding="utf-8").startswith("# What is a llama?")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert invoke("history", "export", "1").out == file.read_text(encoding="utf-8")


def test_nothing_is_written_over_unasked(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "llamas.md"
    file.write_text("mine")
    outcome = invoke("history", "export", "1", "-o", str(file))
    assert outcome.code == 2
    assert "exists already" in outcome.err
    assert "--force" in outcome.err
    assert file.read_text() == "mine"
    assert invoke("history", "export", "1", "-o", str(file), "--force").code == 0
    assert file.read_text().startswith("# What")
    assert "is not a plain file" in invoke("history", "export", "1", "-o", os.devnull, "--force").err


def test_a_name_that_no_disk_takes_is_an_error_and_no_mistake_of_the_program(invoke: Invoke) -> None:
    for name in ("x" * 300, "x" * 300 + ".json"):
        outcome = invoke("history", "export", "1", "-o", name)
        assert (outcome.code, outcome.out) == (1, "")
        assert "File name too long" in outcome.err
        assert "unexpected" not in outcome.err


def test_exporting_everything_to_a_folder(invoke: Invoke, tmp_path: Path) -> None:
    outcome = invoke("history", "export", "--all", "-o", str(tmp_path / "out"), "--format", "json", "--json")
    files = [Path(file) for file in json.loads(outcome.out)["files"]]
    assert [file.name[10:] for file in files] == ["-and-an-alpaca-2.json", "-what-is-a-llama-1.json"]
    assert json.loads(files[1].read_text(encoding="utf-8"))["chat"]["title"] == "What is a llama?"
    assert invoke("history", "export", "1", "-o", str(tmp_path / "out")).out.endswith("-llama-1.md\n")


@pytest.mark.parametrize("all_in_one", [True, False])
def test_what_was_exported_can_be_imported(invoke: Invoke, tmp_path: Path, all_in_one: bool) -> None:
    file = tmp_path / "all.json"
    chosen = ["--all"] if all_in_one else ["2", "1"]
    assert invoke("history", "export", *chosen, "-o", str(file)).code == 0
    assert invoke("history", "delete", "1", "2").code == 0
    outcome = invoke("history", "import", str(file))
    assert (outcome.code, outcome.err) == (0, "imported 2 chats\n")
    assert sorted(numbers(invoke)) == [3, 4]
    llama, alpaca = sorted(
        numbers(invoke), key=lambda n: "llama?" not in invoke("history", "show", str(n)).out
    )
    assert "An animal" in invoke("history", "show", str(llama)).out
    text = invoke("history", "export", str(alpaca), "--format", "json").out
    piped = invoke("history", "import", "-", "--again", "--json", piped=text.encode())
    assert [chat["id"] for chat in json.loads(piped.out)["chats"]] == [5]
    assert invoke("history", "export", "5", "--json").out != text  # other numbers
    assert invoke("history", "show", "5").out == invoke("history", "show", str(alpaca)).out


def test_an_import_twice_adds_nothing_and_says_so(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    invoke("history", "export", "--all", "-o", str(file))
    outcome = invoke("history", "import", str(file))
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == "imported 0 chats; 2 already there, which --again would add once more\n"
    with Store(chats_file()) as store:
        store.add(2, 3, "assistant", "A smaller one.")
    outcome = invoke("history", "import", str(file), str(file), "--json")
    value = json.loads(outcome.out)
    assert (value["chats"], value["already_there"], value["left_out"]) == ([], 4, {})
    assert invoke("history", "import", "--again", str(file)).err == "imported 2 chats\n"
    assert sorted(numbers(invoke)) == [1, 2, 3, 4]


@pytest.mark.parametrize("text", [b"", b" \n\n"])
def test_an_import_of_nothing_says_so(invoke: Invoke, text: bytes) -> None:
    outcome = invoke("history", "import", "-", piped=text)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: standard input is empty\n  hint: supported are")


def test_an_export_that_has_grown_continues_its_chat(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    invoke("history", "export", "--all", "-o", str(file))
    chats = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    chat = max(chats, key=lambda chat: len(chat["messages"]))
    last = chat["messages"][-1]
    new = {**last, "id": 99, "parent": last["id"], "role": "user", "content": "And then?", "created": 2e9}
    chat["messages"].append({name: each for name, each in new.items() if name != "record"})
    file.write_text("\n".join(map(json.dumps, chats)), encoding="utf-8")
    outcome = invoke("history", "import", str(file))
    assert "imported 0 chats; 1 message added to " in outcome.err
    assert "And then?" in outcome.out + invoke("history", "search", "then").out
    again = json.loads(invoke("history", "import", str(file), "--json").out)
    assert (again["chats"], again["continued"]) == ([], [])


def test_chats_of_other_programs_come_and_what_lacks_is_reported(invoke: Invoke) -> None:
    outcome = invoke("history", "import", *(str(EXPORTS / f"{name}.json") for name in ("chatgpt", "claude")))
    assert outcome.code == 0
    assert [line.rpartition("  ")[2] for line in outcome.out.splitlines()] == [
        "(pinned)",
        "Say hi",
        "Sorting",
        "What is a tapir?",
    ]
    assert "imported 4 chats\n" in outcome.err
    assert "no place for some of it: 2 empty chats, 2 files, 1 picture, 1 recording" in outcome.err
    assert (
        "4 already there"
        in invoke("history", "import", str(EXPORTS / "chatgpt.json"), str(EXPORTS / "claude.json")).err
    )


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"junk", "not JSON: Expecting value: line 1 column 1"),
        (b"", "is empty"),
        (b"\xff", "is not UTF-8 text: byte 0xff at offset 0"),
        (b"GOOD\n{}", 'chat 2 of the file: not a chat that can be imported: "format" is not'),
        (None, "cannot read"),
    ],
)
def test_a_file_that_cannot_be_imported(
    invoke: Invoke, tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    file, good = tmp_path / "chats.json", invoke("history", "export", "1", "--json").out.encode()
    if content is not None:
        file.write_bytes(content.replace(b"GOOD", good))
    (tmp_path / "good.json").write_bytes(good)
    outcome = invoke("history", "import", str(tmp_path / "good.json"), str(file))
    assert (outcome.code, outcome.out) == (2, "")
    assert complaint in outcome.err
    assert str(file) in outcome.err
    assert numbers(invoke) == [2, 1]


def test_deleting_and_restoring(invoke: Invoke) -> None:
    outcome = invoke("history", "delete", "1", "2")
    assert (outcome.code, outcome.out) == (0, "")
    assert '"What is a llama?", "And an alpaca?"' in outcome.err
    assert "`localspec history restore 1 2`" in outcome.err
    assert numbers(invoke) == []
    assert sorted(numbers(invoke, "--deleted")) == [1, 2]
    assert "`localspec history restore 1` restores it" in invoke("history", "show", "1").err
    assert json.loads(invoke("history", "restore", "--json", "1").out) == {"schema": 1, "restored": [1]}
    assert numbers(invoke) == [1]
    assert json.loads(invoke("history", "delete", "1", "--json").out) == {"schema": 1, "deleted": [1]}


def test_what_is_done_already_is_reported_and_no_mistake(invoke: Invoke) -> None:
    for command, already in (("restore", "not deleted"), ("delete", "deleted already")):
        if command == "delete":
            assert invoke("history", "delete", "1").code == 0
        outcome = invoke("history", command, "1")
        assert (outcome.code, outcome.err) == (0, f'{already}: "What is a llama?"\n')
        assert json.loads(invoke("history", command, "1", "--json").out)[f"{command}d"] == []
    outcome = invoke("history", "delete", "1", "2")
    assert outcome.err.splitlines() == [
        'deleted "And an alpaca?"; for 30 days, `localspec history restore 2` undoes that',
        'deleted already: "What is a llama?"',
    ]
    assert invoke("history", "restore", "9").code == 2


def test_one_wrong_number_deletes_nothing(invoke: Invoke) -> None:
    assert invoke("history", "delete", "1", "9").code == 2
    assert numbers(invoke) == [2, 1]


def test_where_the_chats_are(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert invoke("history", "path").out == f"{chats_file()}\n"
    assert json.loads(invoke("history", "path", "--json").out)["path"] == str(chats_file())
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path / "nothing"))
    assert invoke("history", "path").out == f"{tmp_path / 'nothing' / 'chats.db'}\n"
    assert not chats_file().exists()


def test_the_file_that_path_names_may_be_copied_alone(invoke: Invoke, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with Store(chats_file()) as store:
        store.add(store.new_chat().id, None, "user", "the latest")
        outcome = invoke("history", "path")
        assert outcome.err == ""
        copy.write_bytes(Path(outcome.out.strip()).read_bytes())
    with Store(copy) as copied:
        assert copied.chats()[0].title == "the latest"


def test_imported_chats_are_in_the_one_file_while_another_program_has_it_open(
    invoke: Invoke, tmp_path: Path
) -> None:
    with Store(chats_file()):
        assert invoke("history", "import", str(EXPORTS / "claude.json")).code == 0
        (tmp_path / "copy.db").write_bytes(chats_file().read_bytes())
    with Store(tmp_path / "copy.db") as copied:
        assert "Sorting" in {chat.title for chat in copied.chats()}


def test_a_file_of_no_use_is_named_all_the_same(invoke: Invoke) -> None:
    chats_file().write_bytes(b"junk " * 2000)
    outcome = invoke("history", "path")
    assert (outcome.code, outcome.out) == (0, f"{chats_file()}\n")
    assert "are damaged" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["history", "serch", "x"], "did you mean `search`?"),
        (["history", "of", "Rome"], 'localspec run "history of Rome"'),
        (["histroy"], "did you mean `history`?"),
        (["history", "show", "x"], "`x` is not a whole number"),
        (["history", "show"], "required: ID"),
        (["history", "export"], "give their numbers, or --all"),
        (["history", "export", "1", "--all"], "give their numbers, or --all"),
        (["history", "export", "--all", "-o", "x.md"], "name a folder"),
        (["history", "list", "--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_mistakes(invoke: Invoke, arguments: list[str], complaint: str) -> None:
    outcome = invoke(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert complaint in outcome.err


def test_help(invoke: Invoke) -> None:
    commands = ("list", "search", "show", "export", "import", "delete", "restore", "path")
    outcome = invoke("history", "--help")
    assert outcome.code == 0
    assert all(f"\n    {command} " in outcome.out for command in commands)
    assert "--force" in invoke("history", "export", "--help").out


@pytest.mark.parametrize(
    "breaks",
    [lambda file: file.write_bytes(b"junk " * 2000), lambda file: [file.unlink(), file.mkdir()]],
)
def test_a_store_that_is_not_a_use(invoke: Invoke, breaks: Callable[[Path], object]) -> None:
    breaks(chats_file())
    outcome = invoke("history")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("error: ")
    assert str(chats_file()) in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_not_an_error() -> None:
    with Store(chats_file()) as store:
        for _ in range(300):
            store.add(store.new_chat().id, None, "user", "one more " * 20)
    command = [sys.executable, "-m", "localspec", "history", "search", "-n", "1000", "more"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.readline()
        program.stdout.close()
        assert program.stderr.read() == b""
    assert program.returncode == 0


def test_neither_help_nor_mistakes_open_a_database() -> None:
    code = (
        "import sys; from localspec.__main__ import main\n"
        "assert main(['--help']) == 0\n"
        "assert main(['history', 'serch']) == main(['history', 'show']) == 2\n"
        "print({'sqlite3', 'numpy', 'platformdirs'} & set(sys.modules))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.endswith("set()\n")
