"""Which models open by themselves, and whose sampling counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec import smollm2
from localspec.demo import bundled_pair
from localspec.models.default_pair import default_pair, introduction, name_of, recommended_sampling, suited
from localspec.storage.profiles import Profile, profiles
from tests.scripted import model_info

SHIPPED = profiles(Path("nowhere")).named("writing")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "profiles"
    folder.mkdir()
    return folder


def put(folder: Path, sampling: str) -> Profile:
    text = f'title = "Writing"\ntask = "writing"\n{sampling}\n'
    (folder / "writing.toml").write_text(text, encoding="utf-8")
    return profiles(folder).named("writing")


def test_without_the_package_the_bundled_pair_opens() -> None:
    assert default_pair() == bundled_pair()


def test_with_the_package_smollm2_opens_with_its_draft(seeming_smollm2: Path) -> None:
    assert default_pair() == (seeming_smollm2, smollm2.draft())


def test_shipped_profiles_yield_to_the_card_of_smollm2(seeming_smollm2: Path) -> None:
    assert SHIPPED.sampling.temperature == 0.9
    assert suited(SHIPPED, seeming_smollm2) == replace(SHIPPED, sampling=smollm2.SAMPLING)


def test_code_and_sums_may_repeat_themselves(seeming_smollm2: Path) -> None:
    penalties = {
        profile.task: suited(profile, seeming_smollm2).sampling.repetition_penalty
        for profile in profiles(Path("nowhere"))
    }
    assert {task for task, penalty in penalties.items() if penalty == 1} == {"coding", "math"}
    assert {*penalties.values()} == {1, smollm2.SAMPLING.repetition_penalty}


def test_sampling_of_ones_own_stays(seeming_smollm2: Path, own: Path) -> None:
    mine = put(own, "sampling.temperature = 0.8")
    assert suited(mine, seeming_smollm2) is mine


def test_profile_of_ones_own_without_sampling_takes_the_card(seeming_smollm2: Path, own: Path) -> None:
    assert suited(put(own, ""), seeming_smollm2).sampling == smollm2.SAMPLING


@pytest.mark.usefixtures("seeming_smollm2")
def test_other_models_are_sampled_as_the_profile_says(tmp_path: Path) -> None:
    for path in (bundled_pair()[0], tmp_path / "missing.gguf"):
        assert recommended_sampling(path, "writing") is None
        assert suited(SHIPPED, path) is SHIPPED


def test_another_path_to_smollm2_is_smollm2(seeming_smollm2: Path, tmp_path: Path) -> None:
    link = tmp_path / "mine.gguf"
    link.hardlink_to(seeming_smollm2)
    assert recommended_sampling(link, "writing") == smollm2.SAMPLING


def test_people_are_told_what_opened_by_itself(seeming_smollm2: Path) -> None:
    bundled, other = model_info("demo"), model_info("large")
    target = replace(bundled, path=seeming_smollm2)
    draft = replace(bundled, path=smollm2.draft())
    bundled = replace(bundled, path=bundled_pair()[0])
    names = [name_of(model) for model in (target, draft, bundled, other)]
    assert names == ["SmolLM2 135M Instruct", "smollm2-draft", "demo", "large"]
    assert "assistant" in introduction(target)
    assert "bundled" in introduction(bundled)
    assert introduction(other) == ""


def test_the_card_of_the_draft_tells_the_sampling() -> None:
    card = (smollm2.FOLDER / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert f"Temperature {smollm2.SAMPLING.temperature} and top-p {smollm2.SAMPLING.top_p}" in card
