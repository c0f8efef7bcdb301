"""Experts in RAM beside real GPUs, which copy from there what a prompt needs, and splits by tensor.

Servers that stand in for GPUs (tests/llama/test_experts.py) compute nothing for the CPU, and copy nothing.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from localspec.child_process import values_of
from localspec.hardware.device_info import DeviceInfo, Machine, MemoryRate
from localspec.hardware.memory.needs import DeviceNeed, LayerSplit, MemoryRequest, estimate, needs_of
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.hardware.placement.plan import plan_pair
from localspec.inference.worker.client import Worker
from localspec.llama.library import logger
from localspec.llama.model import Model
from localspec.llama.recurrent import open_context
from localspec.models.pair_files import PairFiles
from localspec.models.pair_request import ModelRequest, PairRequest
from localspec.models.shape import read_shape
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings
from tests.gpu.conftest import COLD_S, Row
from tests.hardware.shapes import SHAPES, Build, make
from tests.inference.runtimes import OFF, greedy, text_of
from tests.llama import tiny
from tests.llama.test_experts import PLACES

pytestmark = pytest.mark.gpu

GIB = 2**30
SHORT = "Once upon a time"
LONG = "Once upon a time there was a mixture of experts. " * 6  # 294 tokens: as wide as a GPU takes it on
FORCED = EngineSettings(mode="sd", draft_length=4, min_confidence=0.0)
KINDS = {"off": OFF, "sd": FORCED}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("experts")


@pytest.fixture(scope="module")
def pair(folder: Path, cards: tuple[str, ...]) -> OpenPlan:
    """Return a mixture on a GPU, and its draft model on the processor."""
    mixture, draft = tiny.mixture(folder / "mixture.gguf"), tiny.llama(folder / "draft.gguf")
    target = ModelOptions(mixture, 512, devices=cards[:1], threads=1)
    return OpenPlan(target, ModelOptions(draft, 512, devices=(), threads=1))


@pytest.fixture(scope="module")
def wide_mixture(folder: Path) -> Path:
    return make(folder / "wide.gguf", SHAPES["mixture of experts"])


def texts(models: Worker) -> dict[str, str]:
    return {
        f"{mode}, {len(prompt)} tokens": text_of([*models.generate(greedy(settings, prompt, 24))])
        for mode, settings in KINDS.items()
        for prompt in (SHORT, LONG)
    }


@pytest.fixture(scope="module")
def expected(pair: OpenPlan) -> dict[str, str]:
    """Return what the CPU writes."""
    with Worker.open(replace(pair, target=replace(pair.target, devices=()))) as models:
        return texts(models)


@pytest.mark.parametrize("place", PLACES)
def test_greedy_text_is_that_of_the_cpu(
    place: str, pair: OpenPlan, expected: dict[str, str], table: list[Row]
) -> None:
    began = time.monotonic()
    target = replace(PLACES[place], path=pair.target.path, devices=pair.target.devices)
    with Worker.open(replace(pair, target=target)) as models:
        found = texts(models)
        notes = models.notes
    table.append(Row("experts", place, f"{time.monotonic() - began:.0f} s"))
    assert found == expected
    assert [note for note in notes if "copies from directly" in note] == []


@pytest.mark.parametrize("micro_batch", [64, 512])  # less and more than a GPU takes on
def test_memory_that_a_gpu_copies_from_changes_no_text(
    micro_batch: int, pair: OpenPlan, expected: dict[str, str]
) -> None:
    target = replace(pair.target, experts_at_home=tiny.LAYERS, mmap=False, micro_batch=micro_batch)
    with Worker.open(replace(pair, target=target)) as models:
        assert texts(models) == expected
        assert [note for note in models.notes if "copies from directly" in note] == []


def taken(options: ModelOptions) -> Iterator[DeviceNeed]:
    """Yield what an open model has taken; for a child process."""
    with closing(Model.open(options)) as model:
        yield from needs_of(open_context(model, options))


@pytest.mark.parametrize(("asked", "room"), [("all", 1.0), (3, 1.0), (None, 0.8), (None, 0.7)])
def test_a_confirmed_plan_counts_what_is_taken(
    asked: int | Literal["all"] | None,
    room: float,
    wide_mixture: Path,
    cards: tuple[str, ...],
    table: list[Row],
) -> None:
    """Experts are in RAM because it is asked for, or because a GPU has no room for all of them."""
    shape = read_shape(wide_mixture)
    split = LayerSplit(cards[:1], (len(shape.layers),))
    [whole, _] = estimate(shape, MemoryRequest(split, 2048))
    free = whole.total + 2**20 - int((1 - room) * shape.expert_bytes)
    card = DeviceInfo(cards[0], "gpu", "Vulkan", "", free, free, drives_display=False)
    cpu = DeviceInfo("CPU", "cpu", "CPU", "", 8 * GIB, 8 * GIB, cores=2)
    machine = Machine((card, cpu), (MemoryRate(cards[0], 900e9), MemoryRate("CPU", 2e9)))
    target = ModelRequest(experts_at_home=asked)
    plan = plan_pair(
        PairFiles(wide_mixture), PairRequest(target, context=2048, reserve=((cards[0], 0),)), machine
    )
    assert plan.placement is not None
    planned = {need.device: need for need in plan.placement.target.needs}
    assert planned["CPU"].experts
    assert not plan.target.mmap  # of a mapped file, llama.cpp counts what lies between the weights, too
    real = {need.device: need for need in values_of(taken, COLD_S, plan.target)}
    figures = {name: (real[name].total / 2**20, planned[name].total / 2**20) for name in real}
    words = [f"{name} {of_real:.1f} of {of_plan:.1f} MiB" for name, (of_real, of_plan) in figures.items()]
    table.append(Row("memory, of plan", f"-ncmoe {asked}, {room:.0%} of room", ", ".join(words)))
    for name, need in real.items():
        assert planned[name].total == pytest.approx(need.total, rel=0.02)


class Heard(logging.Handler):
    """Keeps what llama.cpp says of the parts of its graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += re.findall(r"splits = ([^,]+)", record.getMessage())


def splits(options: ModelOptions) -> Iterator[int]:
    """Yield the parts of the graph of one token, each on another device than that before; for a child."""
    heard = Heard()
    logger.addHandler(heard)
    logger.setLevel(logging.DEBUG)
    with closing(Model.open(options, allocate=False, vocabulary=False)) as model:
        open_context(model, options)
    *_, of_token = heard.lines[-1].split(" / ")  # behind those of a whole micro-batch, if they differ
    yield int(of_token)


def test_norms_of_many_heads_stay_where_their_layers_are(folder: Path, cards: tuple[str, ...]) -> None:
    heads = Build("qwen3", layers=4, width=2048, heads=64, kv_heads=8, head=128, bare=True)
    options = ModelOptions(make(folder / "heads.gguf", heads), 2048, devices=cards[:1])
    for layers in (None, 3):  # the table of tokens is in RAM in any case
        assert [*values_of(splits, COLD_S, replace(options, gpu_layers=layers))] == [2]
