"""What version 0.1.0 left in a user's folders opens unchanged: chats, settings, studies, rates.

The archive was written by that version: two chats on the screen (one with a second answer and unsent text),
a whole run of the tuner for coding, and one for writing that was stopped. Paths of the models are made good.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from localspec.demo import bundled_pair
from localspec.storage.paths import data_dir
from tests.cli.conftest import Invoke

ARCHIVE = Path(__file__).parent / "kept" / "version-0.1.0.tar.gz"
THEIRS = "/opt/localspec/bundled-1"


@pytest.fixture(autouse=True)
def kept(tmp_path: Path) -> Path:
    """Unpack the archive into this test's home."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since 3.11.4
        archive.extractall(tmp_path)
    folder = data_dir()
    folder.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "data").rename(folder)
    folder.chmod(0o700)
    ours = bundled_pair()[0].parent.as_posix()
    for path in folder.rglob("*.json"):
        path.write_text(path.read_text("utf-8").replace(THEIRS, ours), "utf-8")
    return folder


def pair() -> list[str]:
    target, draft = bundled_pair()
    return ["-m", str(target), "-md", str(draft)]


def test_chats_are_listed_shown_and_found(invoke: Invoke) -> None:
    chats = json.loads(invoke("history", "--json").out)["chats"]
    assert [(chat["title"], chat["messages"]) for chat in chats] == [
        ("What is a list in Python?", 2),
        ("Hello, who are you?", 5),
    ]
    shown = invoke("history", "show", "1").out
    assert "There was once a shy fox." in shown  # the second answer is the one that was shown last
    assert "There was once a lonely fox." not in shown
    assert invoke("history", "search", "lonely").out.startswith("1  ")


def test_every_branch_and_its_record_is_there(invoke: Invoke) -> None:
    exported = json.loads(invoke("history", "show", "1", "--json").out)
    answers = [each for each in exported["messages"] if each["role"] == "assistant"]
    assert len(answers) == 3
    assert all(each["record"]["rounds"] for each in answers)


@pytest.mark.slow
def test_tuned_settings_are_listed_and_exported(invoke: Invoke) -> None:
    (found,) = json.loads(invoke("tune", "--show", "--json").out)["kept"]
    assert (found["tuned"]["task"], found["tuned"]["settings"]["mode"]) == ("coding", "off")
    assert 'mode = "off"' in invoke("tune", "--export", "toml", "--task", "coding", *pair()).out


def test_measured_rates_are_read(kept: Path) -> None:
    assert json.loads((kept / "machine.json").read_text("utf-8"))["rates"]


def test_nothing_of_it_was_changed_by_reading(invoke: Invoke, kept: Path) -> None:
    files = list(kept.rglob("*.json"))
    before = [path.read_bytes() for path in files]
    for words in (["history"], ["tune", "--show", *pair()]):
        assert invoke(*words).code == 0
    assert [path.read_bytes() for path in files] == before
