"""Only [models] changes in a configuration; the rest stays byte for byte."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from localspec.errors import UserError
from localspec.storage.config import models_table, prepare, read_config
from localspec.storage.toml_file import edited

BIG, SMALL = Path("/m/big.gguf"), Path("/m/small.gguf")
PAIR = models_table(BIG, SMALL, 4096)
OWN = """\
# mine
theme = "nord"   # dark

[models]   # what opens
target = "old.gguf"   # the large one
draft = 'tiny.gguf'

[keys]
chat.search = ["ctrl+k",   "f3"]  # two
"""


def test_values_change_where_they_stand_and_comments_stay() -> None:
    text = edited(OWN, PAIR)
    assert text == OWN.replace('"old.gguf"', '"/m/big.gguf"').replace(
        "'tiny.gguf'\n", '"/m/small.gguf"\ncontext = 4096\n'
    )
    assert edited(text, PAIR) == text


def test_the_bundled_pair_takes_the_names_away() -> None:
    text = edited(OWN, models_table(None, None))
    assert text == OWN.replace("target = \"old.gguf\"   # the large one\ndraft = 'tiny.gguf'\n", "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        'theme = "nord"',
        "[chat]\nsidebar = false\n",
        'models.target = "q"\ntheme = "nord"\n',
        'models = {target = "q"}\n',
        '"models" = {"target" = "q", draft = "r"}\n[keys]\n',
        '[models]\ntarget = """q"""\n\n\n# the end',
        '\ufeff[models]\r\ntarget = "q"\r\n# kept\r\n[chat]\r\nsidebar = true\r\n',
    ],
)
def test_any_way_of_writing_it_is_understood(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(edited(text, PAIR).encode())
    config = read_config(path)
    assert (config.target, config.draft, config.context) == (BIG, SMALL, 4096)
    changed = path.read_bytes().decode()
    assert changed.count("\r\n") in (0, changed.count("\n"))
    for kept in ("theme", "sidebar", "# kept", "# the end", "[keys]"):
        assert (kept in text) == (kept in changed)


def test_nothing_to_say_leaves_the_text_alone(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    for text in ('theme = "nord"', "[models]\n"):
        path.write_text(text, encoding="utf-8")
        assert not prepare(path, models_table(None, None, 0)).changes


def test_paths_of_windows_and_quotes_survive(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    odd = tmp_path / 'a "b" \\ c.gguf'
    path.write_text(edited("", models_table(odd, None)), encoding="utf-8")
    assert read_config(path).target == odd


def test_without_a_file_the_example_is_the_start(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    edit = prepare(path, PAIR)
    assert edit.changes
    assert not path.exists()
    edit.write()
    assert read_config(path).target == BIG
    assert "# chat.search" in path.read_text(encoding="utf-8")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_edit_shows_its_lines_and_keeps_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(OWN, encoding="utf-8")
    path.chmod(0o640)
    edit = prepare(path, PAIR)
    lines = list(edit.diff())
    assert '-target = "old.gguf"   # the large one' in lines
    assert '+target = "/m/big.gguf"   # the large one' in lines
    assert path.read_text(encoding="utf-8") == OWN
    edit.write()
    assert path.read_text(encoding="utf-8") == edit.new
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert not prepare(path, PAIR).changes


def test_a_broken_configuration_is_reported_before_anything_happens(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[models\n", encoding="utf-8")
    with pytest.raises(UserError, match="line 1"):
        prepare(path, PAIR)
    assert path.read_text(encoding="utf-8") == "[models\n"


def test_an_edit_that_went_wrong_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    for spoilt in ('[models]\ntarget = "/m/other.gguf"\n', 'theme = "y"\n[models]\ntarget = "/m/big.gguf"\n'):
        monkeypatch.setattr("tomlkit.dumps", lambda _, spoilt=spoilt: spoilt)
        with pytest.raises(UserError, match="cannot be edited safely"):
            edited('theme = "x"\n', models_table(Path("/m/big.gguf"), None))


@pytest.mark.parametrize("name", ["modèles\u00a0IA.gguf", "a\nb.gguf", "a\udcff.gguf"])
def test_a_path_that_the_configuration_could_not_hold_is_rejected(name: str) -> None:
    for target, draft in ((Path(name), None), (BIG, Path(name))):
        with pytest.raises(UserError, match=r"config\.toml cannot name"):
            models_table(target, draft)
