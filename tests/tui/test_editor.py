"""The prompt in the user's own editor."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from localspec.app.editor import edit_text, editor_command
from localspec.errors import UserError
from tests.scripted import Script
from tests.tui.desktop import desktop


def editor(code: str) -> str:
    """Return the command of an editor that does something with `path`."""
    lines = f"import os, pathlib, sys; path = pathlib.Path(sys.argv[1]); {code}"
    return shlex.join([sys.executable, "-S", "-c", lines])


def test_text_travels_in_a_private_file_that_is_gone_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    monkeypatch.setenv(
        "EDITOR",
        editor(
            f"pathlib.Path({str(seen)!r}).write_text(f'{{path}} {{path.stat().st_mode & 0o777:o}} '"
            "f'{path.parent.stat().st_mode & 0o777:o} {path.read_text()}');"
            "other = path.with_name('new'); other.write_text('é\\n\\n'); os.replace(other, path)"
        ),
    )
    monkeypatch.setenv("VISUAL", "")
    assert edit_text(editor_command("localspec"), "ü") == "é"
    path, mode, folder_mode, text = seen.read_text().split()
    assert (mode, folder_mode, text) == ("600", "700", "ü")
    assert path.endswith(".md")
    assert not Path(path).parent.exists()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("sys.exit(3)", "ended with code 3"),
        ("path.write_text(' \\n')", "left no text"),
        ("path.unlink()", "left no text"),
    ],
)
def test_editor_that_fails_is_reported(code: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        edit_text(shlex.split(editor(code)), "mine")


@pytest.mark.parametrize(
    ("before", "code", "text", "said"),
    [
        ("", "pass", "", "nothing was written; an editor with its own window needs a flag"),
        ("", "path.unlink()", "", "nothing was written"),
        ("mine", "pass", "mine", "nothing was changed; an editor with its own window needs a flag"),
        ("mine", "path.write_text('other')", "other", ""),
        (
            "mine",
            "path.write_text('other'); sys.exit(1)",
            "other",
            "ended with code 1; the saved text is here",
        ),
    ],
)
def test_what_an_editor_left_is_reported_and_what_it_saved_is_kept(
    before: str, code: str, text: str, said: str
) -> None:
    told: list[str] = []
    assert edit_text(shlex.split(editor(code)), before, told.append) == text
    assert said in told[0]
    assert bool(said) == bool(told[0])


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("code", 'EDITOR="code --wait"'),
        ("/usr/bin/codium -n", "codium -n --wait"),
        ("cursor", "--wait"),
        ("subl", "--wait"),
        ("zed", "--wait"),
        ("mate", "--wait"),
        ("gedit", "--wait"),
        ("kate", "--block"),
        ("gvim", "--nofork"),
        ("env LANG=C pycharm", "--wait"),
        ("flatpak run com.visualstudio.code", "--wait"),
        ("xdg-open", "name an editor that waits"),
        ("emacsclient -n", "leave that flag out"),
    ],
)
@pytest.mark.parametrize("variable", ["VISUAL", "EDITOR"])
def test_editor_that_would_not_wait_is_refused_before_it_is_opened(
    variable: str, command: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv(variable, command)
    with pytest.raises(UserError, match="returns at once") as refused:
        editor_command("localspec")
    assert advice in refused.value.hint


@pytest.mark.parametrize(
    "command",
    [
        "code --wait",
        "code -nw",
        "subl -w",
        "zed --wait",
        "kate -b",
        "gvim -f",
        "gedit -s",
        "emacsclient -c",
        "flatpak run com.vscodium.codium --wait",
        "nano",
        "vim",
        "emacs -nw",
        "hx",
        "micro",
        "/opt/my-editor.sh",
    ],
)
def test_editor_that_waits_is_taken(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", command)
    assert editor_command("localspec") == shlex.split(command)


@pytest.mark.asyncio
async def test_prompt_is_kept_where_the_editor_would_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", "code")
    async with desktop(tmp_path, Script("fine")) as screen:
        await screen.press(*"mine", "ctrl+g")
        await screen.shows("returns at once")
        assert screen.composer.text == "mine"


@pytest.mark.slow
@pytest.mark.asyncio
async def test_prompt_comes_back_from_the_editor_and_undo_brings_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", editor("path.write_text(path.read_text() + '\\nand more' * 2000 + '\\n')"))
    async with desktop(tmp_path, Script("fine")) as screen:
        await screen.press(*"mine", "ctrl+g")
        await screen.shows("an editor cannot be opened in this terminal")  # a test's terminal
        assert screen.composer.text == "mine"
        monkeypatch.setattr(screen.app, "suspend", nullcontext)
        await screen.press(*" own", "ctrl+g")
        await screen.until(lambda: len(screen.composer.text) > 10)
        assert screen.composer.text == "mine own" + "\nand more" * 2000
        await screen.press("ctrl+z")
        assert screen.composer.text == "mine own"
        monkeypatch.setenv("VISUAL", "no-such-editor")
        await screen.press("ctrl+g")
        await screen.shows("cannot start the editor `no-such-editor`")
        assert screen.composer.text == "mine own"
