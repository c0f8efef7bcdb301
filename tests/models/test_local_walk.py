"""Which files on a disk are taken for models, and what they are called."""

from __future__ import annotations

from pathlib import Path

from localspec.models.caches import ModelFolder
from localspec.models.local import find_models
from tests.models.disk import NEW, OLD, REPOSITORY, model_bytes, put

DRAFT = model_bytes()


def names(cache: Path) -> list[str]:
    return [model.name for model in find_models(places=[ModelFolder(cache, "hub")])]


def test_the_newest_commit_comes_first_whatever_it_is_called(cache: Path) -> None:
    put(cache, "tiny-Q8_0.gguf", DRAFT, commit=OLD)
    put(cache, "tiny-Q8_0.gguf", DRAFT + b"old", commit=NEW, newest=False)
    assert names(cache) == [f"{REPOSITORY}:Q8_0", f"{REPOSITORY}@{NEW[:8]}:Q8_0"]


def test_a_commit_needs_no_naming_where_none_is_the_newest(cache: Path) -> None:
    put(cache, "tiny-Q8_0.gguf", DRAFT, newest=False)
    assert names(cache) == [f"{REPOSITORY}:Q8_0"]


def test_hidden_folders_are_not_looked_into(tmp_path: Path) -> None:
    for folder in (".trash", "models"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "m.gguf").write_bytes(DRAFT + folder.encode())
    (model,) = find_models([tmp_path], places=[])
    assert model.path.parent.name == "models"
