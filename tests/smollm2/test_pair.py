"""Where SmolLM2 and its draft are found."""

from __future__ import annotations

import sys
from pathlib import Path

from localspec import smollm2


def test_the_target_is_found_without_importing_its_package(seeming_smollm2: Path) -> None:
    assert smollm2.pair() == (seeming_smollm2, smollm2.draft())
    assert seeming_smollm2.parent.name not in sys.modules


def test_a_package_without_weights_is_not_a_target(seeming_smollm2: Path) -> None:
    seeming_smollm2.unlink()
    assert smollm2.target() is None


def test_without_the_package_there_is_not_a_target() -> None:
    assert smollm2.target() is None


def test_the_draft_and_its_licence_travel_with_the_package() -> None:
    assert smollm2.draft().stat().st_size <= 14_000_000
    assert "Apache License" in (smollm2.FOLDER / "LICENSE.txt").read_text(encoding="utf-8")


def test_the_draft_has_the_vocabulary_of_the_target(smollm2_target: Path) -> None:
    from localspec.llama.model import Model
    from localspec.models.pairing import compare_vocabularies
    from localspec.types.models import ModelOptions

    opened = [Model.open(ModelOptions(path, devices=())) for path in (smollm2_target, smollm2.draft())]
    try:
        compare_vocabularies(opened[0].vocabulary, opened[1].vocabulary)
        assert opened[0].end_tokens == opened[1].end_tokens
    finally:
        for model in opened:
            model.close()
