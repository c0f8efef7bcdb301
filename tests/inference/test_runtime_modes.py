"""The modes that open models can decode in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from localspec.errors import Cancelled
from localspec.hardware.memory.needs import uses_processor
from localspec.inference.runtime import Runtime
from localspec.llama.model import Model
from localspec.types import EngineSettings, ModelOptions
from tests.inference.runtimes import MODES, answer, greedy, open_pair
from tests.llama import tiny


def test_a_pair_can_do_all_unless_its_memory_forbids(
    demo_target_q8: Path, demo_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_pair(demo_target_q8, demo_draft) as runtime:
        opened = runtime._contexts
        assert runtime.modes == MODES
        monkeypatch.setattr(opened, "can_branch", False)
        assert list(opened.modes) == ["off", "ngram", "sd"]
        monkeypatch.setattr(opened, "can_branch", True)
        monkeypatch.setattr(opened, "can_rewind", False)
        assert list(opened.modes) == ["off"]


def test_a_draft_model_that_cannot_rewind_is_no_draft_model(tmp_path: Path) -> None:
    target, draft = tiny.llama(tmp_path / "target.gguf"), tiny.recurrent(tmp_path / "draft.gguf")
    with Runtime.open(ModelOptions(target, threads=1), ModelOptions(draft, threads=1)) as runtime:
        assert runtime.modes == ("off",)
        assert "(mamba) keeps a running state" in runtime.notes[0]


def test_a_cancel_of_nothing_stops_nothing(demo_target: Path) -> None:
    with Runtime.open(ModelOptions(demo_target, context=96, threads=1)) as alone:
        alone.cancel()
        assert len(list(alone.score([5, 6, 7]))) == 3
        with alone._contexts.at_work():
            alone.cancel()  # too late for the last step
        assert len(list(alone.score([5, 6, 7]))) == 3


def test_a_cancel_reaches_both_models_at_work(demo_target: Path, demo_draft: Path) -> None:
    options = ModelOptions(demo_target, context=96, threads=1)
    with Runtime.open(options, replace(options, path=demo_draft)) as pair:
        for model in (pair._contexts.target, pair._contexts.draft):
            assert model is not None
            with pair._contexts.at_work():
                pair.cancel()
                with pytest.raises(Cancelled):
                    model.evaluate([5, 6, 7])


@pytest.mark.parametrize(
    ("devices", "layers", "is_there"),
    [((), None, True), (None, None, False), (None, 4, True), (None, 5, False), (("CUDA0",), 0, True)],
)
def test_the_processor_computes_what_is_not_offloaded(
    devices: tuple[str, ...] | None, layers: int | None, is_there: bool
) -> None:
    cards = () if devices == () or layers == 0 else ("CUDA0",)
    options = ModelOptions(Path("model.gguf"), devices=devices, gpu_layers=layers)
    model = SimpleNamespace(options=options, layers=4, cards=cards)
    assert uses_processor(cast(Model, model)) == is_there


def test_a_target_alone_does_without_drafts(demo_target: Path) -> None:
    with Runtime.open(ModelOptions(demo_target, context=96, threads=1)) as alone:
        assert alone.modes == ("off", "ngram")


def test_small_batches_are_no_hindrance(demo_target_q8: Path, demo_draft: Path) -> None:
    options = ModelOptions(demo_target_q8, context=256, batch=4, micro_batch=4, threads=1)
    with Runtime.open(options, replace(options, path=demo_draft)) as runtime:
        assert runtime.choose_settings()[0].mode in MODES
        settings = [EngineSettings(mode=mode, min_confidence=0.0, fallback="ngram") for mode in MODES]
        assert len({answer(runtime, greedy(each))[0] for each in settings}) == 1
        assert len(list(runtime.score(runtime.encode("Once upon a time there was a fox.")))) > 4
