from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import get_args

import pytest

from localspec.errors import UserError
from localspec.storage.profiles import ToolGroup
from localspec.tools.own import OwnTools
from localspec.tools.tool import Toolbox, ToolOutput
from localspec.tools.workspace import Workspace

GROUPS: tuple[ToolGroup, ...] = get_args(ToolGroup)


@pytest.fixture
def tools(tmp_path: Path) -> OwnTools:
    (tmp_path / "f").write_text("one\n")
    return OwnTools(Workspace(tmp_path), GROUPS)


def test_the_groups_say_which_tools_there_are(tmp_path: Path) -> None:
    def names(*groups: ToolGroup) -> list[str]:
        return [tool.name for tool in OwnTools(Workspace(tmp_path), groups).tools()]

    assert names() == []
    assert names("time", "run") == ["run_command", "time"]
    assert names("files")[:2] == ["read_file", "list_folder"]
    assert len(names(*GROUPS)) == 10


def test_the_effect_of_each_tool_is_known(tools: OwnTools) -> None:
    assert {tool.name: tool.effect for tool in tools.tools()} == {
        "read_file": "reads",
        "list_folder": "reads",
        "find_files": "reads",
        "search_files": "reads",
        "edit_file": "writes",
        "write_file": "writes",
        "run_command": "runs",
        "fetch_page": "fetches",
        "time": "none",
        "calculate": "none",
    }


def test_the_description_for_a_model_is_short_and_complete(tools: OwnTools) -> None:
    for tool in tools.tools():
        function = json.loads(tool.as_function())["function"]
        parameters = function["parameters"]
        assert re.fullmatch(r"[A-Z].{10,70}\.", function["description"])
        assert parameters["type"] == "object"
        assert parameters["additionalProperties"] is False
        assert set(parameters["required"]) <= set(parameters["properties"])
        assert all(each["description"] and each["type"] for each in parameters["properties"].values())
    assert sum(len(tool.as_function()) for tool in tools.tools()) < 4600


def test_a_call_is_previewed_and_run(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\n")
    tools: Toolbox = OwnTools(Workspace(tmp_path), GROUPS)
    edit = {"path": "f", "old_text": "one", "new_text": "two"}
    assert tools.preview("edit_file", edit).startswith("```diff\n")
    assert (tmp_path / "f").read_text() == "one\n"
    edited = tools.run("edit_file", edit, Event())
    assert edited.text == "edited `f`: line 1 `two` is there now"
    assert edited.data == {"path": str(tmp_path / "f"), "edits_applied": 1}
    assert (tmp_path / "f").read_text() == "two\n"
    assert tools.preview("read_file", {"path": "f"}) == ""
    assert tools.preview("run_command", {"command": "ls"}) == "```sh\nls\n```"
    assert tools.run("calculate", {"expression": "6*7"}, Event()) == ToolOutput("42")


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("nothing", {}, "there is no tool `nothing`; tools: read_file, "),
        ("read_file", {}, "`path` is missing"),
        ("read_file", {"path": None}, "`path` is missing"),
        ("read_file", {"file": "f"}, "there is no argument `file`; arguments: path, from_line, to_line"),
        ("read_file", {"path": 3}, "`path` has to be a text, not 3"),
        ("read_file", {"path": ["f"]}, "`path` has to be a text, not ['f']"),
        ("read_file", {"path": "f", "from_line": 0}, "`from_line` has to be a whole number from 1 to "),
        ("read_file", {"path": "f", "to_line": "3"}, "`to_line` has to be a whole number from 1 to "),
        (
            "run_command",
            {"command": "ls", "timeout_s": 9999},
            "`timeout_s` has to be a whole number from 1 to 600",
        ),
        (
            "edit_file",
            {"path": "f", "old_text": "one", "replace_all": True},
            "there is no argument `replace_all`",
        ),
        ("time", {"zone": "../../etc/passwd"}, "there is no time zone"),
        ("time", {"zone": "Europe"}, "there is no time zone `Europe`; name a place"),
    ],
)
def test_a_wrong_call_is_one_line_that_lets_the_model_mend_it(
    tools: OwnTools, name: str, arguments: dict[str, object], complaint: str
) -> None:
    with pytest.raises(UserError, match=re.escape(complaint)) as caught:
        tools.run(name, arguments, Event())
    assert "\n" not in str(caught.value)


def test_arguments_that_are_null_take_their_defaults(tools: OwnTools) -> None:
    assert tools.run("read_file", {"path": "f", "from_line": None}, Event()).text == "1\tone"
    assert tools.run("list_folder", {"path": None}, Event()).text == "f  4 bytes"


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["read_file:secrets", "*:key.*", "search_files:secrets/**", "READ_*:KEY.*"])
def test_a_rule_that_denies_a_file_also_counts_for_its_lines(tmp_path: Path, rule: str) -> None:
    (tmp_path / "secrets").mkdir()
    for name in ("secrets/key.pem", "f"):
        (tmp_path / name).write_text("word\n")
    tools = OwnTools(Workspace(tmp_path), GROUPS, deny=(rule, "write_file:f"))
    for path in (".", "secrets"):
        text = tools.run("search_files", {"pattern": "word", "path": path}, Event()).text
        assert text == ("f:1: word" if path == "." else "no line matches `word`")


def test_the_time_has_its_zone(tools: OwnTools) -> None:
    local, berlin = (tools.run("time", each, Event()).text for each in ({}, {"zone": "Europe/Berlin"}))
    form = r"\w+day, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d\d:\d\d \(.+\)"
    assert re.fullmatch(form, local)
    assert re.fullmatch(form, berlin)
    assert berlin.endswith(("+01:00 (Europe/Berlin)", "+02:00 (Europe/Berlin)"))


@pytest.mark.slow
def test_the_tools_load_nothing_that_is_not_called() -> None:
    code = "import sys, localspec.tools.own; print('\\n'.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"html_to_markdown", "pypdf", "psutil", "llama_cpp", "numpy", "tomlkit", "ssl"} & set(loaded)


@pytest.mark.slow
def test_random_calls_do_to_files_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # which takes most of the time
    generator, tools, expected = random.Random(11), OwnTools(Workspace(tmp_path), GROUPS), dict[str, str]()
    names = ["a", "b.txt", "d/c", "d/e/f", "ü €"]
    pieces = ["one\n", "two\n", "\tü\n", "x", "", "\n", "$& \\1\n"]
    done = 0
    for _ in range(2000):
        name, kind = generator.choice(names), generator.random()
        text = "".join(generator.choices(pieces, k=generator.randint(0, 6)))
        if kind < 0.3:
            tools.run("write_file", {"path": name, "text": text}, Event())
            expected[name] = text
        elif kind < 0.7:
            old = generator.choice([text, expected.get(name, "")[generator.randint(0, 9) :][:5]])
            call = {"path": name, "old_text": old, "new_text": text}
            before = expected.get(name, "")
            count = sum(before.startswith(old, at) for at in range(len(before))) if old else 0
            if count != 1 or old == text:
                with pytest.raises(UserError):
                    tools.run("edit_file", call, Event())
                continue
            tools.run("edit_file", call, Event())
            after = before.replace(old, text)
            is_open = before.endswith("\n") and after and not after.endswith("\n")
            expected[name] = after + "\n" * bool(is_open)
        elif expected.get(name):
            lines = expected[name].removesuffix("\n").split("\n")
            numbered = "\n".join(f"{number}\t{line}" for number, line in enumerate(lines, 1))
            assert tools.run("read_file", {"path": name}, Event()).text == numbered
        done += 1
        if name in expected:
            assert (tmp_path / name).read_bytes().decode() == expected[name]
    assert {
        path.relative_to(tmp_path).as_posix(): path.read_bytes().decode()
        for path in tmp_path.rglob("*")
        if path.is_file()
    } == expected
    assert done > 1000
