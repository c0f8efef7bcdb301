"""The modes that open models can decode in."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.runtime import Runtime
from localspec.types import ModelOptions
from tests.runtimes import MODES, open_pair


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
