"""Names of models, and which files of a repository they mean."""

from __future__ import annotations

import pytest

from localspec.errors import UserError
from localspec.models.names import (
    Reference,
    all_parts,
    choose,
    is_model_file,
    looks_like_reference,
    models_among,
    parse,
    quant_of,
)

REPO = "someone/Tiny-1.5B-GGUF"
FILES = (
    ".gitattributes",
    "README.md",
    "Tiny-1.5B-BF16.gguf",
    "Tiny-1.5B-IQ4_XS.gguf",
    "Tiny-1.5B-Q4_K_M.gguf",
    "Tiny-1.5B-Q8_0.gguf",
    "Tiny-1.5B-UD-Q4_K_XL.gguf",
    "imatrix_unsloth.gguf",
    "mmproj-F16.gguf",
    "Q6_K/Tiny-1.5B-Q6_K-00001-of-00002.gguf",
    "Q6_K/Tiny-1.5B-Q6_K-00002-of-00002.gguf",
)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        (REPO, Reference(REPO)),
        (f"{REPO}:q4_k_m", Reference(REPO, "q4_k_m")),
        (f" {REPO}:Q8_0\n", Reference(REPO, "Q8_0")),
        (f"{REPO}@v1:Q8_0", Reference(REPO, "Q8_0", revision="v1")),
        (f"{REPO}@refs/pr/2", Reference(REPO, revision="refs/pr/2")),
        (f"{REPO}/sub/a.gguf", Reference(REPO, file="sub/a.gguf")),
        (f"{REPO}@v1/a.gguf", Reference(REPO, file="a.gguf", revision="v1")),
        (f"https://huggingface.co/{REPO}", Reference(REPO)),
        (f"https://huggingface.co/{REPO}/", Reference(REPO)),
        (f"https://huggingface.co/{REPO}/tree/main", Reference(REPO)),
        (f"https://huggingface.co/{REPO}/blob/main/a%20b.gguf", Reference(REPO, file="a b.gguf")),
        (
            f"https://huggingface.co/{REPO}/resolve/v2/a.gguf?download=true",
            Reference(REPO, file="a.gguf", revision="v2"),
        ),
        (f"hf.co/{REPO}:Q4_0", Reference(REPO, "Q4_0")),
        (f"hf://{REPO}/a.gguf", Reference(REPO, file="a.gguf")),
    ],
)  # fmt: skip
def test_what_names_a_model_on_the_hub(text: str, reference: Reference) -> None:
    assert parse(text) == reference


@pytest.mark.parametrize(
    "text",
    ["", "tiny", "a/b/c", "a//b", "a/b:", "a/b:Q4 K", "../b", "a/..", "-a/b", "https://example.org/a/b",
     "https://huggingface.co/someone", "https://huggingface.co/a/b/blob/main/README.md", "a/b@:Q4",
     "https://[huggingface.co/a/b"],
)  # fmt: skip
def test_what_does_not(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    "text", [REPO, f"{REPO}:Q8_0", f"{REPO}@v1", f"{REPO}@v1:Q8_0", f"{REPO}@v1/a/b.gguf"]
)
def test_a_reference_reads_back_as_it_is_written(text: str) -> None:
    assert str(parse(text)) == text


def test_only_two_steps_look_like_a_reference() -> None:
    assert looks_like_reference("a/b:Q4_0")
    assert not looks_like_reference("a/b/c")
    assert not looks_like_reference("./a/b")
    assert not looks_like_reference("model.gguf")


@pytest.mark.parametrize(
    ("name", "quant"),
    [("a-Q4_K_M.gguf", "Q4_K_M"), ("a.q8_0.gguf", "Q8_0"), ("a-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
     ("a-IQ2_XXS.gguf", "IQ2_XXS"), ("a-bf16-00001-of-00003.gguf", "BF16"), ("Q6_K/a.gguf", "Q6_K"),
     ("a-MXFP4_MOE.gguf", "MXFP4_MOE"), ("Qwen3-8B.gguf", ""), ("a-Q4_0_4_4.gguf", "Q4_0_4_4"),
     ("Q8_0/a-Q4_0.gguf", "Q4_0"), ("TQ1_0.gguf", "TQ1_0")],
)  # fmt: skip
def test_the_quant_in_a_name(name: str, quant: str) -> None:
    assert quant_of(name) == quant


@pytest.mark.parametrize(
    "name",
    ["mmproj-F16.gguf", "a/mmproj.gguf", "imatrix.gguf", "mtp-a.gguf", "eagle3-a.gguf", "a.safetensors"],
)
def test_companions_are_not_models(name: str) -> None:
    assert not is_model_file(name)


@pytest.mark.parametrize(
    ("quant", "file"),
    [
        (None, "Tiny-1.5B-Q4_K_M.gguf"),
        ("q8_0", "Tiny-1.5B-Q8_0.gguf"),
        ("bf16", "Tiny-1.5B-BF16.gguf"),
        ("UD-Q4_K_XL", "Tiny-1.5B-UD-Q4_K_XL.gguf"),
        ("Q4_K_XL", "Tiny-1.5B-UD-Q4_K_XL.gguf"),
    ],
)
def test_the_file_that_a_quant_means(quant: str | None, file: str) -> None:
    assert choose(Reference(REPO, quant), FILES) == (file,)


def test_a_split_quant_means_all_its_parts() -> None:
    assert choose(Reference(REPO, "Q6_K"), FILES[::-1]) == FILES[-2:]


def test_a_file_is_found_by_its_name_alone() -> None:
    assert choose(Reference(REPO, file="tiny-1.5b-q6_k-00002-of-00002.gguf"), FILES) == FILES[-2:]
    assert choose(Reference(REPO, file="mmproj-F16.gguf"), FILES) == ("mmproj-F16.gguf",)


def test_without_the_default_quants_the_first_file_is_taken() -> None:
    files = ("sub/a-Q2_K.gguf", "b-Q5_0.gguf", "a-Q6_K.gguf")
    assert choose(Reference(REPO), files) == ("a-Q6_K.gguf",)
    assert choose(Reference(REPO), (*files, "z-Q8_0.gguf")) == ("z-Q8_0.gguf",)


def test_a_wrong_quant_lists_the_right_ones() -> None:
    with pytest.raises(UserError) as caught:
        choose(Reference(REPO, "Q4_K_S"), FILES)
    assert caught.value.message == f"{REPO} has no quant Q4_K_S; did you mean Q4_K_M?"
    assert caught.value.hint == "there are: BF16, IQ4_XS, Q4_K_M, Q8_0, UD-Q4_K_XL, Q6_K"


def test_a_repository_without_models() -> None:
    with pytest.raises(UserError, match="has no GGUF model"):
        choose(Reference(REPO), ("model.safetensors", "mmproj-F16.gguf"))


def test_a_missing_part_is_named() -> None:
    names = [f"a-{number:05d}-of-00004.gguf" for number in (1, 3)]
    with pytest.raises(UserError, match="one of 4 files, of which part 2, 4 is missing"):
        all_parts(names[0], names)


def test_models_of_a_repository_are_its_first_files() -> None:
    assert models_among(FILES)[-1] == "Q6_K/Tiny-1.5B-Q6_K-00001-of-00002.gguf"
    assert len(models_among(FILES)) == 6
