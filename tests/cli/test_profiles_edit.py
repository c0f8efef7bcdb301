"""`localspec profiles edit`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Protocol

import pytest

from localspec.storage.paths import config_dir
from localspec.storage.profiles import profiles, shipped_files
from tests.cli.conftest import Invoke

GOOD = 'title = "Poems"\ntask = "writing"\n'
BROKEN = 'title = "Poems"\ntask = "poetry"\n'
EDITOR = """
import pathlib, sys
steps, path = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[-1])
step = min(steps.glob("*.py"))
step.with_suffix(".seen").write_bytes(path.read_bytes())
code = step.read_text()
step.unlink()
exec(code)
"""


class Editor(Protocol):
    """Makes the user's editor do something each time that it is called; `seen` is what it then opened."""

    def __call__(self, *steps: str) -> None: ...

    def seen(self, call: int = 0) -> str: ...


def saves(text: str) -> str:
    return f"path.write_bytes({text.encode()!r})"


@pytest.fixture
def own() -> Path:
    return config_dir() / "profiles"


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Editor:
    folder = tmp_path / "an editor's steps"
    script = folder / "editor"

    class Steps:
        def __call__(self, *steps: str) -> None:
            folder.mkdir(exist_ok=True)
            script.write_text(EDITOR)
            for number, step in enumerate(steps):
                (folder / f"{number}.py").write_text(step)
            monkeypatch.setenv("EDITOR", shlex.join([sys.executable, "-S", str(script), str(folder), "-w"]))

        def seen(self, call: int = 0) -> str:
            return (folder / f"{call}.seen").read_bytes().decode()

    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.delenv("EDITOR", raising=False)
    return Steps()


def put(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_bytes(text.encode())
    return path


def test_an_own_one_is_edited_in_place(invoke: Invoke, own: Path, editor: Editor) -> None:
    path = put(own, "poems", GOOD)
    path.chmod(0o640)
    editor(saves(GOOD + 'description = "ü"\r\n'))
    outcome = invoke("profiles", "edit", "poems")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", f"saved {path}\n")
    assert editor.seen() == GOOD
    assert path.read_bytes().decode() == GOOD + 'description = "ü"\r\n'
    assert path.stat().st_mode & 0o777 == 0o640


def test_editing_a_shipped_one_makes_it_ones_own(invoke: Invoke, own: Path, editor: Editor) -> None:
    before = shipped_files()["coding"].read_bytes()
    editor("path.write_text(path.read_text().replace('# temperature = 0.2', 'temperature = 0.6'))")
    value = json.loads(invoke("profiles", "edit", "coding", "--json").out)
    assert value == {"schema": 1, "name": "coding", "path": str(own / "coding.toml"), "changed": True}
    assert profiles(own).named("coding").sampling.temperature == 0.6
    assert shipped_files()["coding"].read_bytes() == before


def test_an_edit_that_changes_nothing_leaves_nothing(invoke: Invoke, own: Path, editor: Editor) -> None:
    editor("pass")
    outcome = invoke("profiles", "edit", "coding")
    assert (outcome.code, outcome.err) == (0, "nothing was changed\n")
    assert not [*own.iterdir()]


def test_a_mistake_is_reported_and_the_next_edit_mends_it(invoke: Invoke, own: Path, editor: Editor) -> None:
    path = put(own, "poems", GOOD)
    editor(saves(BROKEN))
    outcome = invoke("profiles", "edit", "poems")
    assert outcome.code == 2
    assert f"error: {path}, line 2: `task` cannot be `poetry`" in outcome.err
    assert "`localspec profiles edit poems` fixes it" in outcome.err
    assert [problem.message for problem in profiles(own).problems] != []

    editor(saves(GOOD + "# mended\n"))
    assert invoke("profiles", "edit", "poems").code == 0
    assert editor.seen() == BROKEN
    assert [(file, file.read_text()) for file in own.iterdir()] == [(path, GOOD + "# mended\n")]


def test_a_mistake_in_the_prompts_is_a_mistake(invoke: Invoke, editor: Editor) -> None:
    editor(saves(GOOD + '[tuning]\nprompts = [\n"a",\n"a"]\n'))
    outcome = invoke("profiles", "edit", "coding")
    assert "line 6: this prompt is already in `prompts`" in outcome.err


def test_a_broken_file_can_be_fixed(invoke: Invoke, own: Path, editor: Editor) -> None:
    path = put(own, "poems", BROKEN)
    path.write_bytes(BROKEN.encode() + b"# \xff\n")
    editor(saves(GOOD))
    assert invoke("profiles", "edit", "poems").code == 0
    assert path.read_text() == GOOD


@pytest.mark.parametrize("saved", ["pass", saves(GOOD + "# half\n"), "path.unlink()"])
def test_an_editor_that_fails_is_reported(invoke: Invoke, own: Path, editor: Editor, saved: str) -> None:
    path = put(own, "poems", GOOD)
    editor(f"{saved}\nsys.exit(3)")
    outcome = invoke("profiles", "edit", "poems")
    assert outcome.code == 1
    assert "the editor ended with code 3" in outcome.err
    assert path.exists() == ("unlink" not in saved)


def test_visual_goes_before_editor(
    invoke: Invoke, own: Path, editor: Editor, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(own, "poems", GOOD)
    editor("sys.exit(3)")
    monkeypatch.setenv("VISUAL", shlex.join([sys.executable, "-S", "-c", "pass"]))
    assert invoke("profiles", "edit", "poems").code == 0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "EDITOR=nano localspec profiles edit coding"),
        ("  ", "no editor is set"),
        ("no-such-editor -w", "cannot start the editor `no-such-editor`"),
        ("'nano", "EDITOR has a quote that does not end"),
    ],
)
def test_without_an_editor_it_is_reported(
    invoke: Invoke, own: Path, monkeypatch: pytest.MonkeyPatch, value: str, words: str
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", value)
    outcome = invoke("profiles", "edit", "coding")
    assert outcome.code == 2
    assert words in outcome.err
    assert not [*own.glob("*")]


def test_where_nothing_can_be_saved_no_editor_opens(invoke: Invoke, own: Path, editor: Editor) -> None:
    own.parent.mkdir(parents=True, exist_ok=True)
    editor(saves(GOOD))
    own.symlink_to(own.parent / "gone" / "further")
    outcome = invoke("profiles", "edit", "coding")
    assert (outcome.code, outcome.err.count("cannot make the folder")) == (2, 1)
    with pytest.raises(FileNotFoundError):
        editor.seen()
