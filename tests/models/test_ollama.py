"""Ollama's store: its models are listed and opened by the names that Ollama gives them, and stay."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from localspec.errors import UserError
from localspec.models import caches
from localspec.models.local import LocalModel, find_models, named
from localspec.models.pair_files import local_file
from localspec.models.removal import plan_removal
from tests.models.disk import PROJECTOR, files_below, model_bytes, put

DRAFT = model_bytes()
KIND = "application/vnd.ollama.image."
USUAL = "registry.ollama.ai/library"


def store(root: Path, name: str, content: bytes, *more: tuple[str, bytes], mark: str = "-") -> Path:
    """Put a model into a store, with further layers; return the file of its weights."""
    layers = []
    for kind, data in (("model", content), *more):
        digest = hashlib.sha256(data).hexdigest()
        blob = root / "blobs" / f"sha256{mark}{digest}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        layers.append({"mediaType": f"{KIND}{kind}", "digest": f"sha256:{digest}", "size": len(data)})
    manifest(root, name, {"schemaVersion": 2, "config": {}, "layers": layers})
    return root / "blobs" / f"sha256{mark}{hashlib.sha256(content).hexdigest()}"


def manifest(root: Path, name: str, value: object) -> Path:
    path = root / "manifests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


@pytest.fixture
def root(empty_home: Path) -> Path:
    return empty_home / ".ollama" / "models"


def here(*folders: Path) -> dict[str, LocalModel]:
    return {model.name: model for model in find_models(folders) if model.source != "package"}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (f"{USUAL}/llama3.2/3b", "llama3.2:3b"),
        (f"{USUAL}/llama3.2/latest", "llama3.2:latest"),
        ("registry.ollama.ai/anna/mine/v1", "anna/mine:v1"),
        ("hf.co/user/Repo-GGUF/Q4_K_M", "hf.co/user/Repo-GGUF:Q4_K_M"),
        ("example.org:5000/a/b/c", "example.org:5000/a/b:c"),
    ],
)
@pytest.mark.parametrize("mark", ["-", ":"])
def test_models_go_by_ollamas_names(root: Path, path: str, name: str, mark: str) -> None:
    blob = store(root, path, DRAFT, ("template", b"{{ .Prompt }}"), ("projector", PROJECTOR), mark=mark)
    (model,) = here().values()
    assert (model.name, model.path, model.source, model.problem) == (name, blob, "ollama", "")
    assert model.shape is not None
    assert local_file(name) == local_file(name.upper()) == blob


def test_latest_may_be_left_out(root: Path) -> None:
    blob = store(root, f"{USUAL}/tiny/latest", DRAFT)
    assert local_file("tiny") == blob
    store(root, f"{USUAL}/tiny/3b", DRAFT + b"3")
    assert local_file("tiny") == blob


def test_one_file_under_two_names_is_listed_once(root: Path) -> None:
    for tag in ("3b", "latest"):
        store(root, f"{USUAL}/tiny/{tag}", DRAFT)
    (model,) = here().values()
    assert (model.name, model.also) == ("tiny:3b", ("tiny:latest",))


def test_ollama_models_names_another_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: Path
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "big disk"))
    monkeypatch.setattr(caches, "OLLAMA_SERVICE", tmp_path / "service")
    store(tmp_path / "big disk", f"{USUAL}/one/latest", DRAFT + b"1")
    store(root, f"{USUAL}/two/latest", DRAFT + b"2")
    store(tmp_path / "service", f"{USUAL}/three/latest", DRAFT + b"3")
    assert set(here()) == {"one:latest", "two:latest", "three:latest"}


def test_a_store_and_its_blobs_may_be_named_as_folders(tmp_path: Path) -> None:
    blob = store(tmp_path / "copied", f"{USUAL}/tiny/latest", DRAFT)
    assert set(here(tmp_path / "copied")) == {"tiny:latest"}
    assert set(here(tmp_path)) == {"tiny:latest"}
    assert set(here(blob.parent)) == {blob.name}


def test_nothing_of_a_store_is_deleted(root: Path) -> None:
    store(root, f"{USUAL}/tiny/3b", DRAFT)
    before = files_below(root)
    model = named("tiny:3b", find_models())
    assert model is not None
    with pytest.raises(UserError, match="is in Ollama's store, where LocalSpec deletes nothing") as caught:
        plan_removal(model)
    assert "`ollama rm tiny:3b`" in caught.value.hint
    assert files_below(root) == before


def test_a_link_to_ollamas_file_goes_alone(root: Path) -> None:
    blob = store(root, f"{USUAL}/tiny/3b", DRAFT)
    link = Path.home() / ".lmstudio" / "models" / "anna" / "linked" / "tiny.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(blob)
    (model,) = here().values()
    assert (model.name, model.also) == ("anna/linked", ("tiny:3b",))
    assert plan_removal(model.called("anna/linked")).paths == (link,)
    with pytest.raises(UserError, match="tiny:3b is in Ollama's store"):
        plan_removal(model.called("tiny:3b"))


def test_of_two_names_that_ollama_has_the_given_one_is_reported(root: Path) -> None:
    for tag in ("3b", "latest"):
        store(root, f"{USUAL}/tiny/{tag}", DRAFT)
    (model,) = here().values()
    with pytest.raises(UserError, match="tiny:latest is in Ollama's store"):
        plan_removal(model.called("tiny"))


def test_a_file_that_ollama_links_to_stays(root: Path) -> None:
    blob = store(root, f"{USUAL}/tiny/3b", DRAFT)
    path = Path.home() / ".lmstudio" / "models" / "anna" / "own" / "tiny.gguf"
    path.parent.mkdir(parents=True)
    blob.replace(path)
    blob.symlink_to(path)
    (model,) = here().values()
    assert (model.name, model.also) == ("anna/own", ("tiny:3b",))
    removal = plan_removal(model)
    assert removal.paths == ()
    assert "another model's link leads to it" in removal.kept[0]


def test_a_name_of_ollamas_is_none_of_the_hubs(root: Path, cache: Path) -> None:
    store(root, "registry.ollama.ai/someone/tiny-GGUF/Q4_K_M", DRAFT)
    assert named("someone/tiny-GGUF:Q4_K_M", find_models()) is not None
    assert named("someone/tiny-GGUF", find_models()) is None
    put(cache, "tiny-Q8_0.gguf", DRAFT + b"8")
    found = named("someone/tiny-GGUF", find_models())
    assert found is not None
    assert found.source == "hub"


DIGEST = "a" * 64


@pytest.mark.parametrize(
    "value",
    ["", "{", "[]", "null", "7", "[" * 100_000, '{"layers": 7}', '{"layers": [7]}', '{"layers": [{}]}',
     {"layers": []},
     {"layers": [{"mediaType": f"{KIND}template", "digest": f"sha256:{DIGEST}"}]},
     {"layers": [{"mediaType": f"{KIND}model", "digest": "sha256:../../../etc/passwd"}]},
     {"layers": [{"mediaType": f"{KIND}model", "digest": 7}]},
     {"layers": [{"mediaType": ["x"], "digest": f"sha256:{DIGEST}"}]}],
    ids=repr,
)  # fmt: skip
def test_what_is_not_a_manifest_of_a_model_is_passed_over(root: Path, value: object) -> None:
    store(root, f"{USUAL}/tiny/3b", DRAFT)
    manifest(root, f"{USUAL}/odd/1", value)
    assert set(here()) == {"tiny:3b"}


def test_pipes_and_folders_in_place_of_manifests_are_not_waited_for(root: Path) -> None:
    store(root, f"{USUAL}/tiny/3b", DRAFT)
    os.mkfifo(root / "manifests" / USUAL / "tiny" / "pipe")
    (root / "manifests" / USUAL / "tiny" / "folder").mkdir()
    (root / "manifests" / USUAL / ".DS_Store").write_bytes(b"x")
    assert set(here()) == {"tiny:3b"}


def test_weights_that_are_gone_are_reported(root: Path) -> None:
    store(root, f"{USUAL}/tiny/3b", DRAFT).unlink()
    assert "links to a file that is gone" in here()["tiny:3b"].problem


def test_a_model_with_an_adapter_is_not_opened_without_it(root: Path) -> None:
    store(root, f"{USUAL}/tuned/1", DRAFT, ("adapter", b"lora"))
    assert "it needs an adapter" in here()["tuned:1"].problem
