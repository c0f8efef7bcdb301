"""What a file is: by its header where that is at hand, else by the word that its name begins with."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from localspec.errors import UserError
from localspec.gguf import FileKind, check_model_file, file_kind, read_header
from localspec.models.caches import ModelFolder, known_places
from localspec.models.hub import look_up, pull, resolve
from localspec.models.local import LocalModel, find_models, named
from localspec.models.names import Reference, choose, kind_by_name, needs_header, parse
from localspec.models.removal import plan_removal, remove
from tests.models.disk import PROJECTOR, REPOSITORY, SMALL, header_bytes, model_bytes, put
from tests.models.hub_server import Hub, Repository

DRAFT = model_bytes()
TOKENS = "tokenizer.ggml.tokens"


def qwen35(*tensors: str) -> bytes:
    """Return the header of a qwen35 with one layer of prediction."""
    return header_bytes(
        *tensors, general__architecture="qwen35", qwen35__block_count=5, qwen35__nextn_predict_layers=1
    )


HEADERS: dict[str, tuple[FileKind, bytes]] = {
    "bundled": ("model", DRAFT),
    "declared": (
        "model",
        header_bytes("token_embd.weight", general__architecture="llama", general__type="model"),
    ),
    "model with a head": (
        "model",
        qwen35("blk.0.attn_norm.weight", "blk.4.nextn.eh_proj.weight"),
    ),
    "first of two files": (
        "model",
        header_bytes(general__architecture="llama", split__count=2, lists=[TOKENS]),
    ),
    "mtp": ("draft head", qwen35("token_embd.weight", "blk.4.nextn.eh_proj.weight")),
    "eagle3": ("draft head", header_bytes("fc.weight", general__architecture="eagle3")),
    "dflash": ("draft head", header_bytes("fc.weight", general__architecture="dflash")),
    "mmproj": ("projector", PROJECTOR),
    "clip": ("projector", header_bytes("v.patch_embd.weight", general__architecture="clip")),
    "imatrix": ("imatrix", header_bytes("a.in_sum2", general__type="imatrix", lists=["imatrix.datasets"])),
    "old imatrix": ("imatrix", header_bytes("a.in_sum2", lists=["imatrix.datasets"])),
    "lora": ("adapter", header_bytes("a.lora_a", general__type="adapter", general__architecture="llama")),
    "control vector": ("adapter", header_bytes("direction.1", general__architecture="controlvector")),
    "vocabulary": ("vocabulary", header_bytes(general__architecture="llama", lists=[TOKENS])),
    "unheard of": ("other", header_bytes("x", general__architecture="llama", general__type="something")),
}


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_reports_what_a_file_is(tmp_path: Path, header: str) -> None:
    kind, content = HEADERS[header]
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    assert file_kind(read_header(path)) == kind
    if kind != "model":
        with pytest.raises(UserError):
            check_model_file(path)


NAMES = (
    "Qwen-27B",
    "mtp-Qwen",
    "Qwen-MTP",
    "imatrix",
    "a-imatrix-b",
    "eagle3-a",
    "a-eagle3",
    "mmproj-a",
    "a.mmproj",
)


@pytest.mark.parametrize("stem", NAMES)
@pytest.mark.parametrize("header", HEADERS)
def test_on_disk_no_word_in_a_name_counts(cache: Path, stem: str, header: str) -> None:
    kind, content = HEADERS[header]
    path = put(cache, f"{stem}-Q6_K.gguf", content)
    (model,) = find_models(places=[ModelFolder(cache, "hub")])
    assert (model.kind, model.path) == (kind, path)
    assert model.name == (f"{REPOSITORY}:Q6_K" if kind == "model" else f"{REPOSITORY}/{path.name}")
    if kind not in ("model", "draft head"):
        assert model.problem
        assert model.shape is None
    assert named(f"{REPOSITORY}/{path.name}", [model]) == model
    remove(plan_removal(model))
    assert not path.is_symlink()


@pytest.mark.parametrize(
    ("name", "kind", "is_open"),
    [
        ("Qwen3.6-35B-A3B-MTP-UD-Q4_K_XL.gguf", "model", True),
        ("Qwen3.6-35B-A3B-MTP-IQ4_XS-Q8nextn.gguf", "model", True),
        ("lordx64-distill-MTP-IQ4_XS.gguf", "model", True),
        ("Model-imatrix-Q4_K_M.gguf", "model", True),
        ("Qwen3-8B-eagle3-Q8_0.gguf", "model", True),
        ("X.mmproj-Q8_0.gguf", "model", True),
        ("Empty-Q8_0.gguf", "model", False),
        ("mtp/Qwen-Q8_0.gguf", "model", False),
        ("mtpx-Q8_0.gguf", "model", False),
        ("sub/mmproj-F16.gguf", "projector", False),
        ("MMPROJ.gguf", "projector", False),
        ("imatrix_unsloth.gguf", "imatrix", False),
        ("mtp-gemma-4.gguf", "draft head", False),
        ("MTP_x.gguf", "draft head", False),
        ("EAGLE3-LLaMA3.1-8B.gguf", "draft head", False),
        ("dflash-a.gguf", "draft head", False),
        ("dspark.gguf", "draft head", False),
    ],
)
def test_what_a_name_reports(name: str, kind: FileKind, is_open: bool) -> None:
    assert (kind_by_name(name), needs_header(name)) == (kind, is_open)


@pytest.mark.parametrize("companion", ["X.mmproj-Q8_0.gguf", "X-it-mmproj-Q8_0.gguf", "mmproj-Q8_0.gguf"])
@pytest.mark.parametrize("tag", [":Q8_0", ""])
def test_a_companion_is_not_taken_for_its_model(hub: Hub, companion: str, tag: str) -> None:
    hub.repositories[REPOSITORY] = Repository({"X.Q8_0.gguf": DRAFT, companion: PROJECTOR})
    assert pull(parse(f"{REPOSITORY}{tag}")).name == "X.Q8_0.gguf"
    assert pull(parse(f"{REPOSITORY}/{companion}")).name == companion


def test_only_names_that_leave_it_open_cost_a_look_into_the_header(hub: Hub) -> None:
    plain = {"X.Q8_0.gguf": DRAFT, "mmproj-Q8_0.gguf": PROJECTOR, "X-mmproj-F16.gguf": PROJECTOR}
    hub.repositories[REPOSITORY] = Repository(plain)
    look_up(parse(REPOSITORY))
    assert hub.downloads == []


def test_a_quant_that_only_a_companion_has_is_not_a_quant_of_the_model(hub: Hub) -> None:
    hub.repositories[REPOSITORY] = Repository({"X-Q8_0.gguf": DRAFT, "X-mmproj-F16.gguf": PROJECTOR})
    with pytest.raises(UserError, match="has no quant F16"):
        look_up(parse(f"{REPOSITORY}:F16"))


@pytest.mark.parametrize("stem", ["mtp-Qwen-Q6_K", "eagle3-Qwen-Q6_K", "Qwen-eagle3-Q6_K"])
def test_a_repository_of_heads_alone_gives_them(hub: Hub, stem: str) -> None:
    head = header_bytes("fc.weight", general__architecture="eagle3")
    hub.repositories[REPOSITORY] = Repository({f"{stem}.gguf": head, "mmproj-Q6_K.gguf": PROJECTOR})
    assert pull(parse(f"{REPOSITORY}:Q6_K")).name == f"{stem}.gguf"


def test_a_file_without_a_header_that_can_be_read_counts_as_its_name_says(hub: Hub) -> None:
    hub.repositories[REPOSITORY] = Repository(
        {"Qwen-MTP-Q6_K.gguf": b"GGUF but broken", "mtp-Q6_K.gguf": b""}
    )
    assert look_up(parse(f"{REPOSITORY}:Q6_K")).files[0].name == "Qwen-MTP-Q6_K.gguf"


WORDS = st.sampled_from(
    ["Qwen3.6", "27B", "MTP", "mtp", "imatrix", "eagle3", "dflash", "mmproj", "it", "Compact", "I", "v1"]
)
STEMS = st.builds(
    lambda words, mark, quant: mark.join([*words, *([quant] if quant else [])]),
    st.lists(WORDS, min_size=1, max_size=4),
    st.sampled_from(["-", ".", "_"]),
    st.sampled_from(["", "Q4_K_M", "Q6_K", "UD-Q4_K_XL", "q8_0", "IQ4_XS"]),
)
FOLDERS = st.sampled_from(["", "", "A/", "B/", "Q6_K/", "deep/er/"])
FILES = st.lists(st.builds(lambda folder, stem: f"{folder}{stem}.gguf", FOLDERS, STEMS),
                 min_size=1, max_size=5, unique_by=str.lower)  # fmt: skip


def tags_of(files: Iterable[str]) -> list[str]:
    """Return tags that someone might type for a repository: stems, and what stands at their ends."""
    stems = [re.sub(r"\.gguf$", "", file) for file in files]
    return [
        *stems,
        *(stem.rpartition("/")[2] for stem in stems),
        *(re.split("[-._]", stem)[-1] for stem in stems),
    ]


@pytest.mark.slow
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
)
@given(files=FILES, which=st.integers(0, 99))
@example(["Qwen-MTP-Q6_K.gguf"], 0)
@example(["Q4_K_M.gguf", "A/Q4_K_M.gguf"], 0)
def test_what_was_pulled_is_listed_opened_and_removed_by_the_same_name(
    hub: Hub,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: list[str],
    which: int,
) -> None:
    shutil.rmtree(cache, ignore_errors=True)  # of the example before
    hub.repositories[REPOSITORY] = Repository({file: SMALL + file.encode() for file in files})
    tags = [f":{each}" for each in tags_of(files)] + [f"/{file}" for file in files]
    text = f"{REPOSITORY}{tags[which % len(tags)]}"
    path, refusal = pulled(text)
    if path is None:
        assert re.search("fits [0-9]+ models: |has no quant|has no GGUF model", refusal)
        return
    with monkeypatch.context() as offline:
        offline.setenv("HF_HUB_OFFLINE", "1")
        assert resolve(parse(text)) == path
    there = found_here()
    model = named(text, there)
    assert model is not None
    assert model.path == path
    (listed,) = [each for each in there if each.path == path]
    assert named(listed.name, there) == listed
    if "/" not in text.removeprefix(REPOSITORY) or ":" in text:
        assert resolve(parse(listed.name)) == path
    remove(plan_removal(model))
    assert named(text, found_here()) is None


def pulled(text: str) -> tuple[Path | None, str]:
    """Return the file that a name gets from the hub, or why there is none."""
    try:
        return pull(parse(text)), ""
    except UserError as error:
        return None, error.message


def found_here() -> tuple[LocalModel, ...]:
    return find_models(places=[place for place in known_places() if place.is_cache])


def test_no_model_is_reported_where_nothing_can_be_one() -> None:
    with pytest.raises(UserError, match="has no GGUF model"):
        choose(Reference(REPOSITORY), ("a.safetensors", "mmproj-F16.gguf", "imatrix.gguf"))
    with pytest.raises(UserError, match="has no GGUF model"):
        choose(Reference(REPOSITORY), ("a-imatrix.gguf",), lambda _name: "imatrix")
