"""What llama.cpp can open is known before it is asked, and llama.cpp agrees."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import random
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gguf
import pytest

from localspec.errors import ModelFileError, UnsupportedError
from localspec.gguf import check_model_file, facts, read_model
from localspec.llama import library
from localspec.llama.library import VERSION, native
from localspec.llama.model import SPLIT_MODES, Model
from localspec.models.shape import read_shape, shape_of_parts
from localspec.supported import splits_by_tensor, supported
from localspec.types.models import ModelOptions
from tests.benchmarks import llama_cpp_names
from tests.campaign.gguf_edits import Base, Edit, drawn
from tests.llama import tiny
from tests.models.test_gguf import ranges_of

SOURCE = "LLAMA_CPP_PYTHON_SOURCE"
"""A variable that names the unpacked source of llama-cpp-python, where it is at hand."""
UNKNOWN = re.compile("unknown|unsupported")


def told(path: Path, *, vocabulary: bool = False, split_mode: int = 1) -> str:
    """Return what llama.cpp itself says of a file; empty where it opens it."""
    api = native()
    parameters = api.llama_model_default_params()
    parameters.vocab_only, parameters.split_mode = vocabulary, split_mode
    with library.problems_of_this_thread() as problems:
        pointer = api.llama_model_load_from_file(os.fsencode(path), parameters)
    if pointer:
        api.llama_model_free(pointer)
        return ""
    return library.load_problem(problems)


def named(path: Path, architecture: str) -> Path:
    return tiny.Recipe(path, architecture).write()


def of_architecture(path: Path, name: str) -> Path:
    """The parts of a model that are looked at before the layers are."""
    recipe = tiny.Recipe(path, name)
    recipe.vocabulary()
    recipe.ones("output_norm")
    return recipe.write()


def with_text(path: Path, key: str, text: str) -> Path:
    """A tiny model that says something else of its tokenizer."""

    def change(recipe: tiny.Recipe) -> None:
        recipe.writer.kv_data[0][f"tokenizer.ggml.{key}"].value = text

    return tiny.llama(path, adjust=change)


def with_type(path: Path, kind: int) -> Path:
    """A tiny model whose first tensor is of another type."""
    base = Base("made", tiny.llama(path.with_suffix(".base")))
    return base.edited([("tensor", 0, "kind", kind)], path)


# --- the list ---


def test_the_list_is_of_the_pinned_version() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    (pin,) = (each for each in project["dependencies"] if each.startswith("llama-cpp-python"))
    assert pin == f"llama-cpp-python=={supported()['version']}"
    assert supported()["version"] == VERSION


def test_the_list_is_what_the_source_says() -> None:
    if SOURCE not in os.environ:
        pytest.skip(f"{SOURCE} names no source")
    made = llama_cpp_names.document(Path(os.environ[SOURCE]))
    assert tomllib.loads(made) == supported()


def test_what_is_written_by_hand_of_architectures_and_tokenizers_is_of_those_in_the_list() -> None:
    tables = (
        "encoders",
        "mtp",
        "no_heads",
        "layer_inputs",
        "last_output",
        "snapshots",
        "windows",
        "not_chat",
    )
    named = {name for table in tables for name in facts()[table]}
    assert named - {*supported()["names"]["architecture"]} == set()
    begun = {name for names in facts()["begins"].values() for name in names}
    assert begun - {*supported()["names"]["pre-tokenizer"]} == set()


def test_the_library_knows_the_architectures_and_no_others(tmp_path: Path) -> None:
    known = supported()["names"]["architecture"]
    others = {*gguf.MODEL_ARCH_NAMES.values(), "tomorrow9", "(unknown)"} - {*known, "gptj"}
    path = tmp_path / "a.gguf"
    refused = {name for name in {*known, *others, "gptj"} if UNKNOWN.search(told(named(path, name)))}
    assert refused == others | {"gptj"}


def test_the_library_splits_the_same_architectures_by_tensor(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    refused = [
        name
        for name in supported()["names"]["architecture"]
        if "SPLIT_MODE_TENSOR not implemented" in told(named(path, name), split_mode=SPLIT_MODES["tensor"])
    ]
    assert Counter(refused) == Counter(supported()["not_split_by_tensor"])
    assert not any(map(splits_by_tensor, refused))
    assert splits_by_tensor("qwen3")


@pytest.mark.slow
def test_the_library_knows_the_pre_tokenizers_and_no_others(tmp_path: Path) -> None:
    known = supported()["names"]["pre-tokenizer"]
    path = tmp_path / "a.gguf"
    refused = {
        name
        for name in (*known, "newtok-2027")
        if UNKNOWN.search(told(with_text(path, "pre", name), vocabulary=True))
    }
    assert refused == {"newtok-2027"}


def test_the_library_knows_the_tokenizers_and_no_others(tmp_path: Path) -> None:
    known = supported()["names"]["tokenizer"]
    assert {*facts()["tokenizers"]} <= {*known}
    path = tmp_path / "a.gguf"
    refused = {
        name
        for name in (*known, "newtok")
        if UNKNOWN.search(told(with_text(path, "model", name), vocabulary=True))
    }
    assert refused == {"newtok"}


def test_the_library_knows_the_types_of_tensors_and_no_others(tmp_path: Path) -> None:
    known = supported()["tensor_types"]
    assert {str(kind) for kind in known} == {*facts()["tensor_types"]}
    count = re.search(r"should be in \[0, (\d+)\)", told(with_type(tmp_path / "a.gguf", 999)))
    assert count is not None
    assert max(known) + 1 == int(count[1])
    sizes = native()._lib.ggml_blck_size
    sizes.restype = ctypes.c_int64
    assert [kind for kind in range(int(count[1])) if sizes(kind)] == known


# --- what a file needs ---

NEWER, IK_LLAMA, GONE = "a newer version may know it", "ik_llama.cpp's", "llama.cpp gave this type up"
KINDS = {
    "architecture": (partial(of_architecture, name="qwen9"), "needs the architecture `qwen9`", NEWER),
    "a name alone": (partial(of_architecture, name="gptj"), "needs the architecture `gptj`", NEWER),
    "tokenizer": (partial(with_text, key="model", text="newtok"), "needs the tokenizer `newtok`", NEWER),
    "pre-tokenizer": (
        partial(with_text, key="pre", text="newtok-2027"),
        "needs the pre-tokenizer `newtok-2027`",
        NEWER,
    ),
    "next type": (partial(with_type, kind=43), "quantized in a type (43)", NEWER),
    "first of ik_llama.cpp": (partial(with_type, kind=133), "quantized in a type (133)", IK_LLAMA),
    "of ik_llama.cpp": (partial(with_type, kind=139), "quantized in a type (139)", IK_LLAMA),
    "a type that is gone": (partial(with_type, kind=31), "quantized in a type (31)", GONE),
}
"""By name: what writes a file, what is said of it, and the hint."""


@pytest.mark.parametrize(("make", "words", "hint"), KINDS.values(), ids=KINDS)
def test_unknown_names_are_reported_before_llama_cpp_loads(
    make: Callable[[Path], Path], words: str, hint: str, tmp_path: Path
) -> None:
    path = make(tmp_path / "a.gguf")
    tellers: tuple[Callable[[Path], object], ...] = (
        read_shape,
        lambda path: shape_of_parts([(ranges_of(path), path.stat().st_size)], str(path)),
        lambda path: Model.open(ModelOptions(path)),
    )
    for tell in tellers:
        with pytest.raises(UnsupportedError) as refused:
            tell(path)
        assert str(path) in refused.value.message
        assert words in refused.value.message
        assert hint in refused.value.hint
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("make", "words", "hint"),
    [each for name, each in KINDS.items() if name != "a type that is gone"],  # which it takes for odd rows
    ids=[name for name in KINDS if name != "a type that is gone"],
)
def test_another_llama_cpp_is_asked_itself_and_reported_of_in_the_same_words(
    make: Callable[[Path], Path], words: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "0.4.0")
    path = make(tmp_path / "a.gguf")
    read_model(path)
    with pytest.raises(UnsupportedError) as refused:
        Model.open(ModelOptions(path))
    assert words in refused.value.message
    assert hint in refused.value.hint


@pytest.mark.parametrize("version", ["0.3.36", "0.3.36+cu124"])
def test_a_build_of_the_pinned_version_is_the_pinned_version(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: version)
    with pytest.raises(UnsupportedError):
        read_model(named(tmp_path / "a.gguf", "qwen9"))


@pytest.mark.parametrize(
    ("key", "text"), [("pre", "default"), ("pre", ""), ("pre", "lfm2"), ("pre", "minicpm5")]
)
def test_known_names_pass(key: str, text: str, tmp_path: Path) -> None:
    assert check_model_file(with_text(tmp_path / "a.gguf", key, text)).tensors


def test_a_pre_tokenizer_counts_for_byte_pairs_alone(tmp_path: Path) -> None:
    def change(recipe: tiny.Recipe) -> None:
        values = recipe.writer.kv_data[0]
        values["tokenizer.ggml.model"].value, values["tokenizer.ggml.pre"].value = "llama", "newtok-2027"

    path = tiny.llama(tmp_path / "a.gguf", adjust=change)
    assert check_model_file(path).tensors
    assert told(path, vocabulary=True) == ""


# --- broken headers ---

FAULTS: dict[str, tuple[list[Edit], str]] = {
    "key": ([("twice", "general.name")], "the key `general.name` is there twice"),
    "list": ([("twice", "tokenizer.ggml.tokens")], "the key `tokenizer.ggml.tokens` is there twice"),
    "tensor": ([("tensor", 1, "name", "token_embd.weight")], "`token_embd.weight` is there twice"),
    "name": ([("tensor", 1, "name", "x" * 64)], "is longer than 63 bytes"),
    "rows": (
        [("tensor", 1, "kind", 2), ("tensor", 1, "sizes", [33, 64])],
        "not whole blocks of 32",
    ),
    "start": ([("tensor", 1, "offset", 64)], "starts at byte 64 instead of"),
    "alignment": ([("set", "general.alignment", 4, 33)], "has a broken GGUF header"),
    "kind of alignment": ([("set", "general.alignment", 10, 32)], "has a broken GGUF header"),
    "no architecture": ([("without", "general.architecture")], "does not name its architecture"),
    "cut": ([("cut", 900), ("size", 900)], "ends inside its header"),
}
"""By name: edits of a file, and what is said of it."""


@pytest.mark.parametrize(("edits", "words"), FAULTS.values(), ids=FAULTS)
def test_a_broken_header_is_one_clear_line(edits: list[Edit], words: str, tmp_path: Path) -> None:
    base = Base("made", tiny.llama(tmp_path / "base.gguf", adjust=lambda made: made.writer.add_name("x")))
    path = base.edited(edits, tmp_path / "a.gguf")
    for tell in (read_shape, lambda path: Model.open(ModelOptions(path))):
        with pytest.raises(ModelFileError) as refused:
            tell(path)
        assert str(path) in refused.value.message
        assert words in refused.value.message
        assert refused.value.hint


def read_by_llama_cpp(path: Path) -> bool:
    """Return whether llama.cpp's own reader takes the header of a file."""

    class Parameters(ctypes.Structure):
        _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))

    api = native()
    read = library.exported(api, "gguf_init_from_file", ctypes.c_void_p, ctypes.c_char_p, Parameters)
    if found := read(os.fsencode(path), Parameters(no_alloc=True)):
        library.exported(api, "gguf_free", None, ctypes.c_void_p)(found)
    return bool(found)


@pytest.mark.slow
def test_headers_are_rejected_that_llama_cpp_refuses_and_no_others(tmp_path: Path) -> None:
    base, path = Base("made", tiny.llama(tmp_path / "base.gguf")), tmp_path / "a.gguf"
    verdicts = Counter[bool]()
    for number in range(400):
        edits = drawn(random.Random(number))
        base.edited([edit for edit in edits if edit[0] != "size"], path)
        problem = ""
        try:
            read_model(path)
        except UnsupportedError:
            continue
        except ModelFileError as error:
            problem = error.message
        if any(words in problem for words in ("incomplete", "part", "its architecture")):
            # which is no fault of what the reader reads
            continue
        verdicts[not problem] += 1
        assert read_by_llama_cpp(path) == (not problem), (edits, problem)
    assert min(verdicts.values()) > 50
    assert len(verdicts) == 2


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            [
                "gguf_init_from_reader: duplicate key 'general.name' for KV pair 3",
                "gguf_init_from_reader: failed to read key-value pairs",
                "llama_model_load: error loading model: llama_model_loader: failed to load model from a.gguf",
                "llama_model_load_from_file_impl: failed to load model",
            ],
            "duplicate key 'general.name' for KV pair 3",
        ),
        (
            [
                "read: string length 99 exceeds remaining file size 10 bytes",
                "gguf_init_from_reader: failed to read key-value pairs",
                "llama_model_load: error loading model: llama_model_loader: failed to load model from a.gguf",
            ],
            "string length 99 exceeds remaining file size 10 bytes",
        ),
        (
            [
                "load: special_eos_id is not in special_eog_ids - the tokenizer config may be incorrect",
                "llama_model_load: error loading model: missing tensor 'blk.0.attn_q.weight'",
                "llama_model_load_from_file_impl: failed to load model",
            ],
            "missing tensor 'blk.0.attn_q.weight'",
        ),
    ],
)
def test_the_line_that_has_the_reason_is_reported(lines: list[str], told: str) -> None:
    assert library.load_problem(lines) == told
