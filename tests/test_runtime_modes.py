"""The modes that open models can decode in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.runtime import Runtime
from localspec.types import EngineSettings, ModelOptions
from tests.runtimes import MODES, answer, greedy, open_pair


def test_a_pair_can_do_all_unless_its_memory_forbids(
    demo_target_q8: Path, demo_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_pair(demo_target_q8, demo_draft) as runtime:
        contexts = runtime._contexts
        assert runtime.modes == MODES
        monkeypatch.setattr(contexts, "can_branch", False)
        assert list(contexts.modes) == ["off", "ngram", "sd"]
        monkeypatch.setattr(contexts, "can_branch", True)
        monkeypatch.setattr(contexts, "can_rewind", False)
        assert list(contexts.modes) == ["off"]


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
