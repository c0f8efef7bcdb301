"""A link opens in a browser with a window of its own, or in none; copies are reported as what they are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyperclip
import pytest

from localspec_tui import app as app_module
from localspec_tui.clipboard import put
from tests.scripted import Script
from tests.tui.desktop import desktop

if sys.platform == "win32":
    pytest.skip("these are programs of Unix", allow_module_level=True)

ADDRESS = "https://example.org/a?b=1&c='2'"
Program = Callable[[str, str], Path]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Puts a program of a name on an otherwise empty PATH, which says where it was started and then more."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY", "XDG_CURRENT_DESKTOP", "DESKTOP_SESSION", "TMUX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(folder))

    def make(name: str, more: str) -> Path:
        said = tmp_path / f"{name}.said"
        file = folder / name
        file.write_text(
            f"#!{sys.executable} -IS\nimport os, pathlib, sys\nsaid = pathlib.Path({str(said)!r})\n"
            "try:\n    os.open('/dev/tty', os.O_RDWR)\n    tty = 'a terminal'\n"
            "except OSError:\n    tty = 'no terminal'\n"
            "said.write_text(f'{sys.argv[-1]} {tty} {os.getsid(0) == os.getpid()} {sys.stdin.read()}')\n"
            f"{more}\n"
        )
        file.chmod(0o700)
        return said

    return make


def opened() -> bool:
    """Open the address as a fresh program does: what there is of browsers is looked up once."""
    code = f"from localspec_tui.browser import open_in_window; print(open_in_window({ADDRESS!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout == "True\n"


@pytest.mark.parametrize("name", ["www-browser", "w3m", "lynx", "links", "elinks"])
def test_browser_that_wants_the_terminal_is_never_started(
    program: Program, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    said = program(name, "")
    assert not opened()
    for command in (name, f"{name} %s", f"/usr/bin/{name}"):
        monkeypatch.setenv("BROWSER", command)
        assert not opened()
    assert not said.exists()


@pytest.mark.parametrize(("more", "opens"), [("", True), ("sys.exit(1)", False)])
def test_browser_gets_the_address_and_no_terminal(
    program: Program, monkeypatch: pytest.MonkeyPatch, more: str, opens: bool
) -> None:
    said = program("viewer", more)
    monkeypatch.setenv("BROWSER", "viewer")
    assert opened() == opens
    assert said.read_text().split(" no terminal ")[0] == ADDRESS


def test_desktop_without_a_browser_opens_nothing(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not opened()
    said = program("xdg-open", "sys.exit(3)")
    monkeypatch.setenv("DISPLAY", ":9")
    assert not opened()
    assert said.exists()


def no_desktop(_text: str) -> None:
    raise pyperclip.PyperclipException("no desktop")


@pytest.mark.parametrize(
    ("more", "is_taken"),
    [
        ("", True),
        ("sys.exit('-w' in sys.argv)", True),  # before tmux 3.2
        ("sys.exit(1)", False),
    ],
)
def test_tmux_takes_a_text_into_its_buffer_or_it_is_not_copied(
    program: Program, monkeypatch: pytest.MonkeyPatch, more: str, is_taken: bool
) -> None:
    monkeypatch.setattr(pyperclip, "copy", no_desktop)
    said = program("tmux", more)
    assert not put("out of tmux")
    assert not said.exists()
    monkeypatch.setenv("TMUX", "/tmp/tmux,1,0")
    assert put("é\n") == is_taken
    assert said.read_text().endswith(" é\n")


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("is_taken", "words"), [(True, "copied the last answer"), (False, "sent the last answer to the terminal")]
)
async def test_copy_is_reported_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_taken: bool, words: str
) -> None:
    monkeypatch.setattr(app_module, "put", lambda _: is_taken)
    async with desktop(tmp_path, Script("fine")) as desk:
        await desk.enter("hello")
        await desk.shows("fine")
        await desk.enter("/copy")
        await desk.until(lambda: any(words in told.message for told in desk.app._notifications))
        assert desk.app.clipboard == "fine"


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("is_opened", [True, False])
async def test_link_that_no_browser_opens_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_opened: bool
) -> None:
    asked: list[str] = []

    def open_in_window(address: str) -> bool:
        asked.append(address)
        return is_opened

    monkeypatch.setattr(app_module, "open_in_window", open_in_window)
    monkeypatch.setattr(app_module, "put", lambda _: True)
    async with desktop(tmp_path, Script(f"[the docs]({ADDRESS})")) as desk:
        await desk.enter("hello")
        await desk.shows("the docs")
        lines = desk.screen_text().splitlines()
        row = next(at for at, line in enumerate(lines) if "the docs" in line)
        await desk.pilot.click(offset=(lines[row].index("the docs") + 2, row))
        await desk.until(lambda: asked == [ADDRESS])
        if not is_opened:
            words = "copied the address, as no browser opens here"
            await desk.until(lambda: any(words in told.message for told in desk.app._notifications))
            assert desk.app.clipboard == ADDRESS
