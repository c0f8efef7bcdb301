"""A bigger model with the same function: its tensors are checked, and what llama.cpp computes with them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.errors import ModelFileError, UserError
from training.inflate import Shape, inflate
from training.scorer import Scorer

# The draft is 128 wide, with 2 layers and an FFN of 256; four times the width halves the norms exactly.
SHAPE = Shape(dim=512, layers=4, ffn=320)
TEXT = (
    "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\nHello! How can I help you today?<|im_end|>\n"
)


@cache  # reading takes a third of a second
def weights(path: Path) -> dict[str, NDArray[np.float32]]:
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in gguf.GGUFReader(path).tensors
    }


@cache
def metadata(path: Path) -> dict[str, object]:
    return {
        key: field.contents()
        for key, field in gguf.GGUFReader(path).fields.items()
        if not key.startswith("GGUF.")
    }


@pytest.fixture(scope="module")
def inflated(demo_draft: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inflated") / "big.gguf"
    inflate(demo_draft, path, SHAPE, seed=3)
    return path


@pytest.mark.slow
def test_shape_is_as_asked(inflated: Path) -> None:
    fields = metadata(inflated)
    assert fields["llama.embedding_length"] == 512
    assert fields["llama.block_count"] == 4
    assert fields["llama.feed_forward_length"] == 320
    assert fields["llama.attention.head_count"] == 8
    assert fields["localspec.inflated"] is True
    assert {
        name: weight.shape for name, weight in weights(inflated).items() if name.startswith("blk.1.")
    } == {
        "blk.1.attn_norm.weight": (512,),
        "blk.1.ffn_norm.weight": (512,),
        "blk.1.attn_q.weight": (512, 512),
        "blk.1.attn_k.weight": (512, 512),
        "blk.1.attn_v.weight": (512, 512),
        "blk.1.attn_output.weight": (512, 512),
        "blk.1.ffn_gate.weight": (320, 512),
        "blk.1.ffn_up.weight": (320, 512),
        "blk.1.ffn_down.weight": (512, 320),
    }


@pytest.mark.slow
def test_everything_else_in_the_metadata_stays(inflated: Path, demo_draft: Path) -> None:
    old, new = metadata(demo_draft), metadata(inflated)
    same = {key for key in old if key.startswith(("tokenizer.", "localspec.", "general.licen"))}
    assert len(same) > 8
    assert {key: new[key] for key in same} == {key: old[key] for key in same}
    assert set(old) - set(new) == {"general.size_label"}


@pytest.mark.slow
def test_new_layers_add_nothing_and_old_ones_keep_their_weights(inflated: Path, demo_draft: Path) -> None:
    old, new = weights(demo_draft), weights(inflated)
    for layer in (1, 2):  # the two old layers are the first and the last of the new ones
        for part in ("attn_output", "ffn_down"):
            assert not new[f"blk.{layer}.{part}.weight"].any()
    for origin, layer in ((0, 0), (1, 3)):
        down, output = new[f"blk.{layer}.ffn_down.weight"], new[f"blk.{layer}.attn_output.weight"]
        np.testing.assert_array_equal(down[:128, :256], old[f"blk.{origin}.ffn_down.weight"])
        assert not down[128:].any()
        assert not down[:, 256:].any()
        assert not output[128:].any()
        assert not output[:, 128:].any()


def test_norms_see_the_same_average(inflated: Path, demo_draft: Path) -> None:
    old, new = weights(demo_draft), weights(inflated)
    norm = new["output_norm.weight"][:128]
    np.testing.assert_array_equal(norm, old["output_norm.weight"] / 2)
    epsilon = "llama.attention.layer_norm_rms_epsilon"
    assert metadata(inflated)[epsilon] == pytest.approx(float(str(metadata(demo_draft)[epsilon])) / 4)


@pytest.mark.slow
def test_the_same_seed_writes_the_same_file(inflated: Path, demo_draft: Path, tmp_path: Path) -> None:
    for seed, is_same in ((3, True), (4, False)):
        again = tmp_path / f"{seed}.gguf"
        inflate(demo_draft, again, SHAPE, seed=seed)
        assert (again.read_bytes() == inflated.read_bytes()) is is_same


def test_llama_cpp_computes_the_same_function(inflated: Path, demo_draft: Path) -> None:
    with Scorer(demo_draft, threads=1, context=64) as small, Scorer(inflated, threads=1, context=64) as big:
        ids = small.tokenize(TEXT)
        assert ids == big.tokenize(TEXT)
        ours, theirs = small.logits(ids), big.logits(ids)
    assert np.abs(ours - theirs).max() < 1e-3


@pytest.mark.slow
def test_a_shape_of_none_keeps_the_small_one(demo_draft: Path, tmp_path: Path) -> None:
    path = tmp_path / "same.gguf"
    inflate(demo_draft, path, Shape(None, None, None), seed=1)
    old, new = weights(demo_draft), weights(path)
    assert set(old) == set(new)
    assert all(np.array_equal(old[name], new[name]) for name in old)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "complaint"),
    [
        (Shape(64, 4, 320), "dim 64 is smaller than the model's 128"),
        (Shape(512, 1, 320), "layers 1 is smaller"),
        (Shape(512, 4, 100), "ffn 100 is smaller"),
        (Shape(200, 4, 320), "no multiple of the head width 64"),
    ],
)
def test_impossible_shapes_are_rejected(
    demo_draft: Path, tmp_path: Path, shape: Shape, complaint: str
) -> None:
    out = tmp_path / "never.gguf"
    with pytest.raises(UserError, match=complaint):
        inflate(demo_draft, out, shape, seed=1)
    assert not out.exists()


def test_other_architectures_are_rejected(tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(other, "gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match="not of the llama architecture"):
        inflate(other, tmp_path / "never.gguf", SHAPE, seed=1)
