"""What is found on disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from localspec.demo import bundled_pair
from localspec.errors import ModelFileError, UserError
from localspec.models import local, shape
from localspec.models.caches import ModelFolder
from localspec.models.local import Headers, LocalModel, find_models, named, no_such_model
from localspec.models.shape import ModelShape
from localspec.storage.paths import data_dir
from tests.models.disk import NEW, OLD, PROJECTOR, REPOSITORY, model_bytes, put

DRAFT = model_bytes()


def found(cache: Path) -> dict[str, LocalModel]:
    return {model.name: model for model in find_models(places=[ModelFolder(cache, "hub")])}


def test_what_is_reported_of_a_model(cache: Path) -> None:
    path = put(cache, "tiny-Q8_0.gguf", DRAFT)
    (model,) = found(cache).values()
    assert (model.name, model.path, model.source) == (f"{REPOSITORY}:Q8_0", path, "hub")
    assert model.bytes == len(DRAFT)
    assert model.shape is not None
    assert model.shape.architecture == "llama"
    assert (model.problem, model.also) == ("", ())


def test_nothing_is_found_where_nothing_is() -> None:
    assert [model.source for model in find_models() if model.source != "package"] == []


def test_given_folders_and_bundled_files_are_looked_into(tmp_path: Path) -> None:
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "deep" / "deeper" / "mine.gguf").write_bytes(DRAFT + b"mine")
    models = find_models([tmp_path], bundled=bundled_pair(), places=[])
    expected = [("mine", "folder"), ("demo-target", "bundled"), ("demo-draft", "bundled")]
    assert [(model.name, model.source) for model in models] == expected


def test_a_given_file_is_a_model_with_all_its_parts(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"big-0000{number}-of-00002.gguf").write_bytes(DRAFT)
    (tmp_path / "beside.gguf").write_bytes(DRAFT)
    (model,) = find_models([tmp_path / "big-00001-of-00002.gguf"], places=[])
    assert (model.name, len(model.files), model.bytes) == ("big", 2, 2 * len(DRAFT))


def test_a_given_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        find_models([tmp_path / "gone"])


def test_names_tell_neighbours_apart(cache: Path) -> None:
    put(cache, "one-Q8_0.gguf", DRAFT)
    put(cache, "two-Q8_0.gguf", DRAFT + b"2")
    put(cache, "plain.gguf", DRAFT + b"3")
    put(cache, "mmproj-Q5_0.gguf", PROJECTOR)
    put(cache, "four-Q5_0.gguf", DRAFT + b"4")
    files = {f"{REPOSITORY}/{name}.gguf" for name in ("one-Q8_0", "two-Q8_0", "mmproj-Q5_0")}
    assert set(found(cache)) == {REPOSITORY, f"{REPOSITORY}:Q5_0", *files}


def test_one_blob_under_two_names_is_counted_once(cache: Path) -> None:
    put(cache, "tiny-Q8_0.gguf", DRAFT)
    put(cache, "tiny-Q4_0.gguf", DRAFT)
    (model,) = found(cache).values()
    assert (model.name, model.also) == (f"{REPOSITORY}:Q4_0", (f"{REPOSITORY}:Q8_0",))


def test_older_commits_are_reported_apart(cache: Path) -> None:
    put(cache, "tiny-Q8_0.gguf", DRAFT, commit=NEW)
    put(cache, "tiny-Q8_0.gguf", DRAFT + b"old", commit=OLD, newest=False)
    put(cache, "tiny-Q4_0.gguf", DRAFT + b"same", commit=NEW)
    put(cache, "tiny-Q4_0.gguf", DRAFT + b"same", commit=OLD, newest=False)
    assert set(found(cache)) == {f"{REPOSITORY}:Q8_0", f"{REPOSITORY}@{OLD[:8]}:Q8_0", f"{REPOSITORY}:Q4_0"}
    assert found(cache)[f"{REPOSITORY}:Q4_0"].also == ()


def test_lm_studios_folders_name_the_repository(tmp_path: Path) -> None:
    folder = tmp_path / "someone" / "tiny-GGUF"
    folder.mkdir(parents=True)
    (folder / "tiny-Q8_0.gguf").write_bytes(DRAFT)
    (model,) = find_models(places=[ModelFolder(tmp_path, "lmstudio")])
    assert model.name == f"{REPOSITORY}:Q8_0"


def test_loose_files_of_llama_cpp_lie_next_to_repositories(tmp_path: Path) -> None:
    put(tmp_path, "tiny-Q8_0.gguf", DRAFT)
    (tmp_path / "loose.gguf").write_bytes(DRAFT + b"1")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "far.gguf").write_bytes(DRAFT + b"2")
    models = find_models(places=[ModelFolder(tmp_path, "hub"), ModelFolder(tmp_path, "llama.cpp")])
    assert [model.name for model in models] == [f"{REPOSITORY}:Q8_0", "loose"]


@pytest.mark.parametrize(
    ("length", "words"),
    [(0, "empty"), (3, "not a GGUF file"), (1000, "incomplete"), (len(DRAFT) - 1, "is incomplete: it has")],
)
def test_broken_files_are_listed_with_the_reason(cache: Path, length: int, words: str) -> None:
    put(cache, "tiny-Q8_0.gguf", DRAFT[:length])
    (model,) = found(cache).values()
    assert model.shape is None
    assert words in model.problem
    assert str(model.path) not in model.problem


def test_a_link_to_nowhere(cache: Path) -> None:
    put(cache, "tiny-Q8_0.gguf", DRAFT).resolve().unlink()
    (model,) = found(cache).values()
    assert (model.shape, model.bytes) == (None, 0)
    assert "links to a file that is gone" in model.problem


def test_an_unfinished_download(cache: Path) -> None:
    blobs = cache / "models--someone--tiny-GGUF" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{'c' * 64}.incomplete").write_bytes(b"GGUF")
    (model,) = found(cache).values()
    assert (model.name, model.bytes) == (f"{REPOSITORY} (unfinished)", 4)
    assert f"localspec pull {REPOSITORY}:QUANT" in model.problem
    assert named(REPOSITORY, [model]) == model


def test_a_split_model_is_one_model(cache: Path) -> None:
    for number in (1, 2):
        put(cache, f"Q8_0/tiny-Q8_0-0000{number}-of-00002.gguf", DRAFT + bytes([number]))
    (model,) = found(cache).values()
    assert model.name == f"{REPOSITORY}:Q8_0"
    assert [file.name[-20:] for file in model.files] == ["-00001-of-00002.gguf", "-00002-of-00002.gguf"]
    assert model.bytes == 2 * len(DRAFT) + 2


@pytest.mark.parametrize("number", [1, 2])
def test_a_split_model_without_all_its_parts(cache: Path, number: int) -> None:
    put(cache, f"tiny-Q8_0-0000{number}-of-00002.gguf", DRAFT)
    (model,) = found(cache).values()
    assert f"part {3 - number} is missing" in model.problem


def test_links_in_circles_end(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "m.gguf").write_bytes(DRAFT)
    (tmp_path / "a" / "back").symlink_to(tmp_path)
    assert [model.name for model in find_models([tmp_path], places=[])] == ["m"]


def test_a_walk_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (tmp_path / f"{number}.gguf").write_bytes(DRAFT)
    monkeypatch.setattr(local, "MAX_ENTRIES", 10)
    models = find_models([tmp_path], places=[])
    assert len(models) == 10
    assert "only some were looked at" in models[-1].problem


def test_headers_are_read_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = put(cache, "tiny-Q8_0.gguf", DRAFT), []
    put(cache, "broken-Q4_0.gguf", b"no")

    def counted(path: Path) -> ModelShape:
        read.append(path.name)
        return gguf_read_shape(path)

    gguf_read_shape = shape.read_shape
    monkeypatch.setattr(shape, "read_shape", counted)
    first = find_models(places=[ModelFolder(cache, "hub")])
    assert sorted(read) == ["broken-Q4_0.gguf", "tiny-Q8_0.gguf"]
    assert find_models(places=[ModelFolder(cache, "hub")]) == first
    assert len(read) == 2
    os.utime(path.resolve(), (1, 1))
    assert find_models(places=[ModelFolder(cache, "hub")]) == first
    assert len(read) == 3


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', "null"])
def test_a_damaged_memory_of_headers_is_written_again(cache: Path, text: str) -> None:
    put(cache, "tiny-Q8_0.gguf", DRAFT)
    memory = data_dir() / "models.json"
    before = found(cache)
    memory.write_text(text)
    assert found(cache) == before
    held = json.loads(memory.read_text())
    (entry,) = held["models"]
    cases: list[object] = [
        {**entry, "shape": {"layers": 3}},
        {**entry, "shape": 7},
        [],
        {"stamp": entry["stamp"]},
    ]
    for damaged in cases:
        held["models"] = [damaged]
        memory.write_text(json.dumps(held))
        assert found(cache) == before


def test_what_a_name_means(cache: Path) -> None:
    for quant in ("Q2_K", "Q4_K_M", "Q8_0"):
        put(cache, f"tiny-{quant}.gguf", DRAFT + quant.encode())
    put(cache, "tiny-F16.gguf", DRAFT + b"deep", repository="other/one")
    models = tuple(found(cache).values())

    def meant(text: str) -> str | None:
        model = named(text, models)
        return model.path.name if model else None

    assert meant(f"{REPOSITORY}:q8_0".upper()) == "tiny-Q8_0.gguf"
    assert meant(REPOSITORY) == "tiny-Q4_K_M.gguf"
    assert meant("other/one") == "tiny-F16.gguf"
    assert meant("tiny-Q2_K") == meant("tiny-q2_k.gguf") == "tiny-Q2_K.gguf"
    assert meant(str(models[0].path)) == models[0].path.name
    assert meant("someone/tiny") is None
    put(cache, "bad-Q2_K.gguf", b"bad", repository="bad/one")
    models = tuple(found(cache).values())
    assert meant("bad/one") == "bad-Q2_K.gguf"  # nothing better is there
    put(cache, "good-Q2_K.gguf", DRAFT + b"good", repository="bad/one")
    models = tuple(found(cache).values())
    assert meant("bad/one") == "good-Q2_K.gguf"
    assert meant(f"{REPOSITORY}:Q3_K") is None


def test_a_file_that_several_models_have_names_none_of_them(cache: Path) -> None:
    put(cache, "tiny-Q8_0.gguf", DRAFT)
    put(cache, "tiny-Q8_0.gguf", DRAFT + b"2", repository="other/one")
    models = find_models(places=[ModelFolder(cache, "hub")])
    with pytest.raises(UserError, match=f"is the file of 2 models: other/one:Q8_0, {REPOSITORY}:Q8_0"):
        named("tiny-Q8_0", models)
    assert named("other/one", models) == models[0]


def test_a_name_that_no_one_has(cache: Path) -> None:
    put(cache, "tiny-Q8_0.gguf", DRAFT)
    error = no_such_model("someone/tyny-GGUF:Q8_0", found(cache).values())
    assert error.message.endswith(f"; did you mean {REPOSITORY}:Q8_0?")
    assert "localspec pull someone/tyny-GGUF:Q8_0" in error.hint


def test_a_link_to_nowhere_is_found_by_its_file_and_never_praised(cache: Path) -> None:
    put(cache, "tiny-Q8_0.gguf", DRAFT).resolve().unlink()
    models = found(cache).values()
    broken = named("tiny-Q8_0", models)
    assert broken is not None
    assert "links to a file that is gone" in broken.problem
    error = no_such_model(f"{REPOSITORY}:Q8", models)
    assert "; did you mean someone/tiny-GGUF:Q8_0? It cannot be used: it links to a file" in error.message
    put(cache, "tiny-Q8_0.gguf", DRAFT, repository="other/tiny-GGUF")
    assert named("tiny-Q8_0", found(cache).values()) == found(cache)["other/tiny-GGUF:Q8_0"]


def test_a_given_folder_that_is_a_link_to_nowhere(tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match="models links to a folder that is gone"):
        find_models([tmp_path / "models"])


def test_files_of_the_same_name_go_by_their_paths(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "m.gguf").write_bytes(DRAFT + folder.encode())
    assert [model.name for model in find_models([tmp_path], places=[])] == [
        "m",
        str(tmp_path / "b" / "m.gguf"),
    ]


def test_a_link_to_itself_hides_no_neighbour(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.gguf").write_bytes(DRAFT + bytes([number]))
        (tmp_path / f"round{number}").symlink_to(f"round{number}")
    assert len(find_models([tmp_path], places=[])) == 8


def test_a_cache_that_no_one_may_look_at_holds_nothing() -> None:
    assert find_models(places=[ModelFolder(Path("x" * 300), "hub")]) == ()


def test_a_given_folder_that_cannot_be_looked_into(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(DRAFT)
    with pytest.raises(UserError, match="cannot be read: Not a directory"):
        find_models([tmp_path / "a.gguf" / "deep"])


def test_what_could_not_be_read_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(DRAFT)
    closed = [True]

    def read(path: Path) -> ModelShape:
        if closed[0]:
            raise ModelFileError(f"{path} cannot be read: Permission denied") from PermissionError(13, "no")
        return shape.read_shape(path)

    memory = tmp_path / "models.json"
    before = Headers(memory, read)
    assert before.shape(path, [path]) == (None, "cannot be read: Permission denied")
    before.save()
    closed[0] = False  # which changes neither size nor time of the file
    assert Headers(memory, read).shape(path, [path]) == (shape.read_shape(path), "")
