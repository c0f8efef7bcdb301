"""Which models open by themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from localspec import smollm2
from localspec.demo import bundled_pair
from localspec.models.default_pair import default_pair, introduction, name_of
from tests.scripted import model_info


def test_without_the_package_the_bundled_pair_opens() -> None:
    assert default_pair() == bundled_pair()


def test_with_the_package_smollm2_opens_with_its_draft(seeming_smollm2: Path) -> None:
    assert default_pair() == (seeming_smollm2, smollm2.draft())


def test_users_are_reported_what_opened_by_itself(seeming_smollm2: Path) -> None:
    bundled, other = model_info("demo"), model_info("large")
    target = replace(bundled, path=seeming_smollm2)
    draft = replace(bundled, path=smollm2.draft())
    bundled = replace(bundled, path=bundled_pair()[0])
    names = [name_of(model) for model in (target, draft, bundled, other)]
    assert names == ["SmolLM2 135M Instruct", "smollm2-draft", "demo", "large"]
    assert "assistant" in introduction(target)
    assert "bundled" in introduction(bundled)
    assert introduction(other) == ""


def test_the_gpu_of_the_draft_reports_the_sampling() -> None:
    card = (smollm2.FOLDER / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert f"Temperature {smollm2.SAMPLING.temperature} and top-p {smollm2.SAMPLING.top_p}" in card
