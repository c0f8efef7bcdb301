from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from localspec.hardware.memory.needs import expected_of
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


def test_layers_on_cards_are_expected_there(demo_target: Path) -> None:
    options = ModelOptions(demo_target, devices=("CUDA0", "CUDA1"), gpu_layers=3, tensor_split=(1.0, 2.0))
    needs = {need.device: need for need in expected_of(OpenContext(), options)}  # type: ignore[arg-type]
    assert needs["CUDA0"].weights > 0
    assert needs["CUDA1"].weights > needs["CUDA0"].weights  # it holds what follows the layers
    assert needs["CPU"].weights > 0
