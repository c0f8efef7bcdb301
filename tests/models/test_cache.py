"""Where models are looked for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from localspec.models.caches import (
    current_commit,
    hub_cache,
    known_places,
    repository_of,
)

ORDER = ("LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")


def paths(kind: str) -> list[Path]:
    return [place.path for place in known_places() if place.kind == kind]


def test_downloads_go_where_llama_cpp_looks_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ORDER:
        monkeypatch.setenv(name, str(tmp_path / name))
    expected = [tmp_path / name for name in ORDER[:3]]
    expected += [tmp_path / "HF_HOME" / "hub", tmp_path / "XDG_CACHE_HOME" / "huggingface" / "hub"]
    expected += [Path.home() / ".cache" / "huggingface" / "hub"]
    assert paths("hub") == expected
    for name, folder in zip(ORDER, expected, strict=False):
        assert hub_cache() == folder
        monkeypatch.delenv(name)
    assert hub_cache() == expected[-1]


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = hub_cache()
    monkeypatch.setenv("LLAMA_CACHE", "  ")
    assert hub_cache() == usual


def test_a_home_in_a_variable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", "~/models")
    monkeypatch.setenv("MODELS", "elsewhere")
    assert hub_cache() == Path.home() / "models" / "hub"
    monkeypatch.setenv("HF_HOME", "$MODELS")
    assert hub_cache() == Path("elsewhere") / "hub"


def test_llama_cpps_loose_files_are_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path))
    assert paths("llama.cpp")[0] == tmp_path
    assert Path.home() / "cache" / "llama.cpp" in paths("llama.cpp")


def test_lm_studio_says_where_its_models_are(tmp_path: Path) -> None:
    home = Path.home()
    usual = [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    assert paths("lmstudio") == usual
    (home / ".lmstudio-home-pointer").write_text(str(tmp_path))
    (tmp_path / "settings.json").write_text(json.dumps({"downloadsFolder": "/big/disk"}))
    assert paths("lmstudio") == [Path("/big/disk"), tmp_path / "models", usual[1]]
    (tmp_path / "settings.json").write_text("{broken")
    assert paths("lmstudio") == [tmp_path / "models", usual[1]]


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"downloadsFolder": ["a"]}', '{"downloadsFolder": 1e400}', "\0"]
)
def test_settings_of_lm_studio_may_hold_anything(text: str) -> None:
    folder = Path.home() / ".lmstudio"
    folder.mkdir()
    (folder / "settings.json").write_text(text)
    assert paths("lmstudio")[0] == folder / "models"


def test_pipes_in_place_of_other_programs_notes_are_not_waited_for(tmp_path: Path) -> None:
    (Path.home() / ".lmstudio" / "models").mkdir(parents=True)
    (tmp_path / "refs").mkdir()
    for pipe in (".lmstudio-home-pointer", ".lmstudio/settings.json", tmp_path / "refs" / "main"):
        os.mkfifo(Path.home() / pipe)
    assert paths("lmstudio")[0] == Path.home() / ".lmstudio" / "models"
    assert current_commit(tmp_path) is None


def test_the_model_of_an_installed_package_is_a_place(seeming_smollm2: Path) -> None:
    assert paths("package") == [seeming_smollm2]
    seeming_smollm2.unlink()
    assert paths("package") == []


@pytest.mark.parametrize(
    ("folder", "repository"),
    [("models--a--b", "a/b"), ("models--a--b--c", "a/b--c"), ("datasets--a--b", None), ("models--a", None),
     ("models--", None), ("a--b", None)],
)  # fmt: skip
def test_the_repository_of_a_folder(folder: str, repository: str | None) -> None:
    assert repository_of(folder) == repository


def test_the_newest_commit(tmp_path: Path) -> None:
    assert current_commit(tmp_path) is None
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs" / "main").write_text("abc\n")
    assert current_commit(tmp_path) == "abc"


def test_a_home_of_someone_unknown_stays_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "~nobody-of-this-name/models")
    assert hub_cache() == Path("~nobody-of-this-name/models")
