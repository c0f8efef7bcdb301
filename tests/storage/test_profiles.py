from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from localspec.errors import UserError
from localspec.storage.profiles import (
    Profile,
    ProfileTools,
    Speculation,
    TuningPrompts,
    copy_profile,
    profile,
    profiles,
    read_profile,
    shipped_files,
)
from localspec.types.request import SAMPLING, EngineSettings, Sampling, SamplingChoice, TaskType
from localspec.values import check, range_of

MINIMAL = 'title = "Mine"\ntask = "coding"\n'
ASKED, KEPT = (tuple(f"{kind} {number}" for number in range(count)) for kind, count in (("p", 8), ("h", 4)))


def tuning(prompts: tuple[str, ...] = ASKED, held_out: tuple[str, ...] = KEPT) -> str:
    """Return a [tuning] table with a prompt to a line."""
    texts = ("".join(f"  '{text}',\n" for text in listed) for listed in (prompts, held_out))
    return "[tuning]\nprompts = [\n{}]\nheld_out = [\n{}]\n".format(*texts)


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
    assert {known.task: known.name for known in found} == {
        "dialogue": "general",
        "coding": "coding",
        "writing": "writing",
        "math": "math",
        "translate": "translate",
        "summarise": "summarise",
    }
    prompts = {known.system_prompt for known in found}
    assert len(prompts) == len(found.good)
    assert all(known.title and known.description and known.system_prompt for known in found)


def test_code_is_written_colder_and_prose_warmer() -> None:
    known = shipped()
    assert known["coding"].sampling.temperature < known["general"].sampling.temperature
    assert known["writing"].sampling.temperature > known["general"].sampling.temperature
    assert known["writing"].sampling.min_p > 0
    for exact in ("coding", "math", "translate", "summarise"):
        assert known[exact].sampling.temperature <= 0.3


def test_the_documented_profile_shows_every_field() -> None:
    text = shipped()["general"].path.read_text(encoding="utf-8")
    assert [name for name in SAMPLING if f"\n# {name} = " not in text] == []
    assert [field.name for field in fields(Speculation) if f"\n# {field.name} = " not in text] == []
    assert "\n[tuning]\nprompts = [" in text
    assert "\nheld_out = [" in text


def test_the_documented_values_of_speculation_can_be_used(folder: Path) -> None:
    text = shipped()["general"].path.read_text(encoding="utf-8")
    for field in fields(Speculation):
        text = text.replace(f"\n# {field.name} = ", f"\n{field.name} = ")
    settled = read_profile(put(folder, "mine", text)).speculation
    assert settled.apply(EngineSettings()) == replace(EngineSettings(), min_confidence=0.4)
    assert None not in (getattr(settled, field.name) for field in fields(Speculation))


def test_every_way_of_sampling_has_its_range_and_defaults_are_within() -> None:
    check(Sampling())
    assert all(range_of(Sampling, name) == range_of(SamplingChoice, name) for name in SAMPLING)


def test_every_field_is_read(folder: Path) -> None:
    path = put(
        folder,
        "mine",
        'title = " Mine "\ndescription = "D"\ntask = "math"\nsystem_prompt = """\nLine 1\nLine 2\n"""\n'
        "[sampling]\ntemperature = 1\ntop_k = 2\ntop_p = 0.3\nmin_p = 0.4\nrepetition_penalty = 1.5\n"
        "presence_penalty = -6\nfrequency_penalty = 0.7\npenalty_window = 8\n"
        '[speculation]\nmode = "sd"\ndraft_length = 3\nfan_out_budget = 4\nfan_out_shape = "uniform"\n'
        'draft_temperature = 0\nsaguaro_c = 0.5\nacceptance = "match"\nmin_confidence = 0.2\n'
        f'fallback = "ngram"\n[tools]\ngroups = ["web", "time"]\non = true\n{tuning()}',
    )
    sampling = Sampling(1.0, 2, 0.3, 0.4, 1.5, -6.0, 0.7, 8)
    speculation = Speculation("sd", 3, 4, "uniform", 0.0, 0.5, "match", 0.2, "ngram")
    prompts = TuningPrompts(ASKED, KEPT)
    expected = Profile("mine", "Mine", "D", "math", "Line 1\nLine 2", sampling, path, speculation, prompts)
    names = tuple(SAMPLING)
    tools = ProfileTools(("web", "time"), on=True)
    assert read_profile(path) == replace(expected, settles=names, own_sampling=names, tools=tools)


def test_title_and_task_are_enough(folder: Path) -> None:
    mine = read_profile(put(folder, "mine", MINIMAL))
    assert (mine.description, mine.system_prompt, mine.sampling) == ("", "", Sampling())
    assert (mine.speculation, mine.own_tuning, mine.own_sampling) == (Speculation(), None, ())
    assert mine.settles == ()


def test_the_sampling_of_shipped_profiles_is_not_of_ones_own(folder: Path) -> None:
    assert [known.own_sampling for known in profiles(folder)] == [()] * len(shipped_files())
    put(folder, "coding", shipped_files()["coding"].read_text(encoding="utf-8"))
    assert profiles(folder).named("coding").own_sampling == ("temperature", "repetition_penalty")


def test_a_copy_refers_to_the_sampling_of_a_shipped_profile(folder: Path) -> None:
    for name, source in shipped().items():
        copy = read_profile(copy_profile(name, f"my-{name}", folder))
        again = read_profile(copy_profile(copy.name, f"other-{name}", folder))
        for each in (copy, again):
            assert (each.sampling, each.settles, each.own_sampling) == (source.sampling, source.settles, ())
            assert each.tuning_prompts() == source.tuning_prompts()


def test_what_a_profile_is_like_has_to_exist(folder: Path) -> None:
    text = f'like = "codin"\n{MINIMAL}'
    with pytest.raises(
        UserError, match=r"mine\.toml, line 1: there is no built-in profile `codin`"
    ) as caught:
        read_profile(put(folder, "mine", text))
    assert caught.value.hint == "did you mean `coding`?"


def test_the_documented_values_of_sampling_are_the_default_ones(folder: Path) -> None:
    text = shipped()["general"].path.read_text(encoding="utf-8")
    for name in SAMPLING:
        text = text.replace(f"\n# {name} = ", f"\n{name} = ")
    mine = read_profile(put(folder, "mine", text))
    assert (mine.sampling, mine.settles) == (Sampling(), tuple(SAMPLING))


def test_speculation_settles_what_it_names_and_leaves_the_rest() -> None:
    tuned = EngineSettings(mode="sd", draft_length=5, min_confidence=0.3)
    assert Speculation().apply(tuned) == tuned
    settled = Speculation(draft_length=2, acceptance="match", draft_temperature=0.0)
    assert settled.apply(tuned) == replace(tuned, draft_length=2, acceptance="match", draft_temperature=0.0)


def test_speculation_speaks_of_every_setting_within_its_range() -> None:
    usual = EngineSettings()
    assert [field.name for field in fields(Speculation)] == [field.name for field in fields(EngineSettings)]
    numbers = [
        field.name for field in fields(EngineSettings) if not isinstance(getattr(usual, field.name), str)
    ]
    assert all(range_of(Speculation, name) == range_of(EngineSettings, name) for name in numbers)
    check(usual)


def test_without_own_prompts_those_of_the_shipped_profile_for_the_task_are_used(folder: Path) -> None:
    own = read_profile(put(folder, "coding", MINIMAL + tuning()))
    assert own.tuning_prompts() == TuningPrompts(ASKED, KEPT)
    for task in ("coding", "dialogue"):
        mine = read_profile(put(folder, "coding", f"title = 'x'\ntask = '{task}'"))
        shipped_one = next(known for known in shipped().values() if known.task == task)
        assert mine.tuning_prompts() == shipped_one.own_tuning


def test_a_prompt_keeps_its_lines_but_not_the_empty_ones_around_it(folder: Path) -> None:
    prompts = ("\n\nfirst:\n\n    code\n", *ASKED)
    text = MINIMAL + tuning().replace("  'p 0'", f"  '''{prompts[0]}''', 'p 0'")
    asked = read_profile(put(folder, "mine", text)).tuning_prompts()
    assert asked.prompts == ("first:\n\n    code", *ASKED)


@pytest.mark.parametrize("task", ["coding", "dialogue"])
def test_a_task_is_done_by_the_profile_of_a_shipped_name(folder: Path, task: TaskType) -> None:
    expected = {"coding": "coding", "dialogue": "general"}[task]
    put(folder, "aaa", f"title = 'x'\ntask = '{task}'")
    assert profiles(folder).for_task(task).name == expected
    put(folder, expected, f"title = 'Mine'\ntask = '{task}'")
    assert profiles(folder).for_task(task).title == "Mine"
    put(folder, expected, "title = 'Mine'\ntask = 'math'")
    assert profiles(folder).for_task(task).name == "aaa"
    (folder / "aaa.toml").unlink()
    assert profiles(folder).for_task(task) == shipped()[expected]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("titel = 'x'\n" + MINIMAL, 1, "there is no key `titel`; did you mean `title`?"),
        (MINIMAL + "[sampling]\ntemprature = 1", 4, "did you mean `temperature`?"),
        (MINIMAL + "[sampling]\n\ntemperature = 101", 5, "from 0 to 100, not 101"),
        (MINIMAL + "sampling.top_k = 1.5", 3, "a whole number"),
        (MINIMAL + "sampling = 3", 3, "has to be a table"),
        ("title = 'x'\ntask = 'code'", 2, "coding, writing, math, translate, summarise, dialogue"),
        ("title = 'x'\ntask = 1", 2, "`task` cannot be 1; choose from: coding"),
        ("title = '  '\ntask = 'math'", 1, "1 to 40 characters"),
        ("title = '" + "x" * 41 + "'\ntask = 'math'", 1, "1 to 40 characters"),
        (MINIMAL + 'description = "a\\nb"', 3, "one line"),
        (MINIMAL + "system_prompt = ['a']", 3, "has to be a text"),
        (MINIMAL + "[sampling", 3, "valid TOML"),
        (MINIMAL + "[speculation]\ndraft_lenght = 3", 4, "did you mean `draft_length`?"),
        (MINIMAL + "[speculation]\ndraft_length = 0", 4, "a whole number from 1 to 256, not 0"),
        (MINIMAL + "[speculation]\nfan_out_budget = 65", 4, "a whole number from 1 to 64, not 65"),
        (MINIMAL + "[speculation]\nmode = 'auto'", 4, "choose from: off, ngram, sd, ssd"),
        (MINIMAL + "[speculation]\nfan_out_shape = 'flat'", 4, "uniform, geometric, best-first"),
        (MINIMAL + "[speculation]\nacceptance = 1", 4, "cannot be 1; choose from: match, rejection"),
        (MINIMAL + "[speculation]\nfallback = 'none'", 4, "just-in-time, ngram"),
        (MINIMAL + "[speculation]\ndraft_temperature = -1", 4, "from 0 to 10, not -1"),
        (MINIMAL + "[speculation]\nsaguaro_c = 1.5", 4, "from 0 to 1, not 1.5"),
        (MINIMAL + "[speculation]\nmin_confidence = 'a'", 4, "from 0 to 1, not `a`"),
        (MINIMAL + "tuning = 3", 3, "has to be a table"),
        (MINIMAL + "[tuning]\nprompt = []", 4, "did you mean `prompts`?"),
        (MINIMAL + "[tuning]\n", 3, "`prompts` is missing from the table [tuning]"),
        (MINIMAL + "[tuning]\nprompts = 'p'", 4, "a list of texts"),
        (MINIMAL + tuning(ASKED[:7]), 4, "at least 8 prompts, not 7"),
        (MINIMAL + tuning(held_out=KEPT[:3]), 14, "at least 4 prompts, not 3"),
        (MINIMAL + tuning(("a", " ", *ASKED)), 6, "a prompt in `prompts` is empty"),
        (MINIMAL + tuning((*ASKED, " p 1 ")), 13, "already in `prompts`"),
        (MINIMAL + tuning(held_out=("x", "p 3", *KEPT)), 16, "already in `prompts`"),
        (MINIMAL + tuning(held_out=("x", "x", *KEPT)), 16, "already in `held_out`"),
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
    with pytest.raises(UserError, match="line 2: `task` cannot be 1"):
        profile("coding", folder)


def test_a_name_that_nothing_has(folder: Path) -> None:
    with pytest.raises(UserError, match="no profile `codng`; did you mean `coding`") as caught:
        profile("codng", folder)
    assert caught.value.hint == f"profiles: {', '.join(sorted(shipped()))}"
    with pytest.raises(UserError, match="did you mean `coding`"):
        profiles(folder).named("codng")
    with pytest.raises(UserError, match="no profile"):
        profile("../coding", folder)
