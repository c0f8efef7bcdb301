"""The file of the store: private, migrated, shared, and left alone when something is wrong with it."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.chat.messages import Span
from localspec.chat.store import Store, database
from localspec.chat.store.search import search_text
from localspec.errors import StoreError
from localspec.types.drafts import Provenance
from tests.chat.sample_record import RECORD

Breaks = Callable[[Path], object]
WRITES_AND_WAITS = """
import sys
from pathlib import Path
from localspec.chat.store import Store
store = Store(Path(sys.argv[1]))
chat = store.new_chat().id
store.add(chat, None, "user", "Count!")
answer = store.add(chat, 1, "assistant", "", state="writing")
store.write(answer.id, "one two three", "writing")
print("written", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "chats.db"


def make(file: Path) -> None:
    with Store(file) as store:
        store.add(store.new_chat().id, None, "user", "a question " * 500)


def change(file: Path, statement: str) -> None:
    connection = sqlite3.connect(file)
    connection.execute(statement)
    connection.commit()
    connection.close()


def make_newer(file: Path) -> None:
    change(file, "PRAGMA user_version = 99")


def put_another(file: Path) -> None:
    file.unlink()
    change(file, "CREATE TABLE theirs (x)")


def test_only_the_owner_can_read_it(file: Path) -> None:
    with Store(file) as store:
        store.new_chat()
        made = sorted(file.parent.iterdir())
        assert [path.name for path in made] == ["chats.db", "chats.db-shm", "chats.db-wal"]
        assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o600}
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_file_that_was_readable_becomes_private(file: Path) -> None:
    make(file)
    file.chmod(0o644)
    make(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_file_that_is_only_to_be_read_stays_so(file: Path) -> None:
    make(file)
    file.chmod(0o444)
    with suppress(StoreError):  # nothing but the superuser can write it
        make(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o400


def test_how_it_is_opened(file: Path) -> None:
    with Store(file) as store, store._database.reading() as connection:
        settings = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "user_version")
        }
    assert settings == {
        "journal_mode": "wal",
        "synchronous": 1,
        "foreign_keys": 1,
        "busy_timeout": 5000,
        "user_version": len(database.MIGRATIONS),
    }


@pytest.mark.parametrize("version", range(len(database.MIGRATIONS)))
def test_every_earlier_schema_is_brought_up_to_date(file: Path, version: int) -> None:
    file.parent.mkdir()
    connection = sqlite3.connect(file, isolation_level=None)
    connection.create_function("search_text", 1, search_text, deterministic=True)
    database.migrate(connection, database.MIGRATIONS[:version])
    connection.close()
    make(file)
    with Store(file) as store:
        assert len(store.search("question")) == 2  # the title, and the prompt


def test_answers_of_an_earlier_schema_read_as_before(file: Path) -> None:
    """They lack the tag with which their prompt opened the thinking; newer ones say what they say."""
    text, span = "hm, yes\n</think>\n\nFour.", Span(23, Provenance.ACCEPTED)
    with Store(file) as store:
        chat = store.new_chat().id
        asked = store.add(chat, None, "user", text)
        old, new = (store.add(chat, asked.id, "assistant", "", state="writing") for _ in range(2))
        for answer in (old, new):
            store.write(answer.id, text, "complete", replace(RECORD, spans=(span,)))
    change(file, f"UPDATE messages SET tagged = 0 WHERE id IN ({asked.id}, {old.id})")  # as they were
    with Store(file) as store:
        assert [found.content for found in store.messages(chat)] == [text, f"<think>\n{text}", text]
        spans = [record.spans for id_ in (old.id, new.id) if (record := store.record(id_))]
        assert spans == [(Span(8, Provenance.TARGET), span), (span,)]
        assert [found.spans for found in store.outlines(chat).values()] == spans
        assert len(store.search("four")) == 3
        store.write(old.id, f"<think>\n{text}", "complete")
        assert store.messages(chat)[1].content == f"<think>\n{text}"
        record = store.record(old.id)
        assert record is not None
        assert record.spans == spans[0]


def test_steps_are_taken_once_each_and_in_order(tmp_path: Path) -> None:
    first, second = tmp_path / "1.sql", tmp_path / "2.sql"
    first.write_text("CREATE TABLE numbers (value INTEGER);\n\nINSERT INTO numbers VALUES (6);\n")
    second.write_text("INSERT INTO numbers VALUES (7);\n")
    connection = sqlite3.connect(":memory:", isolation_level=None)
    database.migrate(connection, (first,))
    database.migrate(connection, (first, second))
    database.migrate(connection, (first, second))
    assert database.version_of(connection) == 2
    assert connection.execute("SELECT value FROM numbers").fetchall() == [(6,), (7,)]
    connection.close()


def test_a_step_that_fails_changes_nothing(tmp_path: Path) -> None:
    fails = tmp_path / "1.sql"
    fails.write_text("CREATE TABLE half (value INTEGER);\n\nINSERT INTO nowhere VALUES (1);\n")
    connection = sqlite3.connect(":memory:", isolation_level=None)
    with pytest.raises(sqlite3.OperationalError, match="no such table: nowhere"):
        database.migrate(connection, (fails,))
    assert database.version_of(connection) == 0
    assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    connection.close()


@pytest.mark.parametrize(
    ("breaks", "complaint"),
    [
        (make_newer, "newer LocalSpec .schema 99.*update LocalSpec"),
        (lambda file: file.write_bytes(b"junk " * 4000), "damaged .* backup, try `sqlite3 chats.db"),
        (lambda file: file.write_bytes(file.read_bytes()[:5000]), "damaged"),
        (put_another, "database of another program"),
    ],
)
def test_a_file_that_is_not_a_use_is_named_and_left_alone(file: Path, breaks: Breaks, complaint: str) -> None:
    make(file)
    breaks(file)
    before = file.read_bytes()
    with pytest.raises(StoreError, match=complaint) as caught:
        Store(file)
    assert str(file) in str(caught.value)
    assert file.read_bytes() == before


def test_damage_inside_is_found_when_it_is_met(file: Path) -> None:
    make(file)
    connection = sqlite3.connect(file)
    ((page,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'messages'").fetchall()
    connection.close()
    content = bytearray(file.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    file.write_bytes(content)
    with Store(file) as store, pytest.raises(StoreError, match=r"damaged .* left as it is"):
        store.messages(1)
    assert file.read_bytes() == content


def test_a_folder_in_the_place_of_the_file(file: Path) -> None:
    file.mkdir(parents=True)
    with pytest.raises(StoreError, match=r"cannot .*chats\.db"):
        Store(file)


def test_no_folder_can_be_made(file: Path) -> None:
    file.parent.write_text("a file")
    with pytest.raises(StoreError, match=r"cannot open the chats"):
        Store(file)


def test_a_full_disk_keeps_what_there_was(file: Path) -> None:
    make(file)
    with Store(file) as store:
        answer = store.add(1, 1, "assistant", "first words", state="writing")
        with store._database.reading() as connection:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match=r"no space left on the disk .*chats\.db"):
            store.write(answer.id, "many more words " * 50_000, "complete", RECORD)
        assert [message.content for message in store.messages(1)][1] == "first words"
        assert store.record(answer.id) is None
        store.write(answer.id, "few words", "complete")
        assert store.messages(1)[1].content == "few words"


def test_an_open_chat_can_be_read_where_nothing_can_be_written(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(file)
    monkeypatch.setattr(database, "BUSY_S", 0.01)
    with Store(file) as writer, Store(file) as early:
        answer = writer.add(1, 1, "assistant", "half an", state="writing")
        blocker = sqlite3.connect(file, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with Store(file, lambda: answer.created + 60) as store:
            assert store.messages(1)[1].state == "stopped"
            with pytest.raises(StoreError, match=r"another program is using the chats"):
                store.rename(1, "T")
        blocker.execute("ROLLBACK")
        blocker.close()
        assert early.messages(1)[1].state == "writing"


def test_two_programs_see_what_the_other_wrote(file: Path) -> None:
    with Store(file) as one, Store(file) as other:
        chat = one.new_chat().id
        one.add(chat, None, "user", "from one")
        other.add(chat, 1, "assistant", "from the other")
        assert [m.content for m in one.messages(chat)] == ["from one", "from the other"]
        assert len(one.search("other")) == 1


def test_written_text_survives_a_kill(file: Path) -> None:
    command = [sys.executable, "-c", WRITES_AND_WAITS, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"written\n"
        program.send_signal(signal.SIGKILL)
    with Store(file) as store:
        assert [message.content for message in store.messages(1)] == ["Count!", "one two three"]
        assert store.messages(1)[1].state == "stopped"  # no one else is there who could continue with it


def test_a_closed_store_says_so(file: Path) -> None:
    store = Store(file)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="are closed"):
        store.chats()


def contents(file: Path) -> list[str]:
    """Return what a copy of the one file alone holds."""
    copy = file.with_name("copy.db")
    copy.write_bytes(file.read_bytes())
    with Store(copy) as store:
        return [message.content for chat in store.chats() for message in store.messages(chat.id)]


def add_answer(store: Store) -> None:
    store.add(1, 1, "assistant", "An answer.")


def write_answer(store: Store) -> None:
    answer = store.add(1, 1, "assistant", "", state="writing")
    store.write(answer.id, "An", "writing")
    store.write(answer.id, "An answer.", "complete", RECORD)


@pytest.mark.parametrize("change", [add_answer, write_answer])
def test_the_one_file_holds_every_complete_answer(file: Path, change: Callable[[Store], None]) -> None:
    with Store(file) as store:
        store.add(store.new_chat().id, None, "user", "a question")
        change(store)
        assert "An answer." in contents(file)


def test_the_file_lacks_what_a_reader_keeps_out_of_it_and_says_so(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.01)
    make(file)
    with Store(file) as store, Store(file) as other, other._database.reading() as reader:
        reader.execute("SELECT count(*) FROM messages").fetchone()
        store.add(1, 1, "assistant", "An answer.")
        assert store.fill_file() is False
    with Store(file) as store:
        assert store.fill_file() is True


NO_RIGHTS = """
import sys
from pathlib import Path
from localspec.chat.store import Store
with Store(Path(sys.argv[1]), to_read=True) as store:
    print(len(store.chats()), len(store.search("question")), store.fill_file())
    store.rename(1, "forgotten")
"""


@pytest.fixture
def look(file: Path) -> Iterator[Callable[[], str]]:
    """Run a reader that may not write, even as the superuser, if that can be had."""
    command = [sys.executable, "-c", NO_RIGHTS, str(file)]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("the superuser may write everywhere, and there is no setpriv")
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]

    def run() -> str:
        for path in (*file.parent.glob("*"), file.parent):
            path.chmod(0o555 if path.is_dir() else 0o444)
        before = {path.name: path.read_bytes() for path in file.parent.iterdir()}
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert {path.name: path.read_bytes() for path in file.parent.iterdir()}.keys() == before.keys()
        assert file.read_bytes() == before[file.name] if file.exists() else True
        return result.stdout.strip() or result.stderr.splitlines()[-1]

    yield run
    if file.parent.exists():
        file.parent.chmod(0o755)


def leave_as_a_kill_does(file: Path) -> None:
    """Write a chat whose files stay as they are while a program has them open."""
    kept = file.with_name("kept")
    with Store(file) as store:
        store.add(store.new_chat().id, None, "user", "a question")
        shutil.copytree(file.parent, kept)
    for path in kept.iterdir():
        path.replace(file.with_name(path.name))
    kept.rmdir()


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX")
def test_a_file_that_may_only_be_read_is_read(file: Path, look: Callable[[], str]) -> None:
    make(file)
    assert look() == "1 2 True"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX")
def test_the_log_next_to_it_is_read_too(file: Path, look: Callable[[], str]) -> None:
    leave_as_a_kill_does(file)
    assert look() == "1 2 False"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX")
def test_a_log_that_cannot_be_read_is_reported(file: Path, look: Callable[[], str]) -> None:
    leave_as_a_kill_does(file)
    file.with_name("chats.db-shm").unlink()
    assert "are in `chats.db-wal`, which cannot be read" in look()


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX")
def test_the_file_of_an_older_version_is_read(file: Path, look: Callable[[], str]) -> None:
    file.parent.mkdir()
    connection = sqlite3.connect(file, isolation_level=None)
    connection.create_function("search_text", 1, search_text, deterministic=True)
    database.migrate(connection, database.MIGRATIONS[:1])
    connection.execute("INSERT INTO chats (title, created, updated, profile) VALUES ('question', 1, 1, 'x')")
    connection.execute(
        "INSERT INTO messages (chat, role, state, created, written, content) "
        "VALUES (1, 'user', 'complete', 1, 1, 'question')"
    )
    connection.close()
    assert look() == "1 2 True"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX")
def test_where_no_file_is_and_none_can_be_made_there_are_not_chats(
    file: Path, look: Callable[[], str]
) -> None:
    file.parent.mkdir()
    assert look() == "0 0 True"
    assert not file.exists()
