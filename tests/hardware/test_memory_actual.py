from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.hardware.memory.needs import DeviceNeed, expected_of
from localspec.inference.runtime import Runtime
from localspec.types import ModelOptions


def test_open_models_log_what_they_take_beside_what_was_expected(
    demo_target: Path, demo_draft: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "localspec.memory"),
        Runtime.open(ModelOptions(demo_target), ModelOptions(demo_draft)),
    ):
        lines = [record.getMessage() for record in caplog.records if record.name == "localspec.memory"]
    assert [line.split(":")[0] for line in lines] == ["memory of demo-target", "memory of demo-draft"]
    errors = [float(error) for line in lines for error in re.findall(r"\(([+-][\d.]+) %\)", line)]
    assert len(errors) == 2
    assert all(abs(error) < 3 for error in errors)


class OpenContext:
    """What the formula asks of a context."""

    context_size = 1024
    max_sequences = 1


def foreseen(options: ModelOptions, *cards: str) -> dict[str, DeviceNeed]:
    return {need.device: need for need in expected_of(OpenContext(), options, cards)}  # type: ignore[arg-type]


def test_layers_on_cards_are_expected_there(demo_target: Path) -> None:
    options = ModelOptions(demo_target, devices=("CUDA0", "CUDA1"), gpu_layers=3, tensor_split=(1.0, 2.0))
    needs = foreseen(options, "CUDA0", "CUDA1")
    assert needs["CUDA0"].weights > 0
    assert needs["CUDA1"].weights > needs["CUDA0"].weights  # it holds what follows the layers
    assert needs["CPU"].weights > 0


@pytest.mark.parametrize(
    ("given", "layers"),
    [
        (ModelOptions(Path(), gpu_layers=99, tensor_split=(1.0, 1.0)), (4, 2)),  # the output is the seventh
        (ModelOptions(Path(), gpu_layers=99, tensor_split=(1.0, 1.0), devices=("B", "A")), (2, 4)),
        (ModelOptions(Path(), tensor_split=(300.0, 100.0)), (6, 0)),
        (ModelOptions(Path(), gpu_layers=5, tensor_split=(1.0,)), (4, 0)),
        (ModelOptions(Path()), (4, 2)),
    ],
)
def test_shares_are_divided_as_llama_cpp_does(
    given: ModelOptions, layers: tuple[int, int], demo_target: Path
) -> None:
    needs = foreseen(replace(given, path=demo_target), "A", "B")
    one = foreseen(ModelOptions(demo_target), "A")["A"].cache // 6
    assert tuple(needs[card].cache // one if card in needs else 0 for card in ("A", "B")) == layers


def test_what_is_bound_to_one_of_two_cards_is_expected_on_it(demo_target: Path) -> None:
    options = ModelOptions(demo_target, devices=("A", "B"), split_mode="none", main_gpu=1)
    assert set(foreseen(options, "B")) == {"B", "CPU"}
