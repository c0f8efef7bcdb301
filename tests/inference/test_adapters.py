"""LoRA adapters: what they change, and that no cache is shared between two of their settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.errors import ModelFileError, UserError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.types.models import Adapter, ModelOptions, SplitMode
from localspec.types.request import EngineSettings, Request
from tests import made_models
from tests.inference.runtimes import FORCED, GREEDY, LONG_STORY, OFF, answer

pytestmark = pytest.mark.slow

STORY = LONG_STORY[:900]
SCALES = ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (1.0, 0.5))


@pytest.fixture(scope="module")
def adapters(demo_target_f32: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Adapter, Adapter]:
    folder = tmp_path_factory.mktemp("adapters")
    one, other = (made_models.adapter(folder / f"{seed}.gguf", demo_target_f32, seed=seed) for seed in (1, 2))
    return Adapter(one), Adapter(other, 0.0)


@contextmanager
def opened(
    target: Path,
    adapters: tuple[Adapter, ...] = (),
    draft: Path | None = None,
    *,
    seats: int = 1,
    memory: int = 2**30,
    disk: int = 0,
) -> Iterator[Runtime]:
    one = ModelOptions(target, context=1024, threads=1, micro_batch=32)
    plan = OpenPlan(
        replace(one, adapters=adapters), None if draft is None else replace(one, path=draft), seats=seats
    )
    with Runtime.open(plan) as runtime:
        runtime.keep_conversations(memory, disk)
        yield runtime


def asked(
    scales: tuple[float, ...] | None, settings: EngineSettings = OFF, text: str = STORY, *, anew: bool = False
) -> Request:
    return Request(text, GREEDY, settings, 16, seed=1, adapters=scales, reuses_cache=not anew)


def read(runtime: Runtime, request: Request) -> tuple[str, int]:
    """Return an answer, and the tokens of its prompt that were read."""
    text, end = answer(runtime, request)
    return text, end.summary.new_prompt_tokens


@pytest.mark.parametrize("seats", [1, 3])
@pytest.mark.parametrize("memory", [0, 2**30])
def test_no_cache_is_shared_between_settings(
    demo_target_f32: Path, demo_draft: Path, adapters: tuple[Adapter, Adapter], seats: int, memory: int
) -> None:
    with opened(demo_target_f32, adapters, demo_draft, seats=seats, memory=memory) as runtime:
        assert any("without LoRA adapters" in note for note in runtime.notes)
        anew = {scales: read(runtime, asked(scales, anew=True))[0] for scales in SCALES}
        assert len(set(anew.values())) == len(SCALES)
        whole = len(runtime.encode(STORY))
        for settings in (OFF, FORCED):  # drafts of a model without adapters change no answer
            for scales in SCALES * 2:
                text, new = read(runtime, asked(scales, settings))
                assert text == anew[scales]
                assert new in (1, whole)
        assert read(runtime, asked(None))[0] == anew[(1.0, 0.0)]
    with opened(demo_target_f32) as runtime:
        assert read(runtime, asked(None))[0] == anew[(0.0, 0.0)]


def test_what_was_read_with_an_adapter_is_found_again(
    demo_target_f32: Path, adapters: tuple[Adapter, Adapter], tmp_path: Path
) -> None:
    """In memory, on disk and in a saved slot, and only with the same adapter at the same scale."""
    with opened(demo_target_f32, adapters, disk=2**30) as runtime:
        texts = [read(runtime, asked(scales))[0] for scales in SCALES]
        assert [read(runtime, asked(scales)) for scales in SCALES] == [(text, 1) for text in texts]
        runtime.save_slot(0, tmp_path / "last.bin")
        runtime.write_before_leaving(60.0)
    with opened(demo_target_f32, adapters[:1], disk=2**30) as runtime:  # the second has no part in the first
        assert read(runtime, asked((1.0,))) == (texts[0], 1)
        assert read(runtime, asked((0.5,)))[1] > 100
        assert read(runtime, asked((0.0,))) == (texts[2], 1)
        with pytest.raises(UserError, match="of another model"):
            runtime.restore_slot(0, tmp_path / "last.bin", (1.0,))
    with opened(demo_target_f32, adapters) as runtime:
        runtime.restore_slot(0, tmp_path / "last.bin", SCALES[-1])
        assert read(runtime, asked(SCALES[-1])) == (texts[-1], 1)


def test_files_that_do_not_fit_are_refused_by_name(
    demo_target: Path, demo_target_f32: Path, adapters: tuple[Adapter, Adapter], tmp_path: Path
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(adapters[0].path.read_bytes()[:-1000])
    other = made_models.adapter(tmp_path / "other.gguf", demo_target_f32, architecture="qwen2")
    smaller = made_models.adapter(tmp_path / "small.gguf", made_models.windowed(tmp_path / "windowed.gguf"))
    for path, problem in (
        (cut, "incomplete|ends"),
        (other, "is an adapter for qwen2"),
        (smaller, "is an adapter for"),
        (demo_target, "is not a LoRA adapter"),
        (tmp_path / "missing.gguf", "there is no file"),
    ):
        with pytest.raises(ModelFileError, match=problem), opened(demo_target_f32, (Adapter(path),)):
            pass
    with opened(demo_target_f32, adapters) as runtime, pytest.raises(UserError, match="2 LoRA adapters"):
        answer(runtime, asked((1.0,)))
    modes: tuple[SplitMode, ...] = ("row", "tensor")
    for mode in modes:
        options = ModelOptions(demo_target_f32, split_mode=mode, adapters=adapters)
        with pytest.raises(UserError, match=mode):
            Runtime.open(OpenPlan(options))
