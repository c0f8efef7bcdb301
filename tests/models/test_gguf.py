from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from localspec import smollm2
from localspec.demo import bundled_pair
from localspec.gguf import read_header, read_tokens
from localspec.models.shape import LayerShape, read_shape, shape_of_parts
from tests.hardware.shapes import SHAPES, Build, make
from tests.llama import tiny

Reader = Callable[[int, int], bytes]


def ranges_of(path: Path, asked: list[tuple[int, int]] | None = None) -> Reader:
    def read(start: int, count: int) -> bytes:
        if asked is not None:
            asked.append((start, count))
        with path.open("rb") as file:
            file.seek(start)
            return file.read(count)

    return read


@pytest.mark.slow
def test_the_bundled_target(demo_target: Path) -> None:
    shape = read_shape(demo_target)
    assert (shape.name, shape.architecture, shape.quant) == ("LocalSpec demo target", "llama", "BF16")
    assert shape.file_bytes == demo_target.stat().st_size
    assert shape.weight_bytes - shape.input_bytes == sum(
        int(tensor.n_bytes) for tensor in gguf.GGUFReader(demo_target).tensors
    )
    assert shape.tied
    assert shape.vocabulary == 8192
    assert shape.training_context == 1024


def test_both_bundled_models_are_of_one_family(demo_target: Path, demo_draft: Path) -> None:
    assert read_shape(demo_target).vocabulary_family == read_shape(demo_draft).vocabulary_family


def test_a_draft_made_for_one_target_reports_how_often_that_accepts() -> None:
    assert read_shape(smollm2.draft()).acceptance == pytest.approx(0.51)
    assert read_shape(bundled_pair()[1]).acceptance is None


def test_a_single_changed_token_makes_another_family(tmp_path: Path) -> None:
    one = read_shape(tiny.llama(tmp_path / "one.gguf"))
    same = read_shape(tiny.llama(tmp_path / "same.gguf"))
    other = read_shape(tiny.llama(tmp_path / "other.gguf", change=200))
    assert one.vocabulary_family == same.vocabulary_family != other.vocabulary_family


def test_tokens(tmp_path: Path) -> None:
    tokens = read_tokens(read_header(tiny.llama(tmp_path / "a.gguf", change=200, extra=3000)))
    assert tokens[:3] == (b"<unk>", b"<s>", b"</s>")
    assert tokens[200] == b"[changed200]"
    assert tokens[-1] == b"[pad2999]"


def test_long_tokens_are_read_to_their_end(tmp_path: Path) -> None:
    recipe = tiny.Recipe(tmp_path / "a.gguf", "llama")
    words = ["x" * 1000, "y" * 100]
    recipe.writer.add_token_list(words)
    recipe.ones("token_embd")
    assert read_tokens(read_header(recipe.write())) == tuple(word.encode() for word in words)


@pytest.mark.parametrize("name", SHAPES)
def test_layers_of_several_shapes(name: str, tmp_path: Path) -> None:
    build = SHAPES[name]
    shape = read_shape(make(tmp_path / "a.gguf", build))
    head = build.head or build.width // build.heads
    assert len(shape.layers) == build.layers
    assert {(layer.key_values, layer.value_values) for layer in shape.layers} == {
        (build.kv_heads * head,) * 2
    }
    assert shape.tied == build.tied
    experts = 3 * build.feed_forward * build.width * 2 * build.experts
    rest = shape.layers[0].weight_bytes - experts
    read = rest + (experts * build.experts_used // build.experts if build.experts else 0)
    assert shape.layers[0].read_bytes == read
    assert shape.input_bytes == build.vocabulary * build.width * 2
    assert shape.quant == "F16"


def test_each_layer_may_use_another_number_of_experts(tmp_path: Path) -> None:
    assert read_shape(tiny.mixture(tmp_path / "a.gguf", used=[1, 3])).experts_used == 3


def test_embeddings_of_each_layer_are_not_part_of_the_output(tmp_path: Path) -> None:
    def layer_table(recipe: tiny.Recipe) -> None:
        recipe.matrix("per_layer_token_embd", 300, 128)

    plain = read_shape(tiny.llama(tmp_path / "a.gguf"))
    shape = read_shape(tiny.llama(tmp_path / "b.gguf", adjust=layer_table))
    assert plain.layer_table_bytes == 0
    assert shape.layer_table_bytes > 0
    assert shape.output_bytes == plain.output_bytes
    assert shape.read_bytes == plain.read_bytes
    assert shape.weight_bytes == plain.weight_bytes + shape.layer_table_bytes


def test_windows_of_every_sixth_layer(tmp_path: Path) -> None:
    shape = read_shape(make(tmp_path / "a.gguf", SHAPES["sliding window"]))
    assert [layer.window for layer in shape.layers] == [512, 512, 512, 512, 512, None, 512, 512]


def test_windows_that_the_header_lists(tmp_path: Path) -> None:
    recipe = tiny.Recipe(tmp_path / "a.gguf", "gemma3")
    tiny._shape(recipe)
    recipe.writer.add_sliding_window(16)
    recipe.writer.add_array("gemma3.attention.sliding_window_pattern", [False, True])
    recipe.matrix("token_embd", 8, tiny.WIDTH)
    assert [layer.window for layer in read_shape(recipe.write()).layers] == [None, 16]


def test_a_window_that_llama_cpp_ignores(tmp_path: Path) -> None:
    def window(recipe: tiny.Recipe) -> None:
        recipe.writer.add_sliding_window(16)

    shape = read_shape(tiny.llama(tmp_path / "a.gguf", adjust=window))
    assert {layer.window for layer in shape.layers} == {None}


def test_a_recurrent_model_has_state_and_no_cache(tmp_path: Path) -> None:
    shape = read_shape(tiny.recurrent(tmp_path / "a.gguf"))
    inner, state, kernel = 2 * tiny.WIDTH, 16, 4
    assert {layer.key_values for layer in shape.layers} == {0}
    assert {layer.state_bytes for layer in shape.layers} == {4 * inner * (state + kernel - 1)}


def test_heads_of_each_layer(tmp_path: Path) -> None:
    recipe = tiny.Recipe(tmp_path / "a.gguf", "openelm")
    recipe.writer.add_embedding_length(64)
    recipe.writer.add_block_count(2)
    recipe.writer.add_head_count([4, 2])
    recipe.writer.add_head_count_kv([2, 1])
    recipe.writer.add_key_length(16)
    recipe.writer.add_value_length(8)
    recipe.matrix("token_embd", 8, 64)
    for layer in range(2):
        recipe.matrix(f"blk.{layer}.attn_qkv", 64, 64)
    shape = read_shape(recipe.write())
    assert [(layer.key_values, layer.value_values) for layer in shape.layers] == [(32, 16), (16, 8)]
    assert (shape.heads, shape.attention_width) == (4, 64)


def test_prediction_layers_are_left_out(tmp_path: Path) -> None:
    def predict(recipe: tiny.Recipe) -> None:
        recipe.writer.add_uint32("llama.nextn_predict_layers", 1)

    assert len(read_shape(tiny.llama(tmp_path / "a.gguf", adjust=predict)).layers) == tiny.LAYERS - 1


@pytest.mark.parametrize(("declared", "name"), [(0, "F32"), (15, "F32"), (None, "F32")])
def test_a_declared_quant_that_cannot_be_true_is_not_believed(
    tmp_path: Path, declared: int | None, name: str
) -> None:
    def declare(recipe: tiny.Recipe) -> None:
        if declared is not None:
            recipe.writer.add_file_type(declared)

    assert read_shape(tiny.llama(tmp_path / "a.gguf", adjust=declare)).quant == name


@pytest.mark.slow
def test_ranges_of_a_large_file_are_few(tmp_path: Path) -> None:
    path = make(tmp_path / "a.gguf", Build(vocabulary=120_000, width=4096, bare=True))
    asked: list[tuple[int, int]] = []
    shape = shape_of_parts(((ranges_of(path, asked), path.stat().st_size),), "far away")
    assert replace(shape, name="") == replace(read_shape(path), name="")
    assert len(asked) <= 3
    assert sum(count for _, count in asked) < 20 << 20 < path.stat().st_size
    assert [start for start, _ in asked] == sorted({start for start, _ in asked})


def of_architecture(path: Path, architecture: str, layers: int, **numbers: object) -> tuple[LayerShape, ...]:
    """Return the layers of a model with one head of four numbers."""
    recipe = tiny.Recipe(path, architecture)
    recipe.writer.add_embedding_length(4)
    recipe.writer.add_block_count(layers)
    recipe.writer.add_head_count(1)
    for key, value in numbers.items():
        name = f"{architecture}.attention.{key}"
        if isinstance(value, list):
            recipe.writer.add_array(name, value)
        else:
            recipe.writer.add_uint32(name, value)
    recipe.matrix("token_embd", 8, 4)
    for layer in range(layers):
        recipe.matrix(f"blk.{layer}.attn_k", 4, 4)
    return read_shape(recipe.write()).layers


def test_a_number_for_each_of_many_layers(tmp_path: Path) -> None:
    heads = [1, 0] * 50
    layers = of_architecture(tmp_path / "a.gguf", "openelm", 100, head_count_kv=heads)
    assert [layer.key_values for layer in layers] == [4 * count for count in heads]


@pytest.mark.parametrize(
    ("architecture", "layers", "windows"),
    [
        ("exaone4", 30, (None, None, None, None)),  # only the large one has windows
        ("exaone4", 64, (16, 16, 16, None)),
        ("llama4", 8, (8192, 8192, 8192, None)),  # whatever its header says
        ("smallthinker", 8, (None, 16, 16, 16)),
        ("phi3", 8, (None, None, None, None)),
    ],
)
def test_windows_as_llama_cpp_knows_them(
    architecture: str, layers: int, windows: tuple[int | None, ...], tmp_path: Path
) -> None:
    found = of_architecture(tmp_path / "a.gguf", architecture, layers, sliding_window=16)
    assert tuple(layer.window for layer in found[:4]) == windows


@pytest.mark.parametrize(
    ("architecture", "numbers", "own"),
    [("gemma3n", {}, 20), ("gemma4", {"shared_kv_layers": 5}, 25), ("llama", {}, 30)],
)
def test_layers_that_look_into_the_cache_of_others(
    architecture: str, numbers: dict[str, object], own: int, tmp_path: Path
) -> None:
    layers = of_architecture(tmp_path / "a.gguf", architecture, 30, **numbers)
    assert [layer.key_values > 0 for layer in layers] == [True] * own + [False] * (30 - own)


@pytest.mark.parametrize(
    ("told", "believed"), [(0.5, 0.5), (0.0, 0.0), (1.0, 1.0), (7.0, None), (-1.0, None)]
)
def test_a_share_that_cannot_be_is_not_believed(told: float, believed: float | None, tmp_path: Path) -> None:
    def tell(recipe: tiny.Recipe) -> None:
        recipe.writer.add_float32("localspec.acceptance", told)

    assert read_shape(tiny.llama(tmp_path / "a.gguf", adjust=tell)).acceptance == believed
