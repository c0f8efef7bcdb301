"""`localspec profiles`: list, show and copy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localspec.storage.paths import config_dir
from localspec.storage.profiles import profiles, read_profile, shipped_files
from tests.cli.conftest import Invoke

GOOD = 'title = "Poems"\ntask = "writing"\n'
BROKEN = 'title = "Poems"\ntask = "poetry"\n'


@pytest.fixture
def own() -> Path:
    return config_dir() / "profiles"


def put(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("arguments", [[], ["list"]])
def test_the_list_reports_whose_each_is(invoke: Invoke, own: Path, arguments: list[str]) -> None:
    put(own, "poems", GOOD)
    put(own, "coding", GOOD)
    outcome = invoke("profiles", *arguments)
    lines = {line.split()[0]: line for line in outcome.out.splitlines()[1:]}
    assert outcome.code == 0
    assert set(lines) == {*shipped_files(), "poems"}
    assert lines["poems"].split() == ["poems", "Poems", "writing", "own"]
    assert "own over shipped" in lines["coding"]
    assert " shipped " in lines["math"]
    assert str(own) in outcome.err


def test_the_list_reports_what_cannot_be_used(invoke: Invoke, own: Path) -> None:
    path = put(own, "math", BROKEN)
    outcome = invoke("profiles")
    assert outcome.code == 0
    assert f"not used: {path}, line 2: `task` cannot be `poetry`" in outcome.err
    [line] = [line for line in outcome.out.splitlines() if line.startswith("math ")]
    assert " shipped " in line


def test_the_list_as_json(invoke: Invoke, own: Path) -> None:
    path = put(own, "poems", GOOD)
    put(own, "bad", BROKEN)
    value = json.loads(invoke("profiles", "--json").out)
    assert (value["schema"], value["folder"]) == (1, str(own))
    [mine] = [each for each in value["profiles"] if each["name"] == "poems"]
    assert mine == {
        "name": "poems",
        "title": "Poems",
        "description": "",
        "task": "writing",
        "from": "own",
        "path": str(path),
    }
    assert "line 2" in value["problems"][0]["message"]
    assert "choose from" in value["problems"][0]["hint"]


def test_show_reports_everything_with_what_was_left_out(invoke: Invoke, own: Path) -> None:
    settled = '[sampling]\ntop_k = 7\n[speculation]\nmode = "sd"\ndraft_length = 3\n'
    path = put(own, "poems", GOOD + 'description = "Rhymes."\nsystem_prompt = "Rhyme.\\nAlways."\n' + settled)
    outcome = invoke("profiles", "show", "poems")
    assert (outcome.code, outcome.err) == (0, "")
    for part in (
        "poems: Poems",
        "Rhymes.",
        f"own: {path}",
        "temperature 0.8, top_k 7, top_p 0.95",
        "mode sd, draft_length 3\n",
        "8 held out, of the shipped profile for writing\n",
    ):
        assert part in outcome.out
    assert outcome.out.endswith("\nRhyme.\nAlways.\n")


def test_show_as_json(invoke: Invoke) -> None:
    value = json.loads(invoke("profiles", "show", "coding", "--json").out)
    coding = profiles(Path("nowhere")).named("coding")
    assert (value["schema"], value["name"], value["from"]) == (1, "coding", "shipped")
    assert value["system_prompt"] == coding.system_prompt
    assert (value["sampling"]["temperature"], value["speculation"]) == (0.2, {})
    assert value["tuning"]["own"] is True
    assert value["tools"] == {"groups": ["files", "run"], "servers": [], "on": False}
    prompts = coding.tuning_prompts()
    assert (value["tuning"]["prompts"], value["tuning"]["held_out"]) == (
        list(prompts.prompts),
        list(prompts.held_out),
    )


@pytest.mark.parametrize("arguments", [["show", "codng"], ["edit", "codng"], ["copy", "codng", "x"]])
def test_a_name_that_nothing_has(invoke: Invoke, own: Path, arguments: list[str]) -> None:
    outcome = invoke("profiles", *arguments)
    assert outcome.code == 2
    assert "there is no profile `codng`; did you mean `coding`?" in outcome.err
    assert not own.exists()


def test_who_shows_a_broken_one_hears_why(invoke: Invoke, own: Path) -> None:
    path = put(own, "coding", BROKEN)
    outcome = invoke("profiles", "show", "coding")
    assert (outcome.code, outcome.out) == (2, "")
    assert f"{path}, line 2: `task` cannot be `poetry`" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sow", "coding"], "did you mean `show`?"),
        (["coding"], "`localspec profiles show coding`"),
        (["show"], "NAME"),
        (["copy", "coding"], "NEW"),
    ],
)
def test_a_command_that_is_none(invoke: Invoke, arguments: list[str], words: str) -> None:
    outcome = invoke("profiles", *arguments)
    assert outcome.code == 2
    assert words in outcome.err


def test_a_copy_of_a_shipped_one_says_the_same_and_is_tuned_with_the_same(invoke: Invoke, own: Path) -> None:
    for name, path in shipped_files().items():
        outcome = invoke("profiles", "copy", name, f"my-{name}")
        assert (outcome.code, outcome.out) == (0, "")
        assert f"localspec profiles edit my-{name}" in outcome.err
        copied, source = read_profile(own / f"my-{name}.toml"), read_profile(path)
        assert (copied.system_prompt, copied.sampling) == (source.system_prompt, source.sampling)
        assert copied.tuning_prompts() == source.tuning_prompts()
    assert (own / "my-coding.toml").stat().st_mode & 0o077 == 0


def test_a_copy_of_an_own_one_is_that_file(invoke: Invoke, own: Path) -> None:
    text = f"# mine\n{GOOD}".replace("\n", "\r\n")
    put(own, "poems", text)
    value = json.loads(invoke("profiles", "copy", "poems", "verses", "--json").out)
    assert (value["name"], value["path"]) == ("verses", str(own / "verses.toml"))
    assert (own / "verses.toml").read_bytes().decode() == text


def test_a_copy_in_the_place_of_a_shipped_one_is_reported(invoke: Invoke, own: Path) -> None:
    outcome = invoke("profiles", "copy", "coding", "general")
    assert "overrides the built-in profile `general`" in outcome.err
    assert profiles(own).named("general").task == "coding"


@pytest.mark.parametrize("name", ["", "a b", "../poems", "a/b", ".hidden", "-x", "x" * 41, "auto", "Auto"])
def test_a_name_that_no_copy_can_have(invoke: Invoke, own: Path, name: str) -> None:
    outcome = invoke("profiles", "copy", "coding", "--", name)
    assert outcome.code == 2
    assert "cannot be the name of a profile" in outcome.err
    assert not own.exists()


@pytest.mark.parametrize("name", ["poems", "POEMS"])
def test_profile_copy_does_not_overwrite_a_profile(invoke: Invoke, own: Path, name: str) -> None:
    path = put(own, "poems", GOOD)
    outcome = invoke("profiles", "copy", "coding", name)
    assert outcome.code == 2
    assert str(path) in outcome.err
    assert path.read_text() == GOOD
