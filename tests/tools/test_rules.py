from __future__ import annotations

import random
import shlex
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from localspec.storage.paths import data_dir
from localspec.tools.choices import choose, chosen, forget
from localspec.tools.rules import Consent, ConsentRules, Subject, choice, consent, full_name, subject_of
from localspec.tools.tool import Arguments, Effect, Tool
from localspec.tools.workspace import Workspace


def tool(name: str, effect: Effect, source: str = "") -> Tool:
    properties: dict[str, object] = {"path": {}} if name.endswith(("_file", "_files", "_folder")) else {}
    return Tool(name, "", {"properties": properties}, effect, source)


READ, WRITE = tool("read_file", "reads"), tool("write_file", "writes")
RUN, FETCH = tool("run_command", "runs"), tool("fetch_page", "fetches")
CLOCK = tool("time", "none")


def command(text: str, *allow: str, deny: tuple[str, ...] = ()) -> str:
    subject = Subject("command", text)
    return consent(RUN, subject, ConsentRules(allow, deny)).answer


def path(root: Path, called: Tool, name: str, *allow: str, deny: tuple[str, ...] = ()) -> str:
    subject = subject_of(called, {"path": name}, Workspace(root))
    return consent(called, subject, ConsentRules(allow, deny)).answer


def address(url: str, *allow: str, deny: tuple[str, ...] = ()) -> str:
    subject = subject_of(FETCH, {"url": url}, Workspace(Path("/")))
    return consent(FETCH, subject, ConsentRules(allow, deny)).answer


def test_without_rules_only_what_does_nothing_needs_no_consent() -> None:
    answers = {
        each.name: consent(each, Subject(), ConsentRules()).answer for each in (READ, WRITE, RUN, FETCH)
    }
    assert set(answers.values()) == {"ask"}
    assert consent(CLOCK, Subject(), ConsentRules()) == Consent("allow")
    assert consent(tool("time", "none", "server"), Subject(), ConsentRules()) == Consent("ask")


def test_the_rule_that_decides_is_named() -> None:
    rules = ConsentRules(allow=("read_file", "run_command:git status*"), deny=("write_file:*.env",))
    assert consent(READ, Subject("path", "a"), rules) == Consent("allow", "read_file")
    assert consent(RUN, Subject("command", "git status -s"), rules) == Consent(
        "allow", "run_command:git status*"
    )
    assert consent(WRITE, Subject("path", "sub/.env"), rules) == Consent("deny", "write_file:*.env")
    assert consent(WRITE, Subject("path", "a"), rules) == Consent("ask")


def test_a_rule_that_denies_goes_before_all_others() -> None:
    rules = ConsentRules(allow=("*",), deny=("time", "read_*"), chosen=("read_file",))
    for each in (READ, CLOCK):
        assert consent(each, Subject(), rules).answer == "deny"
    assert consent(WRITE, Subject(), rules) == Consent("allow", "*")


def test_choices_made_in_a_chat_never_allow_to_write_or_run() -> None:
    rules = ConsentRules(chosen=("*", "write_file", "run_command", "read_file"))
    assert [consent(each, Subject(), rules).answer for each in (READ, FETCH, WRITE, RUN)] == [
        "allow", "allow", "ask", "ask",
    ]  # fmt: skip


def test_what_always_saves_is_no_more_than_was_asked_for() -> None:
    workspace = Workspace(Path("/"))
    assert choice(READ, Subject("path", "a")) == "read_file"
    assert choice(WRITE, Subject("path", "a")) == choice(RUN, Subject("command", "ls")) == ""
    assert choice(tool("get", "reads", "notes"), Subject()) == "notes.get"
    rule = choice(FETCH, subject_of(FETCH, {"url": "HTTPS://Docs.Python.org/3/x?y#z"}, workspace))
    assert rule == "fetch_page:https://docs.python.org/*"
    assert address("https://docs.python.org/3/", rule) == "allow"
    assert address("https://docs.python.org:8443/3/", rule) == "ask"
    assert choice(FETCH, subject_of(FETCH, {"url": "https://a@b/"}, workspace)) == ""


@pytest.mark.parametrize("text", ["git status", "git status --short", "git status -- 'a b'"])
def test_a_command_is_allowed_by_its_rule(text: str) -> None:
    assert command(text, "run_command:git status*") == "allow"


@pytest.mark.parametrize(
    "text",
    [
        "git status; rm x", "git status && rm x", "git status || rm x", "git status & rm x",
        "git status | sh",
        "git status $(rm x)", "git status `rm x`", "git status\nrm x", "git status > x", "git status >> x",
        "git status < x", "git status <(rm x)", "git status >(rm x)", "git status\r\nrm x",
        "git status ${X:=y}",
        "git status $X", 'git status "$(rm x)"', "git status \\\nrm", "git status 2>&1", "git status;",
        "(git status)",
        "X=1 git status", " rm x; git status", "git  status", "git\tstatus", "git stat\\us", "! git status",
        "{ git status; }", "git status\0", "git status|&cat", "git status <<X\nX", "git statu",
        "sudo git status",
    ],
)  # fmt: skip
def test_no_rule_lets_a_second_command_or_a_redirection_through(text: str) -> None:
    assert command(text, "run_command:git status*") == "ask"


@pytest.mark.slow
def test_a_command_that_a_rule_allows_runs_alone(tmp_path: Path) -> None:
    generator = random.Random(3)
    parts = [
        "echo",
        " ",
        "ok",
        ";",
        "&&",
        "|",
        "\n",
        "$(",
        ")",
        "`",
        "touch evil",
        "'",
        '"',
        "\\",
        ">",
        "&",
        "{",
    ]
    texts = ["echo ok" + "".join(generator.choices(parts, k=generator.randint(0, 5))) for _ in range(1500)]
    allowed = {text for text in texts if command(text, "run_command:echo *") == "allow"}
    assert len(allowed) > 30
    run_each(allowed, tmp_path)
    assert list(tmp_path.iterdir()) == []
    run_each(texts[:200], tmp_path)  # the others would have run it
    assert (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("rule", "text", "expected"),
    [
        ("git diff*", "git diff", "allow"),
        ("git diff*", "git diff --stat HEAD~5", "allow"),
        ("git diff*", "git difftool --no-prompt -x ./evil", "ask"),
        ("git diff *", "git diff HEAD", "allow"),
        ("npm run test:*", "npm run test:unit", "allow"),
        ("*", "make test", "allow"),
        ("git diff*", "git diff --output=/home/me/.bashrc HEAD~5", "ask"),
        ("git log*", "git log --outpu=x", "ask"),
        ("git log*", "git log '--output=x'", "ask"),
        ("git log*", "git log --pretty=oneline", "allow"),
        ("git show*", "git show --ext-diff", "ask"),
        ("git grep*", "git grep --open-files-in-pager=evil x", "ask"),
        ("git grep*", "git grep -Oevil x", "ask"),
        ("git *", "git -c core.pager=evil log", "ask"),
        ("find *", "find . -name x -exec rm x +", "ask"),
        ("find *", "find . -delete", "ask"),
        ("find *", "find . -name *.py", "allow"),
        ("rg *", "rg --pre evil x", "ask"),
        ("sed *", "sed -i s/a/b/ x", "ask"),
        ("sort*", "sort -o x y", "ask"),
        ("tar *", "tar xf a.tar --to-command=evil", "ask"),
    ],
)
def test_a_rule_allows_arguments_but_no_other_effect(rule: str, text: str, expected: str) -> None:
    assert command(text, f"run_command:{rule}") == expected


def run_each(texts: Iterable[str], folder: Path) -> None:
    script = "".join(f"/bin/sh -c {shlex.quote(text)} </dev/null\n" for text in texts)
    subprocess.run(["/bin/sh"], input=script, text=True, cwd=folder, capture_output=True, check=False)


@pytest.mark.parametrize(
    "text",
    [
        "rm x", "/bin/rm x", "sudo rm x", "sudo -n /bin/rm x", "env A=1 rm x", "A=1 rm x", "ls; rm x",
        "ls && rm x",
        "echo $(rm x)", "`rm x`", "bash -c 'rm x'", "r\\m x", "'rm' x", "RM x", "ls\nrm x", "nohup nice rm x",
        "timeout -k rm x",
    ],
)  # fmt: skip
def test_a_denied_command_is_found_where_it_hides(text: str) -> None:
    assert command(text, "*", deny=("run_command:rm *",)) == "deny"


def test_a_rule_that_denies_a_command_leaves_others_alone() -> None:
    for text in ("ls rm", "git rm x", "echo 'rm x'", "format x"):
        assert command(text, "run_command", deny=("run_command:rm *",)) == "allow"


def test_a_path_is_compared_without_detours(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "docs" / "link").symlink_to("../src")
    rule = "write_file:docs/**"
    assert path(tmp_path, WRITE, "docs/a/b.md", rule) == "allow"
    assert path(tmp_path, WRITE, str(tmp_path / "docs" / "a.md"), rule) == "allow"
    for name in ("docs/../src/a.py", "docs/link/a.py", "src/docs/a.py", "../docs/a.md", "docs", ""):
        assert path(tmp_path, WRITE, name, rule) == "ask", name
    assert path(tmp_path, WRITE, "a/b/c.md", "write_file:*.md") == "allow"


def test_a_denied_path_is_found_by_any_way(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("")
    (tmp_path / "plain").symlink_to("secrets/key")
    (tmp_path / "way").symlink_to("secrets")
    for name in (
        "secrets/key",
        "./secrets/../secrets/key",
        "plain",
        "way/key",
        "SECRETS/KEY",
        "way",
        "secrets/deep/x",
    ):
        assert path(tmp_path, READ, name, "*", deny=("*:secrets",)) == "deny", name
    assert path(tmp_path, READ, "other", "*", deny=("*:secrets",)) == "allow"
    assert path(tmp_path, READ, "a/.env", "*", deny=("*:.env",)) == "deny"
    assert path(tmp_path, READ, "../x", "*", deny=("*:.env",)) == "deny"  # it cannot be compared


@pytest.mark.parametrize(
    "url",
    [
        "https://docs.python.org.evil.com/", "https://docs.python.org@evil.com/", "https://evil.com/docs.python.org/",
        r"https://docs.python.org\@evil.com/", "http://docs.python.org/", "https://docs.python.org:444/",
        "https://evil.com#https://docs.python.org/", "https://docs.python.org/../x", "https://docs.python.org/%2e%2E/x",
        "docs.python.org/", "https:///docs.python.org/", "https://[", "https://docs.python.org:x/",
    ],
)  # fmt: skip
def test_a_rule_for_a_site_allows_no_other(url: str) -> None:
    assert address("https://docs.python.org/3/", "fetch_page:https://docs.python.org/*") == "allow"
    assert address(url, "fetch_page:https://docs.python.org/*") == "ask"


def test_tools_of_servers_are_named_after_them() -> None:
    theirs = tool("files__read_file", "reads", "files")
    assert full_name(theirs) == "files.read_file"
    assert consent(theirs, Subject(), ConsentRules(("read_file", "read_*"))).answer == "ask"
    assert consent(theirs, Subject(), ConsentRules(("files.*",))).answer == "allow"
    assert consent(theirs, Subject(), ConsentRules(("files.*",), ("*:.env",))).answer == "allow"
    assert consent(theirs, Subject(), ConsentRules(("files.*",), ("files.*:.env",))).answer == "deny"
    assert subject_of(theirs, {"path": "a"}, Workspace(Path("/"))) == Subject()


@pytest.mark.parametrize("arguments", [{}, {"path": 3}, {"path": None}, {"command": ["ls"]}, {"url": 1}])
def test_wrong_arguments_are_about_nothing(arguments: Arguments, tmp_path: Path) -> None:
    for each in (READ, RUN, FETCH, CLOCK):
        subject = subject_of(each, arguments, Workspace(tmp_path))
        assert consent(each, subject, ConsentRules(("*:x",))).answer == ("allow" if each is CLOCK else "ask")


def test_choices_are_kept_for_one_workspace_in_a_private_file(tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert chosen(tmp_path) == ()
    choose(tmp_path, "read_file")
    choose(tmp_path, "read_file")
    choose(tmp_path, "notes.get")
    choose(other, "list_folder")
    assert chosen(tmp_path) == ("read_file", "notes.get")
    forget(tmp_path)
    assert chosen(tmp_path) == ()
    assert chosen(other) == ("list_folder",)
    assert stat.S_IMODE((data_dir() / "tool_choices.json").stat().st_mode) == 0o600


def test_a_damaged_file_of_choices_allows_nothing(tmp_path: Path) -> None:
    choose(tmp_path, "read_file")
    (data_dir() / "tool_choices.json").write_text('{"schema": 1, "workspaces": [{"workspace": 3}]}')
    assert chosen(tmp_path) == ()
