"""What deleting a model deletes, and what it leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from localspec.errors import StoreError, UserError
from localspec.models.caches import ModelFolder, known_places
from localspec.models.local import find_models, named
from localspec.models.removal import Removal, plan_removal, remove
from tests.models.disk import NEW, OLD, REPOSITORY, files_below, model_bytes, put

DRAFT = model_bytes()


def planned(text: str, *folders: Path) -> Removal:
    model = named(text, find_models(folders))
    assert model is not None
    return plan_removal(model)


def test_a_model_goes_with_its_blob_and_its_repository(cache: Path) -> None:
    put(cache, "tiny-Q8_0.gguf", DRAFT)
    put(cache, "tiny-Q8_0.gguf", DRAFT, repository="other/one")
    removal = planned(f"{REPOSITORY}:Q8_0")
    assert (removal.freed, removal.kept) == (len(DRAFT), ())
    remove(removal)
    assert [folder.name for folder in cache.iterdir()] == ["models--other--one"]
    assert named("other/one", find_models()) is not None


def test_neighbours_stay(cache: Path) -> None:
    put(cache, "tiny-Q8_0.gguf", DRAFT)
    other = put(cache, "tiny-Q4_0.gguf", DRAFT + b"4")
    remove(planned(f"{REPOSITORY}:Q8_0"))
    assert other.read_bytes() == DRAFT + b"4"
    assert len(files_below(cache)) == 3  # the link, its blob, and the newest commit


def test_a_blob_that_another_name_uses_stays(cache: Path) -> None:
    put(cache, "tiny-Q4_0.gguf", DRAFT)
    other = put(cache, "tiny-Q8_0.gguf", DRAFT)
    removal = planned(f"{REPOSITORY}:Q4_0")
    assert removal.freed == 0
    assert "another model uses it" in removal.kept[0]
    remove(removal)
    assert other.read_bytes() == DRAFT
    assert named(f"{REPOSITORY}:Q4_0", find_models()) is None


def test_a_cache_with_two_paths_is_one_cache(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cache, "tiny-Q8_0.gguf", DRAFT)
    (tmp_path / "moved").symlink_to(cache)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "moved"))
    removal = planned(f"{REPOSITORY}:Q8_0")
    assert (removal.freed, removal.kept) == (len(DRAFT), ())
    remove(removal)
    assert files_below(cache) == set()


def test_of_a_repository_that_was_moved_to_another_disk_only_the_link_goes(
    cache: Path, tmp_path: Path
) -> None:
    folder = put(cache, "tiny-Q4_0.gguf", DRAFT).parents[2]
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    before = files_below(tmp_path / "moved")
    removal = planned(f"{REPOSITORY}:Q4_0")
    assert (removal.paths, removal.freed) == ((folder,), 0)
    assert "it is outside the cache" in removal.kept[0]
    remove(removal)
    assert not folder.is_symlink()
    assert files_below(tmp_path / "moved") == before


def test_a_link_to_a_folder_stays_while_another_model_needs_it(cache: Path, tmp_path: Path) -> None:
    folder = put(cache, "tiny-Q4_0.gguf", DRAFT).parents[2]
    put(cache, "tiny-Q8_0.gguf", DRAFT)
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    with pytest.raises(UserError, match=f"leads to {tmp_path}/moved, where nothing is deleted"):
        planned(f"{REPOSITORY}:Q4_0")


def test_a_blob_that_lm_studio_links_to_stays(cache: Path) -> None:
    blob = put(cache, "tiny-Q8_0.gguf", DRAFT).resolve()
    folder = Path.home() / ".lmstudio" / "models" / "someone" / "linked"
    folder.mkdir(parents=True)
    (folder / "tiny.gguf").symlink_to(blob)
    removal = planned(f"{REPOSITORY}:Q8_0")
    remove(removal)
    assert removal.freed == 0
    assert (folder / "tiny.gguf").read_bytes() == DRAFT


def test_a_hard_link_elsewhere_means_that_nothing_is_freed(cache: Path, tmp_path: Path) -> None:
    os.link(put(cache, "tiny-Q8_0.gguf", DRAFT).resolve(), tmp_path / "mine")
    removal = planned(f"{REPOSITORY}:Q8_0")
    assert removal.freed == 0
    remove(removal)
    assert (tmp_path / "mine").read_bytes() == DRAFT


def test_the_same_file_in_older_commits_goes_too(cache: Path) -> None:
    put(cache, "tiny-Q8_0.gguf", DRAFT, commit=NEW)
    put(cache, "tiny-Q8_0.gguf", DRAFT, commit=OLD, newest=False)
    removal = planned(f"{REPOSITORY}:Q8_0")
    assert removal.freed == len(DRAFT)
    remove(removal)
    assert files_below(cache) == set()


def test_another_file_of_the_same_name_in_an_older_commit_stays(cache: Path) -> None:
    put(cache, "tiny-Q8_0.gguf", DRAFT, commit=NEW)
    older = put(cache, "tiny-Q8_0.gguf", DRAFT + b"old", commit=OLD, newest=False)
    remove(planned(f"{REPOSITORY}:Q8_0"))
    assert older.read_bytes() == DRAFT + b"old"


def test_all_parts_of_a_split_model_go(cache: Path) -> None:
    for number in (1, 2):
        put(cache, f"q/tiny-Q8_0-0000{number}-of-00002.gguf", DRAFT + bytes([number]))
    removal = planned(f"{REPOSITORY}:Q8_0")
    assert removal.freed == 2 * len(DRAFT) + 2
    remove(removal)
    assert files_below(cache) == set()


def test_an_unfinished_download_goes_alone(cache: Path) -> None:
    link = put(cache, "tiny-Q8_0.gguf", DRAFT)
    part = link.resolve().parent / f"{'c' * 64}.incomplete"
    part.write_bytes(b"GGUF")
    removal = planned(f"{REPOSITORY} (unfinished)")
    assert (removal.paths, removal.freed) == ((part,), 4)
    remove(removal)
    assert link.read_bytes() == DRAFT


def test_a_link_that_leads_out_of_the_cache_goes_without_its_file(cache: Path, tmp_path: Path) -> None:
    outside = tmp_path / "precious.gguf"
    outside.write_bytes(DRAFT)
    link = put(cache, "tiny-Q8_0.gguf", b"x")
    link.resolve().unlink()
    link.unlink()
    link.symlink_to(outside)
    removal = planned(f"{REPOSITORY}:Q8_0")
    assert (removal.paths, removal.freed) == ((link,), 0)
    assert "outside the cache" in removal.kept[0]
    remove(removal)
    assert outside.read_bytes() == DRAFT


def shared(cache: Path, link: Path) -> Path:
    """Move a blob to the store that all repositories share, as huggingface_hub does; return it there."""
    blob = link.parent / link.readlink()
    store = cache / "blobs" / "ab" / ("ab" * 32)
    store.parent.mkdir(parents=True, exist_ok=True)
    (cache / "blobs" / ".huggingface-shared-blobs").write_text("1")
    blob.resolve().replace(store)
    store.with_name(f"{store.name}.refs").write_text("")
    Path(os.path.normpath(blob)).symlink_to(os.path.relpath(store, os.path.realpath(blob.parent)))
    return store


def test_a_blob_in_the_store_that_repositories_share_goes_with_its_last_model(cache: Path) -> None:
    store = shared(cache, put(cache, "tiny-Q8_0.gguf", DRAFT))
    other = put(cache, "tiny-Q4_0.gguf", b"", repository="other/one")
    other.unlink()
    other.symlink_to(os.path.relpath(store, other.parent))
    name = f"{REPOSITORY}:Q8_0"
    both = named(name, find_models())
    assert both is not None
    removal = plan_removal(both.called(name))
    assert removal.freed == 0
    assert removal.kept == (f"{store} stays: another model uses it",)
    remove(removal)
    assert other.read_bytes() == DRAFT
    assert not (cache / "models--someone--tiny-GGUF").exists()
    model = named("other/one", find_models())
    assert model is not None
    removal = plan_removal(model)
    assert (removal.freed, removal.kept) == (len(DRAFT), ())
    remove(removal)
    assert files_below(cache / "blobs") == {".huggingface-shared-blobs"}


def test_a_link_that_another_link_leads_over_stays(cache: Path) -> None:
    first = lm_studio("mine.gguf")
    first.symlink_to(put(cache, "tiny-Q8_0.gguf", DRAFT).resolve())
    second = first.parent.parent / "second" / "other.gguf"
    second.parent.mkdir()
    second.symlink_to(first)
    model = named("someone/mine", find_models())
    assert model is not None
    removal = plan_removal(model.called("someone/mine"))
    assert (removal.paths, removal.kept) == ((), (f"{first} stays: another model's link leads to it",))


def test_files_where_links_are_not_allowed(cache: Path) -> None:
    link = put(cache, "tiny-Q8_0.gguf", DRAFT)
    link.resolve().replace(link)
    removal = planned(f"{REPOSITORY}:Q8_0")
    assert (removal.paths, removal.freed) == ((link,), len(DRAFT))
    remove(removal)
    assert files_below(cache) == set()


def test_files_without_links_in_a_cache_with_two_paths(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = put(cache, "tiny-Q8_0.gguf", DRAFT)
    link.resolve().replace(link)
    (tmp_path / "moved").symlink_to(cache)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "moved"))
    removal = planned(f"{REPOSITORY}:Q8_0")
    assert (removal.freed, removal.kept) == (len(DRAFT), ())
    remove(removal)
    assert files_below(cache) == set()


def test_a_repository_with_files_of_ones_own_stays(cache: Path) -> None:
    link = put(cache, "tiny-Q8_0.gguf", DRAFT)
    notes = link.parents[2] / "notes.txt"
    notes.write_text("mine")
    remove(planned(f"{REPOSITORY}:Q8_0"))
    assert notes.read_text() == "mine"
    assert not link.exists()


def test_what_a_user_keeps_elsewhere_is_never_deleted(tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").write_bytes(DRAFT)
    model = named("mine", find_models([tmp_path]))
    assert model is not None
    with pytest.raises(UserError, match="mine is not in a cache"):
        plan_removal(model)


def test_loose_files_of_lm_studio() -> None:
    root = Path.home() / ".lmstudio" / "models"
    folder = root / "someone" / "tiny-GGUF"
    folder.mkdir(parents=True)
    (folder / "tiny-Q8_0.gguf").write_bytes(DRAFT)
    (folder / "mmproj.gguf").write_bytes(b"")
    removal = planned(f"{REPOSITORY}:Q8_0")
    assert removal.freed == len(DRAFT)
    remove(removal)
    assert files_below(root) == {"someone/tiny-GGUF/mmproj.gguf"}
    (folder / "mmproj.gguf").unlink()


def lm_studio(name: str) -> Path:
    path = Path.home() / ".lmstudio" / "models" / "someone" / "mine" / name
    path.parent.mkdir(parents=True)
    return path


def test_a_loose_file_that_another_model_links_to_stays(cache: Path) -> None:
    loose = lm_studio("mine.gguf")
    loose.write_bytes(DRAFT)
    link = put(cache, "tiny-Q8_0.gguf", b"x")
    link.unlink()
    link.symlink_to(loose)
    model = named("someone/mine", find_models())
    assert model is not None
    removal = plan_removal(model.called("someone/mine"))
    assert (removal.paths, removal.freed) == ((), 0)
    assert "another model's link leads to it" in removal.kept[0]


def test_a_loose_link_goes_without_what_it_links_to(cache: Path) -> None:
    link = lm_studio("mine.gguf")
    link.symlink_to(put(cache, "tiny-Q8_0.gguf", DRAFT).resolve())
    model = named("someone/mine", find_models())
    assert model is not None
    removal = plan_removal(model.called("someone/mine"))
    assert (removal.paths, removal.freed, removal.kept) == ((link,), 0, ("what it links to stays",))


def test_the_caches_themselves_stay() -> None:
    root = Path.home() / ".lmstudio" / "models"
    root.mkdir(parents=True)
    (root / "tiny.gguf").write_bytes(DRAFT)
    remove(planned("tiny"))
    assert list(root.iterdir()) == []


def test_a_file_that_cannot_be_deleted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cache, "tiny-Q8_0.gguf", DRAFT)
    removal = planned(f"{REPOSITORY}:Q8_0")

    def refuse(_self: Path, **_options: bool) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StoreError, match="Permission denied"):
        remove(removal)


def test_only_caches_count_as_caches() -> None:
    assert {place.kind for place in known_places() if place.is_cache} == {"hub", "llama.cpp", "lmstudio"}
    assert not ModelFolder(Path(), "bundled").is_cache
