from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.errors import EngineError, UserError
from localspec.gguf import CHECKPOINTS
from localspec.hardware.memory.needs import (
    CacheTypes,
    LayerSplit,
    MemoryRequest,
    estimate,
    exact,
    needs_of,
)
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.contexts import Contexts
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.recurrent import open_context
from localspec.models.shape import read_shape
from localspec.types.models import ModelOptions
from tests import made_models
from tests.hardware import shapes_more
from tests.hardware.shapes import SHAPES, Build, make
from tests.llama import tiny

CPU: tuple[str, ...] = ()
ROOT = Path(__file__).parents[2]


@contextmanager
def opened(options: ModelOptions, sequences: int = 1) -> Iterator[Context]:
    with closing(Model.open(options)) as model:
        yield open_context(model, options, sequences=sequences)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_exact_and_estimate_against_a_real_load(name: str, tmp_path: Path) -> None:
    path = make(tmp_path / "a.gguf", SHAPES[name])
    options = ModelOptions(path=path, context=4096, devices=CPU)
    [foretold] = exact(options)
    with opened(options) as context:
        context.evaluate(range(3, 300), 100)
        taken = needs_of(context)
    assert [need.device for need in foretold] == [need.device for need in taken] == ["CPU"]
    assert foretold[0].total == pytest.approx(taken[0].total, rel=0.03)
    [guessed] = estimate(read_shape(path), MemoryRequest(LayerSplit(), 4096))
    assert guessed.weights == pytest.approx(taken[0].weights, rel=0.01)
    assert guessed.cache == taken[0].cache
    assert guessed.total == pytest.approx(taken[0].total, rel=0.10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense", "mixture of experts", "tied output"])
def test_exact_against_what_the_system_says(name: str, tmp_path: Path, demo_draft: Path) -> None:
    path = make(tmp_path / "a.gguf", replace(SHAPES[name], vocabulary=16384, width=512, layers=3))
    options = ModelOptions(path=path, context=1536, devices=CPU, micro_batch=64)
    command = [sys.executable, "-m", "tests.hardware.resident", str(path), str(demo_draft), "1536"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    [[foretold]] = exact(options)
    assert foretold.total == pytest.approx(int(done.stdout), rel=0.03)


def test_a_pair_is_planned_as_it_is_opened(demo_target: Path, demo_draft: Path) -> None:
    target = ModelOptions(path=demo_target, context=1024, devices=CPU)
    draft = ModelOptions(path=demo_draft, devices=CPU)
    foretold = exact(target, draft, max_fan_out=8)
    with closing(Model.open(target)) as large, closing(Model.open(draft)) as small:
        contexts = Contexts(large, small, OpenPlan(large.options, small.options, max_fan_out=8))
        assert contexts.draft is not None
        taken = (needs_of(contexts.target), needs_of(contexts.draft))
    assert foretold == taken


@pytest.mark.parametrize("name", ["dense", "mixture of experts", "sliding window", "tied output"])
@pytest.mark.parametrize(
    "asked",
    [
        MemoryRequest(LayerSplit(), 512, micro_batch=64),
        MemoryRequest(LayerSplit(), 8192, CacheTypes("q8_0", "q4_0")),
        MemoryRequest(LayerSplit(), 8192, flash_attention=False),
        MemoryRequest(LayerSplit(), 8192, swa_full=True),
        MemoryRequest(LayerSplit(), 3000, flash_attention=False, sequences=17),
        MemoryRequest(LayerSplit(), 30_000, sequences=33),
    ],
)
def test_estimates_of_other_contexts(name: str, asked: MemoryRequest, tmp_path: Path) -> None:
    path = make(tmp_path / "a.gguf", replace(SHAPES[name], bare=True))
    options = ModelOptions(
        path=path,
        context=asked.context,
        kv_type_k=asked.cache.keys,
        kv_type_v=asked.cache.values,
        flash_attention=asked.flash_attention,
        micro_batch=asked.micro_batch,
        swa_full=asked.swa_full,
    )
    with closing(Model.open(options, allocate=False)) as model:
        [planned] = needs_of(open_context(model, options, sequences=asked.sequences))
    [guessed] = estimate(read_shape(path), asked)
    assert guessed.cache == planned.cache
    assert guessed.total == pytest.approx(planned.total, rel=0.10)


@pytest.mark.parametrize("make_model", [shapes_more.hybrid, shapes_more.latent_attention])
@pytest.mark.parametrize("sequences", [1, 9])
def test_caches_of_other_kinds(make_model: Callable[[Path], Path], sequences: int, tmp_path: Path) -> None:
    options = ModelOptions(path=make_model(tmp_path / "a.gguf"), context=4096)
    with closing(Model.open(options, allocate=False)) as model:
        [planned] = needs_of(open_context(model, options, sequences=sequences))
    [guessed] = estimate(read_shape(options.path), MemoryRequest(LayerSplit(), 4096, sequences=sequences))
    assert (guessed.weights, guessed.cache) == (planned.weights, planned.cache)
    assert guessed.total == pytest.approx(planned.total, rel=0.10)


@pytest.mark.parametrize("fan_out", [None, 3, 16])
def test_states_of_a_pair_are_counted_before_it_is_opened(made_hybrid: Path, fan_out: int | None) -> None:
    """A target keeps snapshots, a draft model spare sequences; neither takes more than is planned."""
    options = ModelOptions(made_hybrid, context=1024, devices=CPU, flash_attention=False)
    shape = read_shape(made_hybrid)
    sequences = 1 if fan_out is None else 1 + shape.branches(fan_out)
    [guessed] = estimate(shape, MemoryRequest(LayerSplit(), 1024, flash_attention=False, sequences=sequences))
    with closing(Model.open(options)) as model:
        context = open_context(model, options, sequences=sequences)
        context.evaluate(range(3, 300))
        [taken] = needs_of(context)
    states = 9 if fan_out is None else sequences + 10
    assert taken.cache > (states + CHECKPOINTS) * shape.state_bytes
    assert guessed.cache == taken.cache
    assert guessed.total == pytest.approx(taken.total, rel=0.05)


@pytest.mark.parametrize("make_model", [made_models.hybrid, shapes_more.hybrid, tiny.recurrent])
@pytest.mark.parametrize("longest_draft", [0, 2, 8, None])
def test_a_target_takes_as_many_states_as_its_drafts_need(
    make_model: Callable[[Path], Path], longest_draft: int | None, tmp_path: Path
) -> None:
    path = make_model(tmp_path / "a.gguf")
    options = ModelOptions(path, 1024, devices=CPU, flash_attention=False, longest_draft=longest_draft)
    shape = read_shape(path)
    asked = MemoryRequest(LayerSplit(), 1024, flash_attention=False, longest_draft=longest_draft)
    [guessed] = estimate(shape, asked)
    with closing(Model.open(options, allocate=False)) as model:
        [planned] = needs_of(open_context(model, options))
    drafts = 8 if longest_draft is None else longest_draft
    states = 1 + (drafts if make_model is not tiny.recurrent else min(drafts, 1))
    [single] = estimate(shape, replace(asked, longest_draft=0))
    assert guessed.cache - single.cache == (states - 1) * shape.state_bytes
    assert guessed.cache == planned.cache


@pytest.mark.parametrize(("states", "branches"), [(100, 16), (30, 12), (20, 5), (1, 1), (0, 16)])
def test_states_of_a_draft_model_take_less_than_its_weights(
    made_hybrid: Path, states: int, branches: int
) -> None:
    shape = read_shape(made_hybrid)
    shape = replace(shape, layers=shape.layers[:1])  # one with a state
    layer = replace(shape.layers[0], state_bytes=shape.weight_bytes // states if states else 0)
    assert replace(shape, layers=(layer,)).branches(16) == branches


@pytest.mark.slow
def test_recurrent_state_is_counted(tmp_path: Path) -> None:
    path = tiny.recurrent(tmp_path / "a.gguf")
    [[foretold]] = exact(ModelOptions(path=path, context=512, devices=CPU))
    [guessed] = estimate(read_shape(path), MemoryRequest(LayerSplit(), 512))
    assert guessed.cache == foretold.cache > 0


@pytest.mark.slow
def test_a_model_larger_than_any_memory_is_planned_without_taking_it(tmp_path: Path) -> None:
    build = Build(layers=80, width=8192, feed_forward=65536, heads=64, vocabulary=128_000, bare=True)
    path = make(tmp_path / "a.gguf", build)
    [[need]] = exact(ModelOptions(path=path, devices=CPU))
    assert need.weights > 200 << 30
    [guessed] = estimate(read_shape(path), MemoryRequest(LayerSplit(), 8192))  # the default context
    assert guessed.total == pytest.approx(need.total, rel=0.02)


@pytest.mark.slow
def test_what_cannot_be_opened_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file") as refused:
        exact(ModelOptions(path=tmp_path / "none.gguf"))
    assert refused.value.hint
    path = tiny.llama(tmp_path / "a.gguf")
    with pytest.raises(UserError, match="no device is called 'CUDA9'"):
        exact(ModelOptions(path=path, devices=("CUDA9",)))


def test_a_file_that_kills_llama_cpp_kills_a_child_alone(tmp_path: Path) -> None:
    recipe = tiny.Recipe(tmp_path / "a.gguf", "llama")
    recipe.vocabulary()
    recipe.writer.add_context_length(64)
    recipe.writer.add_embedding_length(64)
    recipe.writer.add_block_count(0)
    recipe.ones("output_norm")
    with pytest.raises(EngineError, match="ended while it worked out its memory needs"):
        exact(ModelOptions(path=recipe.write()))


def test_a_child_that_does_not_answer(demo_target: Path) -> None:
    with pytest.raises(EngineError, match=r"longer than 0\.001 s"):
        exact(ModelOptions(path=demo_target), timeout_s=0.001)


def test_a_python_that_is_gone(demo_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(EngineError, match="cannot be started"):
        exact(ModelOptions(path=demo_target))


def test_a_build_that_cannot_tell(tiny_context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.llama.backends._NAME", "not_there")
    with pytest.raises(EngineError, match="does not report"):
        needs_of(tiny_context)


@pytest.fixture
def tiny_context(tmp_path: Path) -> Iterator[Context]:
    with opened(ModelOptions(path=tiny.llama(tmp_path / "a.gguf"), context=256)) as context:
        yield context
