from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from localspec.errors import UserError
from localspec.profiles import SAMPLING_RANGES, Profile, profile, profiles, read_profile
from localspec.types import Sampling

MINIMAL = 'title = "Mine"\ntask = "coding"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def put(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def shipped() -> dict[str, Profile]:
    return {known.name: known for known in profiles(Path("nowhere"))}


def test_the_shipped_profiles_are_sound_and_differ() -> None:
    found = profiles(Path("nowhere"))
    assert found.problems == ()
    assert found.good[0].name == "general"
    assert {"general", "coding", "writing"} <= set(shipped())
    prompts = {known.system_prompt for known in found}
    assert len(prompts) == len(found.good)
    assert all(known.title and known.description and known.system_prompt for known in found)


def test_code_is_written_colder_and_prose_warmer() -> None:
    known = shipped()
    assert known["coding"].sampling.temperature < known["general"].sampling.temperature
    assert known["writing"].sampling.temperature > known["general"].sampling.temperature
    assert known["writing"].sampling.min_p > 0
    assert (known["coding"].task, known["writing"].task) == ("coding", "writing")


def test_the_documented_profile_shows_every_field() -> None:
    text = shipped()["general"].path.read_text(encoding="utf-8")
    assert [name for name in SAMPLING_RANGES if f"\n{name} = " not in text] == []


def test_every_way_of_sampling_has_its_range_and_defaults_are_within() -> None:
    usual = Sampling()
    assert set(SAMPLING_RANGES) == {field.name for field in fields(Sampling)}
    assert all(low <= getattr(usual, name) <= high for name, (low, high) in SAMPLING_RANGES.items())


def test_every_field_is_read(folder: Path) -> None:
    path = put(
        folder,
        "mine",
        'title = " Mine "\ndescription = "D"\ntask = "math"\nsystem_prompt = """\nLine 1\nLine 2\n"""\n'
        "[sampling]\ntemperature = 1\ntop_k = 2\ntop_p = 0.3\nmin_p = 0.4\nrepetition_penalty = 1.5\n"
        "presence_penalty = -6\nfrequency_penalty = 0.7\npenalty_window = 8\n",
    )
    sampling = Sampling(1.0, 2, 0.3, 0.4, 1.5, -6.0, 0.7, 8)
    assert read_profile(path) == Profile("mine", "Mine", "D", "math", "Line 1\nLine 2", sampling, path)


def test_title_and_task_are_enough(folder: Path) -> None:
    mine = read_profile(put(folder, "mine", MINIMAL))
    assert (mine.description, mine.system_prompt, mine.sampling) == ("", "", Sampling())


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("titel = 'x'\n" + MINIMAL, 1, "there is no key `titel`; did you mean `title`?"),
        (MINIMAL + "[sampling]\ntemprature = 1", 4, "did you mean `temperature`?"),
        (MINIMAL + "[sampling]\n\ntemperature = 101", 5, "from 0 to 100, not 101"),
        (MINIMAL + "sampling.top_k = 1.5", 3, "a whole number"),
        (MINIMAL + "sampling = 3", 3, "has to be a table"),
        ("title = 'x'\ntask = 'code'", 2, "coding, writing, math, translate, summarise, dialogue"),
        ("title = 'x'\ntask = 1", 2, "has to be a text"),
        ("title = '  '\ntask = 'math'", 1, "1 to 40 characters"),
        ("title = '" + "x" * 41 + "'\ntask = 'math'", 1, "1 to 40 characters"),
        (MINIMAL + 'description = "a\\nb"', 3, "one line"),
        (MINIMAL + "system_prompt = ['a']", 3, "has to be a text"),
        (MINIMAL + "[sampling", 3, "valid TOML"),
    ],
)
def test_a_mistake_is_named_with_file_and_line(folder: Path, text: str, line: int, words: str) -> None:
    path = put(folder, "mine", text)
    with pytest.raises(UserError) as caught:
        read_profile(path)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert words in str(caught.value)


@pytest.mark.parametrize("missing", ["title", "task"])
def test_what_is_required_is_asked_for(folder: Path, missing: str) -> None:
    lines = [line for line in MINIMAL.splitlines() if not line.startswith(missing)]
    with pytest.raises(UserError, match=f"`{missing}` is missing"):
        read_profile(put(folder, "mine", "\n".join(lines)))


def test_a_file_of_ones_own_joins_or_replaces_shipped_ones(folder: Path) -> None:
    put(folder, "poems", MINIMAL)
    put(folder, "coding", MINIMAL)
    put(folder, ".coding", "broken by an editor")
    (folder / "notes.md").write_text("no profile", encoding="utf-8")
    found = profiles(folder)
    assert {known.name for known in found} == {*shipped(), "poems"}
    assert found.named("coding").title == "Mine"
    assert profile("coding", folder) == found.named("coding")
    assert found.problems == ()


def test_a_folder_that_cannot_be_read_takes_no_profile_away(folder: Path) -> None:
    place = folder / "profiles"
    place.write_text("no folder", encoding="utf-8")
    found = profiles(place)
    assert {known.name: known for known in found} == shipped()
    assert "cannot read the folder of profiles" in found.problems[0].message


def test_a_broken_file_takes_no_other_profile_away(folder: Path) -> None:
    put(folder, "poems", "title = 'x'\ntask = 1")
    put(folder, "coding", "title = 'x'\ntask = 1")
    found = profiles(folder)
    assert {known.name: known for known in found} == shipped()
    assert [problem.message.partition(",")[0] for problem in found.problems] == [
        str(folder / "coding.toml"),
        str(folder / "poems.toml"),
    ]


def test_who_asks_for_a_broken_profile_hears_why(folder: Path) -> None:
    put(folder, "coding", "title = 'x'\ntask = 1")
    with pytest.raises(UserError, match="line 2: `task` has to be a text"):
        profile("coding", folder)


def test_a_name_that_nothing_has(folder: Path) -> None:
    with pytest.raises(UserError, match="no profile `codng`; did you mean `coding`") as caught:
        profile("codng", folder)
    assert caught.value.hint == f"profiles: {', '.join(sorted(shipped()))}"
    with pytest.raises(UserError, match="did you mean `coding`"):
        profiles(folder).named("codng")
    with pytest.raises(UserError, match="no profile"):
        profile("../coding", folder)
