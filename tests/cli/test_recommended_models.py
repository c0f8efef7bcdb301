"""What twelve described machines, and two more, are offered first: a table to read line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.app.recommendation import RankedPair, recommend
from localspec.hardware.described import read_machine
from localspec.hardware.device_info import Machine
from localspec.models.catalogue import shipped
from tests.hardware.machines import DESCRIBED, card, cpu, described, machine

pytestmark = pytest.mark.slow
FIRST_THREE = {
    "cpu-16gb": ("lfm2.5-8b-a1b", "granite-4.0-h-tiny", "lfm2.5-1.2b"),
    "cpu-32gb": ("lfm2.5-8b-a1b", "gpt-oss-20b", "gemma-4-26b-a4b"),
    "cpu-64gb": ("gpt-oss-20b", "gemma-4-26b-a4b", "glm-4.7-flash"),
    "gpu-8gb-rtx-5060": ("qwen3.6-35b-a3b", "gemma-4-26b-a4b", "qwen3.5-4b"),
    "gpu-12gb-rtx-4070": ("qwen3.6-35b-a3b", "gemma-4-26b-a4b", "gpt-oss-20b"),
    "gpu-16gb-rtx-5060-ti": ("qwen3.6-35b-a3b", "gemma-4-26b-a4b", "gpt-oss-20b"),
    "gpu-24gb-rtx-3090": ("qwen3.8-27b", "qwen3.6-35b-a3b", "gemma-4-26b-a4b"),
    "gpu-32gb-rtx-5090": ("qwen3.8-27b", "qwen3.6-35b-a3b", "gemma-4-26b-a4b"),
    "two-gpus-12gb-24gb": ("qwen3.8-27b-draft", "qwen3.6-35b-a3b", "gemma-4-26b-a4b"),
    "unified-16gb-apple-m4": ("qwen3.5-4b", "granite-4.1-3b", "lfm2.5-8b-a1b"),
    "unified-128gb-apple-m4-max": ("qwen3.8-27b", "qwen3.6-35b-a3b", "gemma-4-26b-a4b"),
    "unified-128gb-ryzen-ai-max-395": ("qwen3.6-35b-a3b", "gemma-4-26b-a4b", "gpt-oss-120b"),
}
"""By `localspec recommend --machine FILE`. Small models on CPUs, mixtures of experts on CPUs and small GPUs,
the best dense model where a GPU holds it."""


def offered(where: Machine, task: str | None = None) -> list[RankedPair]:
    return [found for found in recommend(where, shipped().pairs, (), task=task) if found.placement]


def test_every_described_machine_is_in_the_table() -> None:
    assert sorted(FIRST_THREE) == sorted(DESCRIBED)


@pytest.mark.parametrize("name", FIRST_THREE)
def test_what_a_described_machine_is_offered_first(name: str) -> None:
    found = offered(described(name))
    assert tuple(each.pair.name for each in found[:3]) == FIRST_THREE[name]
    for each in found[:3]:
        assert each.placement is not None
        assert (each.placement.tokens_per_s or 0) >= 10  # as fast as one reads
        assert each.placement.target.context >= 8192


def test_a_small_gpu_beside_much_memory_runs_mixtures_of_experts(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.write_text(
        'memory = "64 GB"\ncores = 8\nrate = "83 GB/s"\n[[gpu]]\nmemory = "12 GB"\nrate = "504 GB/s"\n',
        encoding="utf-8",
    )
    found = offered(read_machine(path))
    assert [each.pair.name for each in found[:3]] == ["qwen3.6-35b-a3b", "gemma-4-26b-a4b", "gpt-oss-20b"]
    best = found[0].placement
    assert best is not None
    assert best.target.experts_at_home > 0  # and all other weights on the GPU
    assert sum(best.target.layers) == 40


def test_two_cores_are_offered_a_mixture_with_a_billion_active_parameters_before_a_coder_of_2024() -> None:
    names = [each.pair.name for each in offered(machine(processor=cpu(20, 2), rate=25))]
    assert names[0] == "granite-4.0-h-tiny"
    assert "lfm2.5-8b-a1b" in names[1:3]
    assert names.index("qwen2.5-coder-1.5b") > 5


@pytest.mark.parametrize(("task", "first"), [("coding", "qwen3-coder-next"), (None, "gpt-oss-20b")])
def test_a_coder_comes_first_for_coding_alone(task: str | None, first: str) -> None:
    assert offered(described("cpu-64gb"), task)[0].pair.name == first


def test_a_draft_model_for_a_second_gpu_is_offered_only_where_there_is_one() -> None:
    one, two = ("gpu-24gb-rtx-3090", "two-gpus-12gb-24gb")
    assert offered(described(one))[0].pair.draft is None
    best = offered(described(two))[0].placement
    assert best is not None
    assert best.draft is not None
    assert (best.mode, set(best.draft.devices) & set(best.target.devices)) == ("ssd", set())


def test_a_gpu_that_is_too_small_for_anything_is_no_hindrance() -> None:
    assert offered(machine((card(0, 1), 100), processor=cpu(20, 4)))
