"""The bundled pair on real GPUs: equal text everywhere, memory as foretold, and an end within a moment."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Timer

import pytest

from localspec.child_process import values_of
from localspec.hardware.memory.needs import DeviceNeed, MemoryRequest, by_shares, estimate, exact, needs_of
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.worker.client import Worker
from localspec.llama.context import STOPPABLE_S, Context
from localspec.llama.model import Model
from localspec.models.shape import read_shape
from localspec.types.events import Finished
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Mode
from tests import made_models
from tests.gpu.conftest import COLD_S, Row
from tests.inference.runtimes import LONG_STORY, MODES, end_of, greedy, text_of

pytestmark = pytest.mark.gpu

DRAFTED: tuple[Mode, ...] = ("sd", "ssd")
NOISE_S = 0.1  # of a machine that others use, too
LAYERS_ON_CARD = 3
_WHOLE, _CUT = LONG_STORY, LONG_STORY[: len(LONG_STORY) // 2]
EDITED = tuple(
    replace(greedy(prompt=prompt, max_tokens=24), reuses_cache=True)
    for prompt in (_CUT, _WHOLE, f"{_CUT[:-40]} Stop here.", _WHOLE)
)
"""A conversation whose middle is changed: the last part goes back further than the windows."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where both models sit."""

    name: str
    target: ModelOptions
    draft: ModelOptions


PLACES = (
    "one card",
    "split 4:3",
    "partly",
    "draft on second",
    "draft on processor",
    "split, draft on second",
)


@pytest.fixture(scope="module", params=PLACES)
def placed(
    request: pytest.FixtureRequest, cards: tuple[str, ...], demo_target: Path, demo_draft: Path
) -> Placed:
    name: str = request.param
    if "split" in name or "second" in name:
        request.getfixturevalue("second")
    target = ModelOptions(demo_target, context=2048, devices=cards[:1])
    if "split" in name:
        target = replace(target, devices=cards, tensor_split=(4.0, 3.0))
    if name == "partly":
        target = replace(target, gpu_layers=LAYERS_ON_CARD)
    devices = cards[1:] if "second" in name else cards[:1]
    draft = ModelOptions(demo_draft, context=2048, devices=() if "processor" in name else devices)
    return Placed(name, target, draft)


@pytest.fixture(scope="module")
def models(placed: Placed) -> Iterator[Worker]:
    with Worker.open(OpenPlan(placed.target, placed.draft)) as worker:
        yield worker


@pytest.fixture(scope="module")
def expected(demo_target: Path) -> str:
    """Return what the CPU writes."""
    with Worker.open(OpenPlan(ModelOptions(demo_target, context=2048, devices=()))) as worker:
        return text_of(list(worker.generate(greedy())))


@pytest.mark.parametrize("mode", MODES)
def test_greedy_text_is_that_of_the_cpu(
    models: Worker, placed: Placed, expected: str, mode: Mode, table: list[Row]
) -> None:
    settings = EngineSettings(mode=mode, draft_length=4, min_confidence=0.0)
    list(models.generate(greedy(settings)))  # every size of call once, and with it its program
    events = list(models.generate(greedy(settings)))
    summary = end_of(events).summary
    assert text_of(events) == expected
    figures = f"{summary.tokens / summary.decode_s:5.1f} tokens/s"
    if mode in DRAFTED:
        assert summary.accepted > 0
        figures += f", {summary.accepted} of {summary.drafted} accepted"
    if mode == "ssd":
        assert summary.hits > 0
        figures += f", {summary.hits} of {summary.hits + summary.misses} hits"
    table.append(Row(mode, placed.name, figures))


def test_a_long_prompt_stops_at_once_and_continues(models: Worker, placed: Placed, table: list[Row]) -> None:
    request = replace(greedy(EngineSettings(mode="off"), LONG_STORY, 8), reuses_cache=True)
    whole = text_of(list(models.generate(replace(request, reuses_cache=False))))
    took = []
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        began = time.perf_counter()
        list(models.generate(replace(request, reuses_cache=False, max_tokens=1)))
        stopped: list[float] = []

        def stop(stopped: list[float] = stopped) -> None:
            stopped.append(time.perf_counter())
            models.cancel()

        timer = Timer(share * (time.perf_counter() - began), stop)
        timer.start()
        *_, end = models.generate(replace(request, reuses_cache=False))
        ended = time.perf_counter()
        timer.join()
        if isinstance(end, Finished) and end.reason == "cancelled":
            took.append(ended - stopped[0])
        assert text_of(list(models.generate(request))) == whole
    assert took
    table.append(Row("cancel", placed.name, ", ".join(f"{1000 * seconds:.0f}" for seconds in took) + " ms"))
    if placed.name != "partly":  # what the CPU shares is read as asked
        assert min(took) <= STOPPABLE_S + NOISE_S


def _taken(options: ModelOptions) -> Iterator[tuple[tuple[DeviceNeed, ...], tuple[DeviceNeed, ...]]]:
    """Yield what a model really takes, and what the formula expects of it."""
    with closing(Model.open(options)) as model:
        context = Context(model, options)
        context.evaluate(range(3, 700), 1)
        shape, cards = read_shape(options.path), options.devices or model.cards
        layers = len(shape.layers)
        taken = layers + 1 if options.gpu_layers is None else options.gpu_layers
        split = by_shares(cards, options.tensor_split or (1.0,) * len(cards), taken, layers)
        yield needs_of(context), estimate(shape, MemoryRequest(split, context.context_size))


def test_memory_is_what_llama_cpp_and_the_formula_foretold(placed: Placed, table: list[Row]) -> None:
    options = replace(placed.target, context=8192, gpu_layers=placed.target.gpu_layers or 99)
    (foretold,) = exact(options, timeout_s=COLD_S)
    ((taken, formula),) = values_of(_taken, COLD_S, options)
    real = {need.device: need.total for need in taken}
    guess = {need.device: need.total for need in formula}
    words = [f"{name} {real[name] / 2**20:.0f} of {guess.get(name, 0) / 2**20:.0f} MiB" for name in real]
    table.append(Row("memory, of formula", placed.name, ", ".join(words)))
    margin = 0.15 if placed.name == "partly" else 0.05  # where both compute, the formula counts too much
    for need in foretold:
        assert need.total == pytest.approx(real[need.device], rel=0.05, abs=2**20)
        if need.device in (placed.target.devices or ()):
            assert guess[need.device] == pytest.approx(real[need.device], rel=margin, abs=2**20)


@pytest.mark.parametrize("place", ["one card", "partly", "split"])
def test_a_window_sized_cache_gives_the_text_of_the_cpu_after_an_edit(
    place: str, cards: tuple[str, ...], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if place == "split":
        request.getfixturevalue("second")
    options = ModelOptions(made_models.windowed(tmp_path / "windowed.gguf"), 2048, devices=(), threads=1)
    there = replace(options, devices=cards if place == "split" else cards[:1])
    if place == "partly":
        there = replace(there, gpu_layers=LAYERS_ON_CARD)
    found = []
    for where in (options, there):
        with Worker.open(OpenPlan(where)) as models:
            found.append([text_of([*models.generate(turn)]) for turn in EDITED])
    here, on_cards = found
    assert on_cards == here


@pytest.mark.usefixtures("second")
@pytest.mark.parametrize("shares", [(), (2.0, 1.0)])
def test_a_split_by_tensor_gives_the_text_of_the_cpu(
    shares: tuple[float, ...], demo_target_f32: Path, demo_draft: Path, cards: tuple[str, ...]
) -> None:
    options = ModelOptions(demo_target_f32, 2048, devices=(), threads=1)
    divided = replace(options, devices=cards, split_mode="tensor", tensor_split=shares)
    draft = ModelOptions(demo_draft, 2048, devices=(), threads=1)
    with Worker.open(OpenPlan(options)) as models:
        here = text_of([*models.generate(greedy())])
    with Worker.open(OpenPlan(divided, draft)) as models:
        for mode in MODES:
            settings = EngineSettings(mode=mode, draft_length=4, min_confidence=0.0)
            assert text_of([*models.generate(greedy(settings))]) == here
