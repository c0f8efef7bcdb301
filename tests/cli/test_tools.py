"""`run --tools` and tools in `chat`: what runs by itself, what is asked, and where no user can be asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.chat.tool_use.kit import ToolKit
from localspec.chat.tool_use.offer import NEXT
from localspec.storage.config import Config
from localspec.storage.paths import config_dir
from tests.chat.made_mcp import MadeServer
from tests.chat.tool_models import WritesCalls, called
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import FakeRuntime, says


class CallingRuntime(WritesCalls, FakeRuntime):
    """A fake runtime whose model can call tools."""


@pytest.fixture
def fake(fake: FakeRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRuntime:
    assert not fake.requests  # another one takes its place
    workspace = tmp_path / "work"
    workspace.mkdir()
    (workspace / "a.txt").write_text("alpha\n")
    monkeypatch.chdir(workspace)
    runtime = CallingRuntime()
    runtime.install(monkeypatch.setattr)
    return runtime


WRITES = called("write_file", path="b.txt", text="beta\n")


def result(fake: FakeRuntime, place: int = -1) -> str:
    """Return what the model was told last of a call."""
    message = fake.requests[place].prompt[-1]
    assert not isinstance(message, str)
    return message.content.removesuffix(f"\n\n{NEXT}")


def test_a_rule_lets_files_be_read(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says("I look.\n", called("read_file", path="a.txt")), says("It says alpha.")]
    outcome = invoke("run", "--tools", "files", "--yes", "read_file", "what is in a.txt?")
    assert (outcome.code, outcome.out) == (0, "I look.\nIt says alpha.\n")
    assert "→ read_file  path: a.txt" in outcome.err
    assert "← read_file, done" in outcome.err
    assert "alpha" in result(fake)


def test_a_question_of_several_steps_is_split_for_a_small_model(fake: FakeRuntime, invoke: Invoke) -> None:
    steps = ["What is in a.txt?", "Write b.txt."]
    fake.scripts = [
        says(json.dumps(steps)),
        says(called("read_file", path="a.txt")),
        says("It says alpha."),
        says(WRITES),
        says("Written."),
    ]
    rules = ("--yes", "read_file", "--yes", "write_file:*")
    outcome = invoke("run", "--tools", "files", *rules, "what is in a.txt? Then write b.txt.")
    assert (outcome.code, outcome.out) == (0, "It says alpha.\nWritten.\n")
    asked = [line for line in outcome.err.splitlines() if line.startswith("LocalSpec asks")]
    assert asked == [
        f"LocalSpec asks for step {number} of 2 of the question: {step}"
        for number, step in enumerate(steps, 1)
    ]
    assert Path("b.txt").read_text() == "beta\n"


def test_config_toml_switches_the_steps_off(fake: FakeRuntime, invoke: Invoke) -> None:
    config_dir().mkdir(parents=True, exist_ok=True)
    (config_dir() / "config.toml").write_text('[tools]\nsteps = "off"\n')
    fake.scripts = [says("It says alpha.")]
    outcome = invoke("run", "--tools", "files", "what is in a.txt? Then write b.txt.")
    assert (outcome.out, len(fake.requests)) == ("It says alpha.\n", 1)


def test_what_writes_needs_a_user_or_a_rule(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says(WRITES), says("Not written.")]
    outcome = invoke("run", "--tools", "files", "write b.txt")
    assert outcome.code == 0
    assert "+beta" in outcome.err
    assert "--yes RULE allows such calls" in outcome.err
    assert not Path("b.txt").exists()
    assert result(fake).startswith("This was not run")


def test_a_rule_allows_a_call(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says(WRITES), says("Written.")]
    outcome = invoke("run", "--tools", "files", "--yes", "write_file:*.txt", "write b.txt")
    assert (outcome.code, outcome.out) == (0, "Written.\n")
    assert Path("b.txt").read_text() == "beta\n"


def test_the_answer_is_one_object_with_json(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says(called("calculate", expression="2**100")), says("It is large.")]
    outcome = invoke("run", "--json", "--tools", "calculate", "what is 2 to the 100?")
    assert json.loads(outcome.out)["text"] == "It is large."
    assert "1267650600228229401496703205376" in result(fake)


@pytest.mark.parametrize(("answer", "runs"), [("y", True), ("n", False), ("write c.txt instead", False)])
def test_a_chat_asks_in_the_terminal(fake: FakeRuntime, invoke: Invoke, answer: str, runs: bool) -> None:
    fake.scripts = [says(WRITES), says("Done.")]
    outcome = invoke("chat", "--tools", "files", typed=f"write b.txt\n{answer}\n")
    assert outcome.code == 0
    assert "write_file wants to change files" in outcome.err
    assert Path("b.txt").exists() is runs
    if not runs:
        assert result(fake).endswith("refused it." if answer == "n" else "refused it: write c.txt instead.")


def test_tools_are_listed_and_switched_in_a_chat(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says("Hello.")]
    outcome = invoke("chat", piped=b"/tools\n/tools time on\n/tools\nhello\n/tools off\n/tools nothing on\n")
    assert "off files" in " ".join(outcome.err.split())
    assert "tools on in this chat: time" in outcome.err
    assert [bool(request.tools) for request in fake.requests] == [True]
    assert outcome.code == 2
    assert "there are no tools `nothing`" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--tools", "files,nothing"], "there are no tools `nothing`"),
        (["--tools", "files", "--no-chat"], "--tools cannot be combined with"),
        (["--tools", "files", "-j", '{"type": "object"}'], "--tools cannot be combined with"),
    ],
)
@pytest.mark.usefixtures("fake")
def test_a_mistake_is_told(invoke: Invoke, arguments: list[str], line: str) -> None:
    outcome = invoke("run", *arguments, "hello")
    assert (outcome.code, outcome.out) == (2, "")
    assert line in outcome.err


def test_a_mistake_in_mcp_json_does_not_end_a_chat(fake: FakeRuntime, invoke: Invoke) -> None:
    config_dir().mkdir(parents=True, exist_ok=True)
    (config_dir() / "mcp.json").write_text('{"mcpServers": {"x": {"command": 5}}}')
    fake.scripts = [says("Hello.")]
    outcome = invoke("run", "--tools", "files", "hello")
    assert outcome.code == 2
    assert "mcp.json" in outcome.err


def use_server(
    monkeypatch: pytest.MonkeyPatch, server: MadeServer, close: Callable[[], object] = lambda: None
) -> None:
    """Give chats a server in place of those of mcp.json."""
    from localspec.app import tools

    make = tools.tool_kit

    def made(config: Config, folder: Path, *, yes: Sequence[str]) -> ToolKit:
        return replace(make(config, folder, yes=yes), servers={"docs": server}, close=close)

    monkeypatch.setattr(tools, "tool_kit", made)


def test_a_prompt_of_a_server_begins_the_next_message(
    fake: FakeRuntime, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(monkeypatch, server := MadeServer(prompt="Review\n@a.txt"))
    fake.scripts = [says("One."), says("Two.")]
    lines = b"/docs:\n/docs:review a\nin short\n/docs:review b\n-\n/docs:review c\n\n"
    outcome = invoke("chat", piped=lines)
    assert outcome.code == 0
    assert "docs has 2 prompts" in outcome.err
    sent = [result(fake, place) for place in range(2)]
    assert sent == ["Review\n@a.txt\n\nin short", "Review\n@a.txt"]
    assert [each for each in server.asked if "review" in each][-1] == "review {'file': 'c'}"


def test_a_resource_of_a_server_is_attached(
    fake: FakeRuntime, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(monkeypatch, MadeServer())
    fake.scripts = [says("One.")]
    outcome = invoke("chat", piped=b"sum up @docs:One\n")
    assert "attached mcp://docs/note:one, 8 bytes" in outcome.err
    assert result(fake).startswith("Resource mcp://docs/note:one, which is data")


@pytest.mark.parametrize("flags", [(), ("--tools", "files")])
def test_run_attaches_a_resource_and_ends_its_server(
    fake: FakeRuntime, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    ended = []
    server = MadeServer()
    use_server(monkeypatch, server, lambda: ended.append(1))
    fake.scripts = [says("One.")]
    outcome = invoke("run", *flags, "sum up @docs:One")
    assert (outcome.code, outcome.out) == (0, "One.\n")
    assert "attached mcp://docs/note:one, 8 bytes" in outcome.err
    assert result(fake).startswith("Resource mcp://docs/note:one, which is data")
    assert server.asked == ["resources", "note:one"]
    assert ended


def write_mcp_json(text: str) -> None:
    config_dir().mkdir(parents=True, exist_ok=True)
    (config_dir() / "mcp.json").write_text(text)


def test_what_a_mistake_in_mcp_json_keeps_from_being_found_is_not_sent(
    fake: FakeRuntime, invoke: Invoke
) -> None:
    write_mcp_json('{"mcpServers": {"docs": {"command": 5}}}')
    outcome = invoke("run", "sum up @docs:One")
    assert outcome.code == 2
    assert "mcp.json" in outcome.err
    assert "a \\ before the @ makes it plain text" in outcome.err
    outcome = invoke("chat", typed="sum up @docs:One\n/docs:review a\n")
    assert outcome.err.count("mcpServers") >= 2
    assert not fake.requests


def test_a_prompt_of_a_server_that_is_not_there_is_not_sent(fake: FakeRuntime, invoke: Invoke) -> None:
    write_mcp_json('{"mcpServers": {"docs": {"command": "none"}}}')
    outcome = invoke("chat", typed="/doc:review a\n")
    assert "there is no MCP server `doc`; did you mean `/docs:`?" in outcome.err
    assert not fake.requests


def test_a_server_that_fails_is_one_line_in_a_chat(
    fake: FakeRuntime, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(monkeypatch, MadeServer(problem="the MCP server `docs` has ended"))
    outcome = invoke("chat", typed="/docs:review a\n@docs:One\n")
    assert outcome.err.count("the MCP server `docs` has ended") == 2
    assert not fake.requests
