"""Where prompts come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localspec.benchmark.harness import Prompt
from localspec.benchmark.prompts import profile_prompts, read_prompts, spread
from localspec.errors import UserError
from localspec.storage.profiles import profile


def written(folder: Path, text: str | bytes, name: str = "set.jsonl") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_public_sets_work_as_they_are(tmp_path: Path) -> None:
    lines = [
        {"question": "How many?", "answer": "3"},
        {"task_id": "HumanEval/0", "prompt": "def f():\n", "test": "", "entry_point": "f"},
        {"question_id": 81, "category": "writing", "turns": ["Compose a post.", "Rewrite it."]},
        {"task": "coding", "category": "other", "prompt": "Sort a list."},
        {"prompt": "Why?", "question": "not this", "task": None, "turns": None},
    ]
    path = written(tmp_path, "\n".join(json.dumps(line) for line in lines))
    assert read_prompts(path) == (
        Prompt("set", "How many?"),
        Prompt("set", "def f():\n"),
        Prompt("writing", "Compose a post."),
        Prompt("coding", "Sort a list."),
        Prompt("set", "Why?"),
    )


def test_lines_may_be_empty_end_otherwise_and_hold_any_text(tmp_path: Path) -> None:
    path = written(tmp_path, '\ufeff{"prompt": "a\u2028b\x85c"}\r\n\r\n  \n{"prompt": "d"}')
    assert [prompt.text for prompt in read_prompts(path)] == ["a\u2028b\x85c", "d"]


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("", "", "contains no prompts"),
        ("\n \n", "", "contains no prompts"),
        ("[]", ", line 1", "is not an object"),
        ('{"prompt": "a"}\n{"prompt": }', ", line 2", "not JSON: Expecting value \\(column 12\\)"),
        ('{"prompt": "a"}\n\n"b"', ", line 3", "is not an object"),
        ('{"text": "a"}', ", line 1", "none of `prompt`, `question`, `turns`"),
        ('{"prompt": 5}', ", line 1", "prompt.prompt is not a text"),
        ('{"question": " "}', ", line 1", "none of `prompt`, `question`, `turns` with a text"),
        ('{"turns": "a"}', ", line 1", "prompt.turns is not a list"),
        ('{"turns": []}', ", line 1", "none of `prompt`, `question`, `turns`"),
        ('{"turns": [1]}', ", line 1", "turns\\[0\\] is not a text"),
        ('{"prompt": "a", "task": 1}', ", line 1", "prompt.task is not a text"),
        ('{"prompt": "a", "task": "all"}', ", line 1", "cannot be called `all`"),
        ('{"prompt": "\\ud800"}', ", line 1", "half of a character"),
        ("[" * 100_000, ", line 1", "nested too deeply"),
        ('{"prompt": "a"}\n{"prompt": ' + "9" * 5000 + "}", ", line 2", "digits"),
        (b'{"prompt": "a"}\n{"prompt": "\xff"}', ", line 2", "not UTF-8"),
        ("PK\x03\x04", ", line 1", "not JSON"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_place(
    tmp_path: Path, text: str | bytes, place: str, what: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError, match=what) as raised:
        read_prompts(path)
    assert raised.value.message.startswith(f"{path}{place}")
    assert "\n" not in str(raised.value)
    assert raised.value.hint


def test_what_is_not_a_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(UserError, match="cannot read prompts from") as raised:
            read_prompts(path)
        assert str(path) in raised.value.message


def test_profiles_ask_what_they_hold_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_CONFIG_DIR", str(tmp_path))
    found = profile_prompts(["coding", "general", "coding"])
    coding, general = (profile(name, tmp_path) for name in ("coding", "general"))
    held_out = coding.tuning_prompts().held_out
    assert found[: len(held_out)] == tuple(Prompt("coding", text, coding.system_prompt) for text in held_out)
    assert {(prompt.task, prompt.system) for prompt in found[len(held_out) :]} == {
        ("dialogue", general.system_prompt)
    }
    assert len(found) == len(held_out) + len(general.tuning_prompts().held_out)


def test_the_users_own_profiles_are_known_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CONFIG_DIR", str(tmp_path))
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "mine.toml").write_text(
        'title = "Mine"\ntask = "math"\nsystem_prompt = "Count."\n', encoding="utf-8"
    )
    assert {(prompt.task, prompt.system) for prompt in profile_prompts(["mine"])} == {("math", "Count.")}
    with pytest.raises(UserError, match="did you mean `mine`"):
        profile_prompts(["mien"])


def texts(task: str, count: int) -> list[Prompt]:
    return [Prompt(task, f"{task}{number}") for number in range(count)]


def test_prompts_are_spread_and_tasks_come_alternately() -> None:
    chosen = spread([*texts("a", 9), *texts("b", 2), *texts("c", 3)], 3)
    assert [prompt.text for prompt in chosen] == ["a0", "b0", "c0", "a3", "b1", "c1", "a6", "c2"]
    assert spread(texts("a", 2), 9) == tuple(texts("a", 2))
    assert len({prompt.text for prompt in spread(texts("a", 10), 7)}) == 7
