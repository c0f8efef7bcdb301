"""What a header says of heads: llama.cpp would end the process where it is not looked at first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from localspec.errors import PairingError
from localspec.gguf import Header, Scalar, Tensor
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.models.heads import check_head, head_for, head_kind, head_part, own_head, unsupported_draft
from localspec.models.pairing import may_serve
from localspec.models.shape import read_draft_shape, read_shape
from localspec.types.models import ModelOptions
from tests.made_models import LAYERS, eagle3, hybrid

Value = Scalar | tuple[float, ...]


def header(architecture: str, tensors: tuple[str, ...] = (), name: str = "target", **values: Value) -> Header:
    scalars: dict[str, Scalar] = {"general.name": name}
    numbers = {}
    for key, value in values.items():
        full = f"{architecture}.{key}"
        if isinstance(value, tuple):
            numbers[full] = value
        else:
            scalars[full] = value
    listed = tuple(Tensor(each, 0, (4, 4), 16, 64) for each in tensors)
    return Header(Path(f"{name}.gguf"), architecture, scalars, numbers, {}, listed, 16, 64, 0, 0)


QWEN = header(
    "qwen35",
    ("blk.0.attn_norm.weight", "blk.4.nextn.eh_proj.weight"),
    block_count=5, nextn_predict_layers=1, embedding_length=64,
)  # fmt: skip
LLAMA = header("llama", ("blk.0.attn_norm.weight",), block_count=6, embedding_length=192)
EAGLE = header(
    "eagle3", name="head", block_count=1, embedding_length=192, target_layers=(1.0, 3.0, 5.0),
    target_hidden_size=192,
)  # fmt: skip


def changed(of: Header, **values: Value) -> Header:
    """Return a header with other values."""
    other = header(of.architecture, (), "", **values)
    return replace(of, values={**of.values, **other.values, "general.name": of.values["general.name"]},
                   numbers={**of.numbers, **other.numbers})  # fmt: skip


def test_a_head_in_the_targets_own_file_is_known_by_its_tensors() -> None:
    assert own_head(QWEN) == (True, "")
    assert own_head(LLAMA) == (False, "")


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (replace(QWEN, tensors=QWEN.tensors[:1]), "its file lacks it: blk.4.nextn.eh_proj.weight is missing"),
        (changed(QWEN, nextn_predict_layers=3), "has 3 MTP blocks; LocalSpec drafts with heads of one"),
        (header("step35", block_count=5, nextn_predict_layers=1), "LocalSpec cannot draft yet"),
        (header("graniteswitch", block_count=5, nextn_predict_layers=1), ""),
    ],
)
def test_a_head_that_cannot_be_used_is_reported(model: Header, told: str) -> None:
    usable, why = own_head(model)
    assert not usable
    assert told in why
    assert bool(told) == bool(why)


def test_kinds_of_heads() -> None:
    assert head_kind(EAGLE) == "eagle3"
    assert head_kind(QWEN) is None
    assert head_kind(replace(QWEN, tensors=QWEN.tensors[1:])) == "mtp"
    assert head_kind(LLAMA) is None


def test_a_head_that_fits() -> None:
    check_head(LLAMA, EAGLE)
    check_head(QWEN, replace(QWEN, tensors=QWEN.tensors[1:]))


@pytest.mark.parametrize(
    ("draft", "told"),
    [
        (changed(EAGLE, target_hidden_size=64), "made for a target 64 numbers wide, this one has 192"),
        (changed(EAGLE, target_layers=(1.0, 3.0, 6.0)), "reads layers 1, 3, 6 of its target, which has 6"),
        (changed(EAGLE, target_layers=(-1.0, 3.0, 5.0)), "reads layers -1, 3, 5"),
        (changed(EAGLE, target_layers=(1.0, 3.0)), "names 2 layers of its target, not 3"),
        (changed(EAGLE, embedding_length=64), "borrows tensors of its target, which is 192 numbers wide"),
    ],
)
def test_an_eagle3_head_for_another_target(draft: Header, told: str) -> None:
    with pytest.raises(PairingError, match=r"cannot draft for target\.gguf") as error:
        check_head(LLAMA, draft)
    assert told in error.value.message


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [(5, 8192), (-1, 5)])
def test_a_head_that_drafts_tokens_which_are_none(
    demo_target: Path, tmp_path: Path, tokens: tuple[int, ...]
) -> None:
    """llama.cpp ends the process where it puts a row of logits to such a token."""
    few = eagle3(tmp_path / "few.gguf", drafted=2)
    assert head_for(ModelOptions(demo_target), ModelOptions(few)) == "eagle3"
    reader = gguf.GGUFReader(few, "r+")
    found = next(tensor for tensor in reader.tensors if tensor.name == "d2t")
    found.data[:] = tokens
    reader.data.flush()
    with pytest.raises(PairingError, match="its d2t goes beyond 8,192 tokens"):
        head_for(ModelOptions(demo_target), ModelOptions(few))


def test_targets_that_hand_out_nothing() -> None:
    with pytest.raises(PairingError, match="does not hand out what the layers of a mamba read"):
        check_head(replace(LLAMA, architecture="mamba"), EAGLE)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (LLAMA, "its MTP head is of a qwen35, the target is a llama"),
        (changed(QWEN, embedding_length=128), "4 layers, 64 numbers wide; this one has 4, 128 numbers wide"),
        (changed(QWEN, block_count=9), "made for a target of 4 layers"),
    ],
)
def test_an_mtp_head_for_another_target(target: Header, told: str) -> None:
    with pytest.raises(PairingError) as error:
        check_head(target, replace(QWEN, tensors=QWEN.tensors[1:]))
    assert told in error.value.message


def test_a_head_of_a_kind_that_is_not_known(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "assistant.gguf", "gemma4-assistant")
    writer.add_name("Helper")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    told = unsupported_draft(tmp_path / "assistant.gguf")
    assert told == "Helper is a Gemma 4 assistant, which LocalSpec does not support yet: it continues without"
    assert unsupported_draft(tmp_path / "nothing.gguf") == ""


@pytest.mark.slow
def test_a_head_serves_the_target_that_it_was_made_for(
    demo_target: Path, made_eagle3: Path, made_hybrid: Path
) -> None:
    assert may_serve(demo_target, made_eagle3).fits
    refused = may_serve(made_hybrid, made_eagle3)
    assert not refused.fits
    assert "cannot draft for" in refused.reason


@pytest.mark.slow
def test_a_head_that_borrows_sits_with_its_target(
    demo_target: Path, made_eagle3: Path, tmp_path: Path
) -> None:
    on_card, beside = ModelOptions(demo_target, devices=("CUDA0",)), ModelOptions(made_eagle3, gpu_layers=0)
    with pytest.raises(PairingError, match="is placed on another device"):
        head_for(on_card, beside)
    assert head_for(on_card, replace(beside, devices=("CUDA0",), gpu_layers=2)) == "eagle3"
    own = eagle3(tmp_path / "own.gguf", own=True)
    assert head_for(on_card, replace(beside, path=own)) == "eagle3"


@pytest.mark.slow
def test_shapes_of_heads(made_hybrid: Path, demo_target: Path, made_eagle3: Path) -> None:
    target, head = read_shape(made_hybrid), read_draft_shape(made_hybrid, made_hybrid)
    assert len(target.layers) == LAYERS
    assert head.is_head
    assert head.weight_bytes < target.weight_bytes / 20
    assert head.read_bytes > target.output_bytes
    assert head.layers[0].key_values == 32
    borrowing = read_draft_shape(demo_target, made_eagle3)
    assert borrowing.read_bytes == borrowing.weight_bytes + read_shape(demo_target).output_bytes
    assert not read_draft_shape(demo_target, demo_target).is_head


def test_the_part_of_a_file_that_is_its_head(made_hybrid: Path) -> None:
    from localspec.gguf import read_header

    part = head_part(read_header(made_hybrid))
    assert {tensor.name.split(".")[1] for tensor in part.tensors} == {str(LAYERS)}
    assert part.weight_bytes == sum(tensor.bytes for tensor in part.tensors)


def test_a_file_that_claims_a_head_that_it_lacks(tmp_path: Path) -> None:
    claiming = hybrid(tmp_path / "claiming.gguf", head=False, claims_head=True)
    with pytest.raises(PairingError, match="its file lacks it"):
        head_for(ModelOptions(claiming), ModelOptions(claiming))
    assert head_for(ModelOptions(claiming), None) is None
    with Runtime.open(OpenPlan(ModelOptions(claiming, gpu_layers=0))) as opened:
        assert "claims an MTP head, but its file lacks it" in opened.notes[0]
        assert opened.target.parameters > 0


def test_a_file_of_a_head_alone(made_hybrid: Path, tmp_path: Path) -> None:
    alone = hybrid(tmp_path / "alone.gguf", trunk=False)
    shape = read_draft_shape(made_hybrid, alone)
    assert shape.is_head
    assert len(shape.layers) == 1
    assert head_for(ModelOptions(made_hybrid), ModelOptions(alone)) == "mtp"
    for draft in (None, ModelOptions(made_hybrid)):
        with pytest.raises(PairingError, match=r"alone\.gguf has an MTP head but no model"):
            head_for(ModelOptions(alone), draft)
