"""The modes that open models can decode in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.errors import Cancelled
from localspec.gguf import read_header
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.llama.backends import BackendDevice
from localspec.llama.model import computes_layers
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Mode
from tests.inference.runtimes import MODES, answer, greedy, open_pair
from tests.llama import tiny


def test_a_pair_can_do_all_unless_the_draft_cannot_branch(
    demo_target_q8: Path, demo_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_pair(demo_target_q8, demo_draft) as runtime:
        assert (runtime.modes, runtime.notes) == (MODES, ())
        monkeypatch.setattr(runtime._contexts, "can_branch", False)
        assert list(runtime._contexts.modes) == ["off", "ngram", "sd"]


@pytest.mark.parametrize("mode", MODES)
def test_models_with_a_recurrent_state_are_a_pair(tmp_path: Path, mode: Mode) -> None:
    target, draft = tiny.recurrent(tmp_path / "target.gguf"), tiny.recurrent(tmp_path / "draft.gguf")
    options = ModelOptions(target, threads=1, flash_attention=False)
    with Runtime.open(OpenPlan(options, replace(options, path=draft))) as runtime:
        assert runtime.modes == MODES
        assert "(mamba) has a recurrent state" in "".join(runtime.notes)
        expected = answer(runtime, greedy(prompt="abc abc abc", max_tokens=24))[0]
        settings = EngineSettings(mode=mode, draft_length=4, min_confidence=0.0)
        said, end = answer(runtime, greedy(settings, "abc abc abc", 24))
        assert said == expected
        assert end.summary.drafted or mode != "sd"


def test_a_cancel_of_nothing_stops_nothing(demo_target: Path) -> None:
    with Runtime.open(OpenPlan(ModelOptions(demo_target, context=96, threads=1))) as alone:
        alone.cancel()
        assert len(list(alone.score([5, 6, 7]))) == 3
        with alone._contexts.at_work():
            alone.cancel()  # too late for the last step
        assert len(list(alone.score([5, 6, 7]))) == 3


def test_a_cancel_reaches_both_models_at_work(demo_target: Path, demo_draft: Path) -> None:
    options = ModelOptions(demo_target, context=96, threads=1)
    with Runtime.open(OpenPlan(options, replace(options, path=demo_draft))) as pair:
        for model in (pair._contexts.target, pair._contexts.draft):
            assert model is not None
            with pair._contexts.at_work():
                pair.cancel()
                with pytest.raises(Cancelled):
                    model.evaluate([5, 6, 7])


@pytest.mark.parametrize(
    ("devices", "layers", "is_there"),
    [((), None, True), (None, None, False), (None, 6, True), (None, 7, False), (("CUDA0",), 0, True)],
)
def test_the_cpu_computes_what_is_not_offloaded(
    devices: tuple[str, ...] | None, layers: int | None, is_there: bool, demo_target: Path
) -> None:
    card = BackendDevice("CUDA0", "A graphics card", "gpu", 0, 0)
    cards = () if devices == () or layers == 0 else (card,)
    options = ModelOptions(demo_target, devices=devices, gpu_layers=layers)
    assert computes_layers(cards, options, read_header(demo_target)) == is_there


def test_a_target_alone_does_without_drafts(demo_target: Path) -> None:
    with Runtime.open(OpenPlan(ModelOptions(demo_target, context=96, threads=1))) as alone:
        assert alone.modes == ("off", "ngram")


@pytest.mark.slow
def test_small_batches_are_not_hindrance(demo_target_q8: Path, demo_draft: Path) -> None:
    options = ModelOptions(demo_target_q8, context=256, batch=4, micro_batch=4, threads=1)
    with Runtime.open(OpenPlan(options, replace(options, path=demo_draft))) as runtime:
        assert runtime.choose_settings()[0].mode in MODES
        settings = [EngineSettings(mode=mode, min_confidence=0.0, fallback="ngram") for mode in MODES]
        assert len({answer(runtime, greedy(each))[0] for each in settings}) == 1
        assert len(list(runtime.score(runtime.encode("Once upon a time there was a fox.")))) > 4
