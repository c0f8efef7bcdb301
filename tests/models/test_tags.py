"""Tags: the file of a repository that they mean, on the hub and on disk, and the error if several fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.errors import UserError
from localspec.models.hub import pull, resolve
from localspec.models.local import LocalModel, find_models, named
from localspec.models.names import Reference, choose, label_of, looks_like_reference, parse
from tests.models.disk import REPOSITORY, SMALL
from tests.models.hub_server import Hub, Repository

STEP = "mud/Step-APEX-GGUF"
STEPS = tuple(
    f"Step-APEX-{name}.gguf" for name in ("Balanced", "Compact", "I-Balanced", "I-Compact", "I-Mini")
)
PAIR = ("A/alpha-Q4_K_M.gguf", "B/beta-Q4_K_M.gguf", "B/beta-Q8_0.gguf")


def offer(hub: Hub, *files: str, repository: str = REPOSITORY) -> None:
    hub.repositories[repository] = Repository({file: SMALL + file.encode() for file in files})


def here(repository: str = REPOSITORY) -> dict[str, LocalModel]:
    return {model.name: model for model in find_models() if model.name.startswith(repository)}


@pytest.mark.parametrize(
    ("text", "file"),
    [
        (f"{STEP}:Compact", "Step-APEX-Compact.gguf"),
        (f"{STEP}:compact", "Step-APEX-Compact.gguf"),
        (f"{STEP}:I-Compact", "Step-APEX-I-Compact.gguf"),
        (f"{STEP}:Balanced", "Step-APEX-Balanced.gguf"),
        (f"{STEP}:I-Mini", "Step-APEX-I-Mini.gguf"),
        (f"{STEP}:Step-APEX-Compact", "Step-APEX-Compact.gguf"),
        (f"{STEP}:Step-APEX-Compact.gguf", "Step-APEX-Compact.gguf"),
        (f"{STEP}/step-apex-compact.gguf", "Step-APEX-Compact.gguf"),
    ],
)
def test_a_tag_may_be_what_a_name_says_beyond_its_repository(text: str, file: str) -> None:
    assert choose(parse(text), STEPS) == (file,)


@pytest.mark.parametrize("tag", ["Mini", "APEX", "I", "Step"])
def test_a_tag_that_is_only_a_word_of_a_name_is_rejected(tag: str) -> None:
    with pytest.raises(UserError, match=f"has no quant {tag}"):
        choose(Reference(STEP, tag), STEPS)


@pytest.mark.parametrize(
    ("text", "file"),
    [
        (":A", PAIR[0]), (":a", PAIR[0]), (":A/Q4_K_M", PAIR[0]), (":A/alpha-Q4_K_M", PAIR[0]),
        (":alpha-Q4_K_M", PAIR[0]), (":b/q4_k_m", PAIR[1]), (":beta-q4_k_m", PAIR[1]), (":Q8_0", PAIR[2]),
        ("/A/alpha-Q4_K_M.gguf", PAIR[0]), ("/beta-Q4_K_M.gguf", PAIR[1]),
    ],
)  # fmt: skip
def test_of_two_models_of_one_quant_folder_or_name_choose(hub: Hub, text: str, file: str) -> None:
    offer(hub, *PAIR)
    path = pull(parse(f"{REPOSITORY}{text}"))
    assert path.as_posix().endswith(f"/{file}")


@pytest.mark.parametrize("text", [":Q4_K_M", "", ":latest", ":q4_k_m"])
def test_of_two_models_of_one_quant_none_is_taken_by_the_alphabet(hub: Hub, text: str) -> None:
    offer(hub, *PAIR)
    wanted = parse(f"{REPOSITORY}{text}")
    expected = f"{wanted} fits 2 models: {REPOSITORY}/{PAIR[0]}, {REPOSITORY}/{PAIR[1]}"
    with pytest.raises(UserError) as caught:
        pull(wanted)
    assert (caught.value.message, caught.value.hint) == (expected, "name one of them in full")
    assert hub.downloads == []


@pytest.mark.parametrize(
    ("files", "tag"),
    [
        (("A/m-Q5_0.gguf", "B/m-Q5_0.gguf"), None),
        (("m.gguf", "n.gguf"), None),
        (("m-Q8_0.gguf", "MTP/m-Q8_0.gguf"), "Q8_0"),
        (("Q8_0.gguf", "old/Q8_0.gguf"), "Q8_0"),
        (("m-Q8_0.gguf", "m-Q8_0-00001-of-00001.gguf"), "Q8_0"),
        (("m-UD-Q8_0.gguf", "n-UD-Q8_0.gguf"), "Q8_0"),
        (("Tiny-a-Q8_0.gguf", "Tiny-b.Q8_0.gguf"), "Q8_0"),
    ],
)
def test_no_tag_and_no_default_picks_one_of_several(files: tuple[str, ...], tag: str | None) -> None:
    with pytest.raises(UserError, match="fits 2 models"):
        choose(Reference(REPOSITORY, tag), files)


def test_a_file_in_several_folders_is_reported() -> None:
    files = ("A/m-Q8_0.gguf", "B/m-Q8_0.gguf", "m-Q4_0.gguf", "C/m-Q4_0.gguf")
    with pytest.raises(UserError, match="fits 2 models"):
        choose(Reference(REPOSITORY, file="m-Q8_0.gguf"), files)
    assert choose(Reference(REPOSITORY, file="m-Q4_0.gguf"), files) == ("m-Q4_0.gguf",)
    assert choose(Reference(REPOSITORY, file="M-q8_0.gguf"), ("m-q8_0.gguf", "M-q8_0.gguf")) == (
        "M-q8_0.gguf",
    )


def test_offline_a_tag_takes_no_other_file(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(hub, *STEPS, repository=STEP)
    path = pull(parse(f"{STEP}:I-Compact"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert resolve(parse(f"{STEP}:I-Compact")) == path
    for tag in ("Compact", "Balanced", "Mini", "Q4_K_M"):
        with pytest.raises(UserError, match="is not on this computer, and HF_HUB_OFFLINE") as caught:
            resolve(parse(f"{STEP}:{tag}"))
        assert caught.value.hint == f"downloaded from its repository: {STEP}:I-Compact"
    assert list(here(STEP)) == [f"{STEP}:I-Compact"]


def test_offline_a_tag_that_fits_several_files_is_reported(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(hub, *PAIR)
    for file in PAIR:
        pull(parse(f"{REPOSITORY}/{file}"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for text in (f"{REPOSITORY}:Q4_K_M", REPOSITORY):
        with pytest.raises(UserError, match=f"fits 2 models: {REPOSITORY}/A/alpha-Q4_K_M.gguf, "):
            resolve(parse(text))
        with pytest.raises(UserError, match="fits 2 models: "):
            named(text, here().values())
    assert set(here()) == {f"{REPOSITORY}/{PAIR[0]}", f"{REPOSITORY}/{PAIR[1]}", f"{REPOSITORY}:Q8_0"}
    for name, model in here().items():
        assert resolve(parse(name)) == model.path
        assert named(name, here().values()) == model


def test_lm_studios_models_in_folders_are_reported_apart() -> None:
    root = Path.home() / ".lmstudio" / "models" / REPOSITORY
    for file in PAIR:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(SMALL + file.encode())
    assert set(here()) == {f"{REPOSITORY}/{PAIR[0]}", f"{REPOSITORY}/{PAIR[1]}", f"{REPOSITORY}:Q8_0"}
    assert resolve(parse(f"{REPOSITORY}:B/Q4_K_M")) == root / PAIR[1]


@pytest.mark.parametrize("text", ["latest", "LATEST"])
@pytest.mark.parametrize("start", ["", "hf.co/", "hf://", "https://huggingface.co/"])
def test_latest_means_that_no_tag_was_named(text: str, start: str) -> None:
    assert parse(f"{start}{REPOSITORY}:{text}") == Reference(REPOSITORY)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        (f"{REPOSITORY}:A/Q4_K_M", Reference(REPOSITORY, "A/Q4_K_M")),
        (f"hf.co/{REPOSITORY}:A/Q4_K_M", Reference(REPOSITORY, "A/Q4_K_M")),
        (f"{REPOSITORY}@v1:A/B/c", Reference(REPOSITORY, "A/B/c", revision="v1")),
    ],
)
def test_a_folder_may_stand_before_a_tag(text: str, reference: Reference) -> None:
    assert parse(text) == reference


@pytest.mark.parametrize("text", [f"{REPOSITORY}:/Q4_0", f"{REPOSITORY}:A/", f"{REPOSITORY}:A//B"])
def test_a_folder_needs_a_name(text: str) -> None:
    assert not looks_like_reference(text)


@pytest.mark.parametrize(
    ("name", "repository", "label"),
    [
        ("Tiny-Q4_K_M.gguf", "someone/Tiny-GGUF", "Q4_K_M"),
        ("tiny.i1-Q4_K_M.gguf", "someone/Tiny-i1-GGUF", "Q4_K_M"),
        ("sub/Tiny_Compact.gguf", "someone/tiny", "Compact"),
        ("Tinyer-Compact.gguf", "someone/Tiny-GGUF", ""),
        ("Tiny.gguf", "someone/Tiny-GGUF", ""),
        ("Tiny-a b.gguf", "someone/Tiny-GGUF", ""),
        ("Step-3.7-Flash-APEX-I-Compact.gguf", "mud/Step-3.5-Flash-APEX-GGUF", "I-Compact"),
        ("Tiny-2-Compact.gguf", "someone/Tiny-1-GGUF", ""),
        ("Other-Compact.gguf", "someone/Tiny-GGUF", ""),
    ],
)
def test_what_a_name_says_beyond_its_repository(name: str, repository: str, label: str) -> None:
    assert label_of(name, repository) == label


@pytest.mark.parametrize("asked", ["two/Pair-GGUF", "TWO/pair-gguf", "Two/PAIR-gguf"])
@pytest.mark.parametrize("first", ["two/Pair-GGUF", "TWO/pair-gguf"])
def test_a_repository_in_another_case_is_the_same_one(hub: Hub, cache: Path, first: str, asked: str) -> None:
    offer(hub, "pair-Q4_0.gguf", repository="two/Pair-GGUF")
    path = pull(parse(first))
    assert "models--two--Pair-GGUF" in path.parts
    count = len(hub.downloads)
    assert pull(parse(asked)) == path
    assert len(hub.downloads) == count == 1
    assert [folder.name for folder in cache.glob("models--*")] == ["models--two--Pair-GGUF"]
    assert list(here("two/Pair-GGUF")) == ["two/Pair-GGUF:Q4_0"]


@pytest.mark.parametrize("told", ["two/Pair-GGUF2", "../../x", 7, None, ["two"], "TWO/pair-ggu\u212a"])
def test_a_hub_that_calls_a_repository_otherwise_is_not_believed(hub: Hub, cache: Path, told: object) -> None:
    offer(hub, "pair-Q4_0.gguf", repository="two/Pair-GGUK")
    hub.listed["id"] = told
    assert "models--two--Pair-GGUK" in pull(parse("two/Pair-GGUK")).parts
    assert [folder.name for folder in cache.glob("models--*")] == ["models--two--Pair-GGUK"]


def test_a_folder_in_another_case_that_was_there_first_is_used(hub: Hub, cache: Path) -> None:
    offer(hub, "pair-Q4_0.gguf", repository="two/Pair-GGUF")
    (cache / "models--TWO--pair-gguf").mkdir(parents=True)
    assert "models--TWO--pair-gguf" in pull(parse("two/Pair-GGUF")).parts
