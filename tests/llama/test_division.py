"""How a split by tensor divides weights between devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.llama.division import DividedWeights
from localspec.models.shape import read_shape
from tests import made_models
from tests.hardware.shapes import SHAPES, make

EIGHT_HEADS = DividedWeights(1000, 1000, width=8 * 128, group=128, block=32)


@pytest.mark.parametrize(
    ("weights", "shares", "rotation", "parts"),
    [
        (EIGHT_HEADS, (1, 1), 0, (0.5, 0.5)),
        (EIGHT_HEADS, (3, 1), 1, (0.75, 0.25)),
        (EIGHT_HEADS, (1, 1, 1), 0, (2 / 8, 3 / 8, 3 / 8)),
        (EIGHT_HEADS, (1, 1, 1), 2, (3 / 8, 3 / 8, 2 / 8)),  # the first in turn is rounded down
        (replace(EIGHT_HEADS, block=256), (3, 1), 0, (0.75, 0.25)),  # a block is as wide as two heads
        (replace(EIGHT_HEADS, block=256), (5, 3), 0, (0.5, 0.5)),
        (replace(EIGHT_HEADS, group=1024), (1, 1), 0, (0, 1)),
        (replace(EIGHT_HEADS, group=1024), (1, 1), 1, (1, 0)),
        (replace(EIGHT_HEADS, width=4 * 80, group=80), (1, 1), 0, (0, 1)),  # small ones are joined for two
        (replace(EIGHT_HEADS, width=4 * 80, group=80), (1, 1, 1, 1), 0, (0, 0.5, 0, 0.5)),
        (EIGHT_HEADS, (1, 0), 0, (1, 0)),
    ],
)
def test_parts_are_whole_groups_and_blocks(
    weights: DividedWeights, shares: tuple[float, ...], rotation: int, parts: tuple[float, ...]
) -> None:
    assert weights.parts(shares, rotation) == pytest.approx(parts)


@pytest.mark.parametrize("name", SHAPES)
def test_devices_hold_their_part_of_matrices_and_caches_and_all_of_the_rest(
    name: str, tmp_path: Path
) -> None:
    shape = read_shape(make(tmp_path / "a.gguf", SHAPES[name]))
    parts = shape.divided((1.0, 1.0))
    for layer, *held in zip(shape.layers, *(part.layers for part in parts), strict=True):
        assert layer.attention is not None
        assert layer.feed_forward is not None
        divided = layer.attention.weight_bytes + layer.feed_forward.weight_bytes
        whole = layer.weight_bytes - divided
        assert 0 < whole < 0.1 * divided  # norms and the router
        assert sum(each.weight_bytes for each in held) == divided + 2 * whole
        assert sum(each.key_values for each in held) == layer.key_values
        assert all(each.read_bytes <= each.weight_bytes for each in held)
    outputs = sum(part.output_bytes for part in parts)
    tied = SHAPES[name].tied
    assert outputs == pytest.approx((2 if tied else 1) * shape.output_bytes, rel=0.01)


def test_a_recurrent_state_is_divided_with_its_layer(made_hybrid: Path, tmp_path: Path) -> None:
    shape = read_shape(made_hybrid)
    first, second = shape.divided((1.0, 1.0))
    assert first.state_bytes + second.state_bytes == shape.state_bytes
    windows = read_shape(made_models.windowed(tmp_path / "a.gguf"))
    held = [len({each.key_values for each in part.layers}) for part in windows.divided((1.0, 1.0))]
    assert held == [2, 2]  # one head is here in one layer, there in the next
