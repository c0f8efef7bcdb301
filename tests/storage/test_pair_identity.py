"""What tuned settings hold for, at its borders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.storage.pair_identity import Identity, MachineFacts, ModelFacts, changes, identify
from localspec.types.models import ModelOptions

MACHINE = MachineFacts("A processor", 8, ("CUDA0: A card",), "550.1", "0.3.36")
TUNED = Identity(MACHINE, ModelFacts("/models/large.gguf", "aa", "CUDA0"), None, 4096)


@pytest.mark.parametrize(
    ("driver", "changed"), [("550.1", False), ("", False), ("560.2", True)], ids=["same", "unknown", "new"]
)
def test_a_driver_that_no_one_knows_is_not_a_change(driver: str, changed: bool) -> None:
    now = replace(TUNED, machine=replace(MACHINE, driver=driver))
    assert bool(changes(TUNED, now)) == bool(changes(now, TUNED)) == changed


@pytest.mark.parametrize(
    ("context", "holds_to"), [(0, 0), (1, 4096), (4096, 4096), (4097, 16384), (65536, 65536)]
)
def test_contexts_of_about_the_same_size_are_alike(tmp_path: Path, context: int, holds_to: int) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    assert identify(ModelOptions(path, context=context), None, MACHINE).context == holds_to


def test_the_output_at_home_is_another_placement(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    options = ModelOptions(path, devices=("RPC0",), gpu_layers=29)
    there, home = (
        identify(replace(options, output_at_home=at_home), None, MACHINE) for at_home in (False, True)
    )
    (told,) = changes(there, home)
    assert told.endswith(
        "the target was on RPC0 (29 layers), all cores, now RPC0 (29 layers, output at home), all cores"
    )
