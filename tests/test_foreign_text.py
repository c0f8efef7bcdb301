"""No terminal obeys what files, servers, models and users wrote, whichever command or screen shows it."""

from __future__ import annotations

import json
import os
import pty
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from localspec.cli.main import main
from tests.llama import tiny
from tests.models.hub_server import Repository, in_place_of_the_hub
from tests.tui.terminal import Terminal

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are of Unix", allow_module_level=True)

# a clipboard, a title, a place of the cursor, a reset, characters of C1, an order of letters, other lines
EVIL = (
    "ev\x1b]52;c;RVZJTA==\x07il\x1b]0;owned\x1b\\a\x1b[37;1337Hb\x1bcc\x9b7md\x9d0;e\x9cf\u202eg\u2066h"
    "\u2028i\u2029j\x85k\x7fl\x08m\x0bn\x0e\rFORGED\nFORGED\tz"
)
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[^\[])?", re.DOTALL)
_OF_VERBS = re.compile(r"\x1b\[(?:(?:[012]|3[1236])?m|[KJ]|\d+A|\?2004[hl])")  # readline has the last
_OF_SCREEN = re.compile(r"\x1b(?:\[(?!37;1337H)[0-?]*[ -/]*[@-~]|[78=>])")
_POINTER = re.compile(rb"\x1b\]22;[a-z-]+\x07")  # which the mouse has over a button
_RETURN = re.compile(r"\r+(?=\n|\x1b\[(?:K|\d+A|J)|\x1b\[\?2004l|$)|(?<=\x1b\[\?2004l)\r")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


def obeyed(raw: bytes, own: re.Pattern[str]) -> list[str]:
    """Return what a terminal would obey that is not LocalSpec's own."""
    text = _RETURN.sub("", raw.decode("utf-8"))
    found = [each for each in _SEQUENCE.findall(text) if not own.fullmatch(each)]
    return found + _CONTROL.findall(text) + re.findall(r"^FORGED", text, re.MULTILINE)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models that say the same everywhere: in names, keys, a template and an architecture."""

    def rename(recipe: tiny.Recipe) -> None:
        recipe.writer.add_name(EVIL)
        recipe.writer.add_description(EVIL)
        recipe.writer.add_string(f"x.{EVIL}", EVIL)

    folder = tmp_path_factory.mktemp("models") / EVIL
    folder.mkdir()
    says_all = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tiny.llama(folder / f"{EVIL}.gguf", template=says_all, adjust=rename)
    tiny.llama(folder / f"refuses{EVIL}.gguf", template="{{ raise_exception(" + json.dumps(EVIL) + ") }}")
    tiny.llama(folder / f"breaks{EVIL}.gguf", template="{% " + EVIL)
    tiny.Recipe(folder / f"other{EVIL}.gguf", f"llama{EVIL}").write()
    odd = tiny.Recipe(folder / f"tokens{EVIL}.gguf", f"llama{EVIL}")
    odd.writer.add_tokenizer_model(EVIL)
    tiny._shape(odd)
    odd.matrix("token_embd", 16, tiny.WIDTH)
    odd.matrix(f"blk.0.attn_k{EVIL}", tiny.WIDTH, tiny.WIDTH)
    odd.write()
    (folder / f"text{EVIL}.gguf").write_text(EVIL, "utf-8")
    (folder / f"link{EVIL}.gguf").symlink_to(EVIL)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with settings, profiles and chats of the same kind."""
    profiles = tmp_path / "config" / "profiles"
    profiles.mkdir(parents=True)
    quoted = json.dumps(EVIL).replace("\\u2028", "\u2028")
    (profiles / f"own{EVIL}.toml").write_text(f"title = 'Own'\ntask = 'general'\nsystem_prompt = {quoted}\n")
    (profiles / f"bad{EVIL}.toml").write_text(f"title = {quoted}\ntask = {quoted}\n")
    (profiles / "worse.toml").write_text(f"title = 'x'\ntask = 'general'\n{quoted} = {quoted}\n")
    (tmp_path / f"note{EVIL}.txt").write_text(EVIL, "utf-8")
    return tmp_path


def variables(home: Path) -> dict[str, str]:
    folders = {f"LOCALSPEC_{kind}_DIR": str(home / kind.lower()) for kind in ("CONFIG", "DATA", "STATE")}
    return {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), **folders}


def chats(home: Path) -> Path:
    """Write chats to be imported."""
    message = {"id": 1, "parent": None, "role": "user", "content": EVIL, "state": "complete", "created": 0}
    answer = message | {"id": 2, "parent": 1, "role": "assistant"}
    chat = {"title": EVIL, "created": 0, "updated": 0, "profile": "general", "system": EVIL, "leaf": 2}
    path = home / f"chats{EVIL}.json"
    content = {"format": "localspec-chat", "schema": 1, "chat": chat, "messages": [message, answer]}
    path.write_text(json.dumps(content), "utf-8")
    return path


Run = Callable[..., bytes]


@pytest.fixture
def run(home: Path) -> Run:
    """Run the program in a terminal to its end; return everything that it wrote."""

    def call(*arguments: str, typed: str = "") -> bytes:
        with Terminal(arguments, variables=variables(home)) as terminal:
            terminal.send(typed)
            terminal.leave()
            read = -1
            while len(terminal.raw) > read:
                read = len(terminal.raw)
                terminal.read(0.2)
            assert "unexpected" not in terminal.output
            return terminal.raw

    return call


@pytest.fixture
def call(home: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Call a command that opens no models, in this process, with a terminal for its streams."""
    for name, value in variables(home).items():
        monkeypatch.setenv(name, value)

    def call(*arguments: str, typed: str = "") -> bytes:
        written: list[bytes] = []

        def read() -> None:
            with suppress(OSError):  # no one writes any more
                while data := os.read(master, 1 << 16):
                    written.append(data)

        master, slave = pty.openpty()
        os.write(master, typed.encode())
        reader = threading.Thread(target=read)
        reader.start()
        with monkeypatch.context() as patch:
            for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
                patch.setattr(sys, name, os.fdopen(os.dup(slave), mode, encoding="utf-8"))
            os.close(slave)
            with sys.stdin, sys.stdout, sys.stderr:
                main(arguments)
        reader.join()
        os.close(master)
        raw = b"".join(written)
        assert b"unexpected" not in raw
        return raw

    return call


def named(models: Path, beginning: str = "") -> str:
    return str(models / f"{beginning}{EVIL}.gguf")


KINDS = ["", "refuses", "breaks", "other", "tokens", "text", "link", "gone"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "words",
    [["show"], ["show", "--json"], ["pair"], ["plan", "--explain", "-m"], ["rm"], ["tune", "--show", "-m"]],
    ids=" ".join,
)
def test_a_model_that_is_looked_at(words: list[str], kind: str, models: Path, call: Run) -> None:
    assert obeyed(call(*words, named(models, kind), typed="n\n" if words == ["rm"] else ""), _OF_VERBS) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_answers(kind: str, models: Path, run: Run) -> None:
    wild = ("--temp", "3", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "1", "-n", "300")
    raw = run("run", "-v", "--stats", "--color", "-m", named(models, kind), *wild, EVIL)
    assert obeyed(raw, _OF_VERBS) == []
    assert (b"tokens/s" in raw) is (not kind)


@pytest.mark.slow
def test_a_chat_line_by_line(models: Path, run: Run) -> None:
    typed = "hello\n/nonsense\n/system a\n/stats\n/color\n/help\n/exit\n"
    raw = run("chat", "--plain", "-n", "50", "--temp", "3", "-m", named(models), typed=typed)
    assert b"/help lists the commands" in raw
    assert obeyed(raw, _OF_VERBS) == []


@pytest.mark.slow
def test_lists(models: Path, call: Run) -> None:
    raw = call("models", str(models))
    assert b"cannot be used" in raw
    assert obeyed(raw, _OF_VERBS) == []
    for words in (["doctor"], ["profiles"], ["profiles", "show", f"own{EVIL}"], ["pull", EVIL]):
        assert obeyed(call(*words), _OF_VERBS) == []


@pytest.mark.slow
def test_a_comparison(models: Path, run: Run) -> None:
    raw = run("bench", "-m", named(models), "--per-task", "1", "-n", "2", "--modes", "off")
    assert obeyed(raw, _OF_VERBS) == []


def test_earlier_chats(home: Path, call: Run) -> None:
    folder = f"{home / 'out'}{EVIL}/"
    for words in (["import", str(chats(home))], ["list"], ["search", "ev"], ["export", "1", "-o", folder]):
        raw = call("history", *words)
        assert b"ev]52;c" in raw
        assert obeyed(raw, _OF_VERBS) == []
    for words in (["delete", "1"], ["restore", "1"], ["list", "--json"]):
        assert obeyed(call("history", *words), _OF_VERBS) == []
    for words in (["show", "1"], ["export", "1"], ["show", "1", "--json"]):  # which have lines of their own
        assert set(obeyed(call("history", *words), _OF_VERBS)) <= {"FORGED"}


@pytest.mark.parametrize(
    "words",
    [
        ["run", EVIL, "--nonsense" + EVIL],
        ["run", "--mode", EVIL, "x"],
        ["-c", EVIL],
        ["run", "x", "--profile", EVIL],
        ["run", "x", "-sysf", EVIL],
        ["run", "x", "-dev", EVIL],
        ["run", "x", "--reserve", EVIL],
        ["history", EVIL],
        ["history", "show", EVIL],
        ["history", "import", EVIL],
        ["profiles", "show", EVIL],
        ["profiles", "copy", "general", EVIL],
        ["rm", EVIL],
        ["show", EVIL],
        ["models", EVIL],
        ["bench", "--prompts", EVIL],
        ["bench", "--against", EVIL],
        ["tune", "--task", EVIL],
        ["tune", "--export", EVIL],
        ["plan", "-ts", EVIL],
        ["run", "x", "--chat-template-kwargs", EVIL],
    ],
    ids=lambda words: " ".join(words).replace(EVIL, "EVIL").encode("ascii", "ignore").decode(),
)
def test_mistakes_on_the_command_line(words: list[str], call: Run) -> None:
    raw = call(*words)
    assert b"error: " in raw
    assert obeyed(raw, _OF_VERBS) == []


@pytest.mark.parametrize("content", ["models.target = {}", "{} = 1", "[keys]\n{} = {}", "theme = {}"])
def test_settings(content: str, home: Path, call: Run) -> None:
    (home / "config" / "config.toml").write_text(content.replace("{}", json.dumps(EVIL)) + "\n", "utf-8")
    for words in (["run", "x", "--temp", "x"], ["doctor"], ["plan"], ["rm", EVIL]):
        assert obeyed(call(*words), _OF_VERBS) == []


@pytest.mark.slow
def test_a_hub(models: Path, call: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = (models / f"{EVIL}.gguf").read_bytes()
    with in_place_of_the_hub(monkeypatch) as hub:
        hub.repositories["someone/tiny-GGUF"] = Repository(
            {f"{EVIL}-Q8_0.gguf": weights, "b-Q4_K_M.gguf": weights}
        )
        hub.repositories["someone/other"] = Repository({"a.gguf": weights}, commit=EVIL)
        for quant in ("Q8_0", "Q4_K_M", "Q2_K"):
            assert obeyed(call("pull", f"someone/tiny-GGUF:{quant}"), _OF_VERBS) == []
        assert obeyed(call("show", "someone/tiny-GGUF:Q8_0"), _OF_VERBS) == []
        assert obeyed(call("pull", "someone/other"), _OF_VERBS) == []
        hub.raw["/api/models"] = f"HTTP/1.1 403 {EVIL[:2]}\r\nX-Error-Message: {EVIL[2:40]}\r\n\r\n".encode()
        assert obeyed(call("pull", "someone/tiny-GGUF:Q6_K"), _OF_VERBS) == []
        assert obeyed(call("models"), _OF_VERBS) == []


@pytest.mark.slow
def test_the_screen(home: Path, models: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("history", "import", str(chats(home)))
    monkeypatch.chdir(home)
    arguments = ("-m", named(models), "--temp", "3", "-n", "60")
    with Terminal(arguments, variables=variables(home), size=(140, 40)) as terminal:
        terminal.shows("Ask anything")
        terminal.shows("ev]52;c")
        terminal.send("@note\t")
        terminal.shows("@note")
        terminal.send("\x15hello\r")
        terminal.shows("tokens/s")
        for keys in (
            "\x0b",
            "ev",
            "\x1b",
            "\x1bOR",
            "\x1bOQ",
            "/profile ",
            "\x15/log\r",
            "\x1b",
            "/nonsense\r",
            "/help\r",
        ):
            terminal.send(keys)
            for _ in range(8):
                terminal.read(0.05)
        terminal.send("\x1b")
        terminal.read(0.2)
        terminal.send("\x11")
        assert terminal.leave() == 0
        assert obeyed(_POINTER.sub(b"", terminal.raw), _OF_SCREEN) == []
