from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import localspec
from localspec.app.opener import ChatModels, OpeningWatch
from localspec.app.screen import ScreenRequest
from localspec.cli import main as command_line
from localspec.cli import screen
from localspec.errors import UserError
from localspec.storage.profiles import Profiles
from localspec.types.request import Message
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import FakeInput, FakeRuntime

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("arguments", [["-h"], ["--help"], ["help"]])
def test_help_names_the_verbs(invoke: Invoke, arguments: list[str]) -> None:
    outcome = invoke(*arguments)
    assert outcome.code == 0
    assert all(verb in outcome.out for verb in ("run", "chat", "verify"))


@pytest.mark.parametrize("verb", [*command_line.VERBS, "ls"])
def test_help_with_a_verb_is_the_help_of_the_verb(invoke: Invoke, verb: str) -> None:
    assert invoke("help", verb) == invoke(verb, "--help")
    assert invoke("help", verb).code == 0


@pytest.mark.parametrize("verb", ["run", "chat", "verify"])
def test_help_of_a_verb_lists_its_flags_but_no_hidden_ones(invoke: Invoke, verb: str) -> None:
    outcome = invoke(verb, "--help")
    assert outcome.code == 0
    assert "--draft-length" in outcome.out
    assert "--draft-max" not in outcome.out


@pytest.mark.parametrize(
    "words",
    [*((verb,) for verb in command_line.VERBS), ("history", "show"), ("profiles", "edit")],
    ids=" ".join,
)
def test_help_is_plain_text(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # which Python's own help obeys since 3.14, as it does a terminal
    outcome = invoke(*words, "--help")
    assert outcome.code == 0
    assert outcome.out.startswith("usage: localspec ")
    assert "\x1b" not in outcome.out


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(invoke: Invoke, flag: str) -> None:
    assert invoke(flag).out == f"localspec {localspec.__version__}\n"


@pytest.mark.parametrize(("word", "verb"), [("rnu", "run"), ("chta", "chat"), ("Verifi", "verify")])
def test_a_misspelt_verb(fake: FakeRuntime, invoke: Invoke, word: str, verb: str) -> None:
    outcome = invoke(word)
    assert outcome.code == 2
    assert f"did you mean `{verb}`?" in outcome.err
    assert f'localspec run "{word}"' in outcome.err
    assert fake.opened == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("plugin add x", "there is no command `plugin`; did you mean `mcp`?"),
        ("MCP list --json", "there is no command `MCP`; did you mean `mcp`?"),
        ("auth add context7 -- npx -y context7", "there is no command `auth`"),
        ("login", "there is no command `login`\n"),
        ("ps", "there is no command `ps`\n"),
        ("install qwen", "there is no command `install`; did you mean `pull`?"),
        ("create mymodel -f Modelfile", "there is no command `create`"),
        ("sessions", "there is no command `sessions`; did you mean `history`?"),
        ("server --port 80", "there is no command `server`; did you mean `serve`?"),
        ("frobnicate --all", "there is no command `frobnicate`, and no question has --all"),
        ("frobnicate x --all", "there is no command `frobnicate`, and no question has --all"),
        ("plam -m x.gguf", "there is no command `plam`; did you mean `plan`?"),
    ],
)
def test_what_is_meant_as_a_verb_is_never_asked(
    fake: FakeRuntime, invoke: Invoke, arguments: str, told: str
) -> None:
    outcome = invoke(*arguments.split())
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {told}")
    assert f'`localspec run "{arguments.split(maxsplit=1)[0]}' in outcome.err
    assert fake.opened == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["mcp add x"],
        ["install qwen", "-n", "3"],
        ["Hello"],
        ["Hello", "there", "--temp", "1"],
        ["Hi", "-n", "3", "--mode", "off"],
        ["create", "a", "story", "about", "foxes"],
        ["search", "for", "what?"],
        ["2+2?"],
        ["run", "mcp", "add", "x"],
        ["--", "mcp", "add", "x"],
        ["-p", "mcp"],
    ],
)
def test_what_is_meant_as_a_question_is_asked(
    fake: FakeRuntime, invoke: Invoke, arguments: list[str]
) -> None:
    assert invoke(*arguments).code == 0
    assert len(fake.requests) == 1


@pytest.mark.usefixtures("fake")
def test_a_flag_with_a_wrong_value_is_reported_as_such(invoke: Invoke) -> None:
    outcome = invoke("Hello", "--temp", "warm")
    assert outcome.code == 2
    assert "`warm` is not a number" in outcome.err


def test_a_question_that_begins_like_a_verb_is_a_question(fake: FakeRuntime, invoke: Invoke) -> None:
    assert invoke("run it").code == 0
    assert fake.requests[0].prompt == (Message("user", "run it"),)


@pytest.mark.parametrize(("arguments", "talks"), [([], True), (["--temp", "1"], True), (["-p", "Hi"], False)])
def test_a_bare_command_at_a_terminal_is_a_chat(
    fake: FakeRuntime, invoke: Invoke, arguments: list[str], talks: bool
) -> None:
    outcome = invoke(*arguments, typed="")
    assert outcome.code == 0
    assert ("/help lists the commands" in outcome.err) == talks
    assert len(fake.opened) == 1


def test_a_bare_command_without_terminal_and_text_is_a_mistake(fake: FakeRuntime, invoke: Invoke) -> None:
    outcome = invoke()
    assert outcome.code == 2
    assert "standard input is empty" in outcome.err
    assert fake.opened == []


@pytest.mark.parametrize(
    ("arguments", "readied"),
    [
        (["run", "Hi"], ["Hi"]),
        (["Is it so?", "-v"], ["Is it so?", "-v"]),
        (["--plain", "--no-fit"], ["--plain", "--no-fit"]),
        (["verify", "--no-fit"], ["--no-fit"]),
        (["run", "--help"], None),
        (["--version"], None),
        (["profiles"], None),
    ],
)
def test_who_opens_models_for_an_answer_is_reported_before_the_verb(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], readied: list[str] | None
) -> None:
    order: list[object] = []

    def verb(_name: str) -> Callable[[Sequence[str]], int]:
        order.append("verb")
        return lambda _argv: 0

    monkeypatch.setattr(command_line, "_verb", verb)
    command_line.main(arguments, lambda _argv: 0, order.append)
    assert order == [*([readied] if readied else []), *(["verb"] if "--version" not in arguments else [])]


@pytest.mark.usefixtures("empty_home")
def test_attaching_opens_the_screen_on_the_models_of_a_server() -> None:
    opened: list[ScreenRequest] = []

    def show(request: ScreenRequest) -> int:
        opened.append(request)
        return 0

    assert command_line.main(["--attach", "127.0.0.1:9"], lambda argv: screen.main(argv, show)) == 0
    with pytest.raises(UserError, match=r"the server at 127\.0\.0\.1:9 does not answer"):
        opened[0].opener.open(None, OpeningWatch())
    assert not opened[0].opens_default_pair
    assert not opened[0].opener.offers_choices
    assert opened[0].opener.at_home() is None
    assert not ChatModels(opened[0].opener, Profiles(())).run_was_stopped()


@pytest.mark.usefixtures("empty_home")
def test_better_models_are_looked_for_where_no_one_named_any(demo_target: Path) -> None:
    opened: list[ScreenRequest] = []

    def show(request: ScreenRequest) -> int:
        opened.append(request)
        return 0

    for arguments in ([], ["-m", str(demo_target)]):
        assert screen.main(arguments, show) == 0
    assert [request.opens_default_pair for request in opened] == [True, False]


@pytest.mark.usefixtures("empty_home")
def test_attaching_and_naming_models_is_a_mistake(
    demo_target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = command_line.main(
        ["--attach", "-m", str(demo_target)], lambda argv: screen.main(argv, lambda _request: 0)
    )
    assert code == 2
    assert "--attach uses the models of a server" in capsys.readouterr().err


@pytest.mark.slow
def test_the_screen_starts_without_what_only_the_models_need() -> None:
    code = (
        "import sys; import localspec.cli.screen, localspec_tui.app\n"
        "heavy = {'numpy', 'llama_cpp', 'psutil', 'jinja2', 'localspec.inference.runtime'}\n"
        "print(heavy & set(sys.modules))\n"
    )
    path = os.pathsep.join((str(ROOT), str(ROOT / "tui")))
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert result.stdout == "set()\n"


def test_checking_arguments_imports_nothing_heavy() -> None:
    code = (
        "import sys; from localspec.__main__ import main\n"
        "assert main(['run', 'Hi', '--temp', '-1']) == 2\n"
        "assert main(['verify', '--mode', 'off']) == 2\n"
        "assert main(['bench', '--modes', 'fast']) == 2\n"
        "assert main(['chat', '--json']) == 2\n"
        "print({'numpy', 'llama_cpp', 'localspec.inference.runtime', 'logging'} & set(sys.modules))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout == "set()\n"


@pytest.mark.parametrize(
    ("terminal", "variable", "arguments", "opens"),
    [
        (True, "xterm-256color", [], True),
        (True, "xterm-256color", ["--temp", "1"], True),
        (True, "xterm-256color", ["--plain"], False),
        (True, "dumb", [], False),
        (False, "xterm-256color", [], False),
    ],
)
@pytest.mark.usefixtures("fake")
def test_screen_opens_where_someone_sits_before_a_terminal_that_can_draw_it(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, variable: str, arguments: list[str], opens: bool
) -> None:
    opened: list[Sequence[str]] = []

    def open_screen(argv: Sequence[str]) -> int:
        opened.append(argv)
        return 0

    monkeypatch.setenv("TERM", variable)
    monkeypatch.setattr("sys.stdin", FakeInput(b"", terminal=True))
    monkeypatch.setattr(command_line, "is_terminal", lambda stream: stream is sys.stdin or terminal)
    assert command_line.main(arguments, open_screen) == 0
    assert opened == ([arguments] if opens else [])


@pytest.mark.parametrize(
    ("word", "way"),
    [
        ("version", "`localspec --version`"),
        ("update", "README, Install"),
        ("upgrade", "README, Install"),
        ("config", "config.toml"),
        ("settings", "config.toml"),
        ("login", "HF_TOKEN"),
        ("ps", "`localspec models`"),
        ("stop", "Ctrl+C"),
        ("quit", "/exit"),
        ("search", "`localspec history search`"),
    ],
)
def test_words_of_other_programs_get_what_does_it_here(
    fake: FakeRuntime, invoke: Invoke, word: str, way: str
) -> None:
    outcome = invoke(word)
    assert outcome.code == 2
    assert f"there is no command `{word}`" in outcome.err
    assert way in outcome.err
    assert fake.opened == []


@pytest.mark.parametrize(
    "question",
    [
        "list three fruits",
        "show me the money",
        "plan a trip to Rome",
        "pull my finger, please",
        "history of Rome",
    ],
)
def test_a_question_that_begins_with_a_verb_learns_how_to_ask(invoke: Invoke, question: str) -> None:
    outcome = invoke(*question.split())
    assert outcome.code == 2
    assert f'`localspec run "{question}"`' in outcome.err


@pytest.mark.parametrize(
    "arguments", [["show", "no-such.gguf"], ["models", "/no/such"], ["plan", "--nonsense"]]
)
def test_other_mistakes_are_not_questions(invoke: Invoke, arguments: list[str]) -> None:
    outcome = invoke(*arguments)
    assert outcome.code == 2
    assert "ask the model" not in outcome.err
