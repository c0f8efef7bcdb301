"""Files, folders and patterns on the screen: pasted, completed, undone, and what is said before sending."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from textual import events

from localspec import pdf
from localspec.chat.attachments import Attached, attach
from localspec.chat.resources import Resources
from localspec.types.request import Message
from localspec_tui.screens.chat import unsent
from tests.made_pdf import text_pdf
from tests.scripted import TIMEOUT_S
from tests.tui.desktop import Desktop, desktop

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("my notes.txt", "src/main.py", "src/util.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"of {name}\n")
    return tmp_path


async def pasted(desk: Desktop, text: str) -> None:
    desk.composer.focus()
    desk.app.post_message(events.Paste(text))
    await desk.pilot.pause()


async def test_a_dropped_file_is_attached_and_undo_gives_the_path_back(folder: Path) -> None:
    async with desktop(folder) as desk:
        path = f"'{folder}/my notes.txt' "
        await desk.press(*"see ")
        await pasted(desk, path)
        await desk.until(lambda: desk.composer.text == 'see @"my notes.txt" ')
        await desk.shows("my notes.txt, 16 bytes")
        await desk.press("ctrl+z")
        assert desk.composer.text == f"see {path}"
        await desk.press("ctrl+z")
        assert desk.composer.text == "see "
        await desk.until(lambda: "16 bytes" not in desk.screen_text())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "@src/ "),
        ("看", "看@src/ "),
        ("@", "@src/ "),
        ("/attach ", "/attach {path}"),
        ("```\n", "```\n{path}"),
        ("me@x", "me@x{path}"),
    ],
)
async def test_where_a_path_is_pasted(before: str, after: str, folder: Path) -> None:
    async with desktop(folder) as desk:
        desk.composer.text = before
        await pasted(desk, f"{folder}/src")
        await desk.until(lambda: desk.composer.text == after.replace("{path}", f"{folder}/src"))


async def test_a_folder_is_completed_and_enter_sends_its_listing(folder: Path) -> None:
    async with desktop(folder) as desk:
        await desk.press(*"@sr", "tab")
        await desk.shows("main.py  15 bytes", "list its files", "attach its text files")
        await desk.press("enter")
        await desk.until(lambda: len(desk.path) == 2 and not desk.chat.pane.working)
        assert [file.name for file in desk.path[0].attachments] == ["src/"]
        assert desk.path[0].attachments[0].text == "main.py  15 bytes\nutil.py  15 bytes"


async def test_what_a_pattern_attaches_is_shown_before_it_is_sent(folder: Path) -> None:
    (folder / "src" / "logo.png").write_bytes(b"\x89PNG\0")
    async with desktop(folder) as desk:
        desk.composer.text = "@src/** "
        await desk.shows("src/main.py, 15 bytes", "2 of 3 files attached; not logo.png")
        await desk.press("enter")
        await desk.until(lambda: len(desk.path) == 2 and not desk.chat.pane.working)
        assert [file.name for file in desk.path[0].attachments] == ["src/main.py", "src/util.py"]
        (told,) = desk.app._notifications
        assert told.message.startswith("src/**: 2 of 3 files attached")


async def test_a_pdf_file_is_attached_as_text(folder: Path) -> None:
    (folder / "paper.pdf").write_bytes(text_pdf("A title"))
    async with desktop(folder) as desk:
        desk.composer.text = "sum up @paper.pdf"
        await desk.shows("paper.pdf, 22 bytes")
        await desk.press("enter")
        await desk.until(lambda: len(desk.path) == 2 and not desk.chat.pane.working)
        question = desk.models.requests[-1].prompt[-1]
        assert isinstance(question, Message)
        assert question.content == "File paper.pdf:\n```\n[Page 1 of 1]\nA title\n```\n\nsum up @paper.pdf"


async def test_a_pdf_file_without_text_is_refused_and_the_prompt_stays(folder: Path) -> None:
    (folder / "scan.pdf").write_bytes(text_pdf(""))
    async with desktop(folder) as desk:
        await desk.enter("sum up @scan.pdf")
        await desk.shows("`scan.pdf` has no text")
        assert (desk.path, desk.composer.text) == ((), "sum up @scan.pdf")


async def test_reading_that_takes_long_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def slow(text: str, folder: Path, limit: int, resources: Resources) -> Attached:
        assert go_on.wait(TIMEOUT_S)
        return attach(text, folder, limit, resources)

    monkeypatch.setattr(unsent, "attach", slow)
    monkeypatch.setattr(unsent, "SLOW_S", 0.01)
    async with desktop(folder) as desk:
        desk.composer.text = "see @src/main.py"
        await desk.shows(unsent.READING)
        go_on.set()
        await desk.shows("src/main.py, 15 bytes")
        go_on.clear()
        desk.app.post_message(events.Key("enter", "\r"))
        await desk.while_busy(lambda: unsent.READING in desk.screen_text())
        go_on.set()
        await desk.until(lambda: len(desk.path) == 2 and unsent.READING not in desk.screen_text())


async def test_a_refusal_is_seen_while_something_else_is_typed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def slow(text: str, folder: Path, limit: int, resources: Resources) -> Attached:
        assert go_on.wait(TIMEOUT_S)
        return attach(text, folder, limit, resources)

    async with desktop(folder) as desk:
        desk.composer.text = "see @src/gone.py"
        await desk.shows("there is no file")
        monkeypatch.setattr(unsent, "attach", slow)
        desk.app.post_message(events.Key("enter", "\r"))
        await desk.while_busy(lambda: not desk.composer.text)
        desk.composer.text = "typed meanwhile"
        go_on.set()
        await desk.until(lambda: desk.app._notifications)
        (told,) = desk.app._notifications
        assert told.message.startswith("there is no file `src/gone.py`")
        assert desk.chat.session.queue == ["see @src/gone.py"]


async def test_many_files_take_one_line(folder: Path) -> None:
    for number in range(20):
        (folder / "src" / f"{number:02}.py").write_text("x = 1\n")
    async with desktop(folder, size=(80, 24)) as desk:
        desk.composer.text = "@src/*.py "
        await desk.shows("22 files, 150 bytes")
        await desk.press("enter")
        await desk.shows("[src/05.py 6 bytes]", "more files]")


async def test_escape_stops_the_reading_of_a_slow_file_and_gives_the_prompt_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "slow.pdf").write_bytes(text_pdf("one"))
    monkeypatch.setattr(pdf, "_CODE", "import time; time.sleep(60)")
    monkeypatch.setattr(unsent, "SLOW_S", 0.01)
    async with desktop(folder) as desk:
        desk.composer.text = "read @slow.pdf"
        desk.app.post_message(events.Key("enter", None))  # the pilot would wait until the file is read
        await desk.while_busy(lambda: unsent.READING in desk.screen_text() and "Stop" in desk.screen_text())
        assert desk.composer.text == ""
        desk.app.post_message(events.Key("escape", None))
        await desk.shows("reading `slow.pdf` was stopped")
        assert desk.composer.text == "read @slow.pdf"
        await desk.pilot.pause(unsent.REST_S * 2)
        assert unsent.READING not in desk.screen_text()
        assert not desk.path
        await desk.press(*" now")
        await desk.shows(unsent.READING)
        await desk.press("escape")
        await desk.shows("reading `slow.pdf` was stopped")
        assert desk.composer.text == "read @slow.pdf now"
