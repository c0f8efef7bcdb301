from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from localspec.errors import ModelFileError
from localspec.gguf import check_model_file, facts, known, read_header
from localspec.llama.library import native
from localspec.llama.model import Model
from localspec.types.models import ModelOptions
from tests.llama import tiny


def refusal(path: Path) -> str:
    """What both the check and the whole opening say about a file."""
    with pytest.raises(ModelFileError) as checked:
        check_model_file(path)
    with pytest.raises(ModelFileError) as opened:
        Model.open(ModelOptions(path=path))
    assert str(checked.value) == str(opened.value)
    assert str(path) in checked.value.message
    assert checked.value.hint
    return checked.value.message


@pytest.mark.slow
def test_header_of_the_bundled_target(demo_target: Path) -> None:
    header = check_model_file(demo_target)
    reader = gguf.GGUFReader(demo_target)
    assert header.architecture == "llama"
    assert len(header.tensors) == len(reader.tensors)
    assert header.weight_bytes == sum(int(tensor.n_bytes) for tensor in reader.tensors)
    assert header.parameters == sum(int(tensor.n_elements) for tensor in reader.tensors)
    assert header.counts["tokenizer.ggml.tokens"] == 8192
    assert header.integer("{arch}.context_length") == 1024
    assert header.text("general.name") == "LocalSpec demo target"
    assert header.acceptance is None
    assert header.file_bytes == demo_target.stat().st_size >= header.end


def test_block_sizes_are_those_of_ggml() -> None:
    library = native()._lib
    library.ggml_blck_size.restype = ctypes.c_int64
    library.ggml_type_size.restype = ctypes.c_size_t
    sizes = {kind: (library.ggml_blck_size(kind), library.ggml_type_size(kind)) for kind in range(43)}
    known = {int(kind): (elements, size) for kind, (_, elements, size) in facts()["tensor_types"].items()}
    assert {kind: size for kind, size in sizes.items() if size[0]} == known


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny.llama(tmp_path / "a.gguf")
    header = read_header(path)
    with monkeypatch.context() as patched:
        patched.setattr("localspec.gguf.parse", None)
        assert read_header(path) is header
    tiny.llama(
        tmp_path / "b.gguf", adjust=lambda recipe: recipe.writer.add_string("test.new", "yes")
    ).replace(path)
    assert read_header(path).text("test.new") == "yes"


def test_no_more_headers_are_kept_than_a_plan_needs(tmp_path: Path) -> None:
    paths = [tiny.llama(tmp_path / f"{number}.gguf") for number in range(6)]
    headers = [read_header(path) for path in paths]
    assert [*known.values()] == headers[-4:]


def test_per_layer_values(tmp_path: Path) -> None:
    def adjust(recipe: tiny.Recipe) -> None:
        recipe.writer.add_array("llama.test.per_layer", [3, 0])

    header = read_header(tiny.llama(tmp_path / "a.gguf", adjust=adjust))
    assert header.per_layer("{arch}.test.per_layer", 2) == (3, 0)
    assert header.per_layer("{arch}.attention.head_count_kv", 2) == (2, 2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><html>404</html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "Git LFS"),
        (struct.pack("<Q", 20) + b'{"__metadata__":{}}', "safetensors"),
        (b"PK\x03\x04" + b"\0" * 100, "PyTorch"),
        (b"tjgg" + b"\0" * 100, "before GGUF"),
        (b"\0" * 4096, "zeros"),
        (b"hello, world", "hello"),
        (b"GGUF" + struct.pack("<I", 1), "of another version"),
        (b"GGUF" + struct.pack(">I", 3), "big-endian"),
        (b"GGUF" + struct.pack("<I", 3), "ends inside its header"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1), "broken GGUF header"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 99), "broken GGUF header"),
    ],
)
def test_files_that_are_not_gguf(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert words in refusal(path)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert "there is no file" in refusal(tmp_path / "none.gguf")
    assert "is a folder" in refusal(tmp_path)


def test_an_unreadable_path(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / ("x" * 300 + ".gguf"))


def test_every_cut_of_a_file_is_noticed(tiny_llama: Path, tmp_path: Path) -> None:
    whole = tiny_llama.read_bytes()
    end = read_header(tiny_llama).end
    path = tmp_path / "cut.gguf"
    for length in (5, 8, 30, 200, 3000, 8000, end // 2, end - 1):
        path.write_bytes(whole[:length])
        assert "incomplete" in refusal(path) or length < 8000
    path.write_bytes(whole[: end - 1])
    assert f"{end - 1:,} bytes of {end:,}" in refusal(path)
    path.write_bytes(whole[:end])
    assert check_model_file(path).tensors


@pytest.mark.slow
def test_a_flipped_byte_in_the_header_never_crashes(tiny_llama: Path, tmp_path: Path) -> None:
    whole = bytearray(tiny_llama.read_bytes())
    path = tmp_path / "flipped.gguf"
    refused = 0
    for position in range(8, 600):
        broken = bytearray(whole)
        broken[position] ^= 0xFF
        path.write_bytes(broken)
        try:
            check_model_file(path)
        except ModelFileError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize(
    ("adjust", "words"),
    [
        (lambda recipe: recipe.writer.add_pooling_type(gguf.PoolingType.LAST), "embedding model"),
        (lambda recipe: recipe.writer.add_causal_attention(False), "embedding model"),
        (lambda recipe: recipe.writer.add_type("adapter"), "adapter"),
    ],
)
def test_models_that_do_not_chat(tmp_path: Path, adjust: Callable[[tiny.Recipe], None], words: str) -> None:
    assert words in refusal(tiny.llama(tmp_path / "a.gguf", adjust=adjust))


def test_other_architectures_and_empty_models(tmp_path: Path) -> None:
    assert "embedding model (bert)" in refusal(tiny.embedding(tmp_path / "bert.gguf"))
    head = tiny.Recipe(tmp_path / "eagle.gguf", "eagle3")
    assert "draft head" in refusal(head.write())
    vocabulary = tiny.Recipe(tmp_path / "vocabulary.gguf", "llama")
    vocabulary.vocabulary()
    assert "vocabulary but no weights" in refusal(vocabulary.write())
    weights = tiny.Recipe(tmp_path / "weights.gguf", "llama")
    weights.ones("output_norm")
    assert "no vocabulary" in refusal(weights.write())


def split_part(folder: Path, number: int, name: str) -> Path:
    recipe = tiny.Recipe(folder / name, "llama")
    recipe.writer.add_uint16("split.no", number)
    recipe.writer.add_uint16("split.count", 2)
    recipe.vocabulary()
    recipe.ones(f"blk.{number}.attn_norm")
    return recipe.write()


def test_split_models(tmp_path: Path) -> None:
    first = split_part(tmp_path, 0, "m-00001-of-00002.gguf")
    assert "m-00002-of-00002.gguf" in refusal(first)
    second = split_part(tmp_path, 1, "m-00002-of-00002.gguf")
    assert check_model_file(first).parameters == 2 * tiny.WIDTH
    assert "not the first part" in refusal(second)
    assert "does not end in" in refusal(split_part(tmp_path, 0, "renamed.gguf"))
    second.write_bytes(second.read_bytes()[:-100])
    with pytest.raises(ModelFileError, match=r"m-00002-of-00002\.gguf is incomplete"):
        check_model_file(first)
