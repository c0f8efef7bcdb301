"""Streams that are closed, full or read by no one; signals; narrow terminals."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.cli.shared.console import (
    SIMPLER,
    ConsoleStatus,
    exit_on_signals,
    on_interrupt,
    print_json,
)
from localspec.errors import UserError
from localspec.storage.standard_input import StandardInput
from tests.cli.fake_runtime import FakeInput

ROOT = Path(__file__).parents[2]
FULL = Path("/dev/full")
ANSWER = (
    "import sys; from localspec.__main__ import main; from localspec.cli.shared import opening\n"
    "from tests.cli.fake_runtime import FakeRuntime, says\n"
    "FakeRuntime([says('Hel', 'lo')], notes=('a note',)).install(setattr)\n"
    "opening._devices = lambda: ()\n"
    "sys.exit(main(sys.argv[1:]))\n"
)
RUN = ("run", "Hi", "--no-fit")
EXPLAINED = ("run", "Hi", "--temp", "-1")  # with a line on standard error


def buffered() -> dict[str, str]:
    """Return the environment, in which what is printed waits for the end as it usually does."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def shell(line: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line, `$@` in a line of the shell, on fake models; what it prints there comes back."""
    return subprocess.run(
        ["bash", "-c", line, "bash", sys.executable, "-c", ANSWER, *arguments],
        cwd=ROOT,
        env=buffered(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a line of bash")


@pytest.mark.parametrize(
    ("arguments", "line", "code", "out"),
    [
        (RUN, '"$@" >&-', 0, ""),
        (RUN, '"$@" 2>&-', 0, "Hello\n"),
        (RUN, '"$@" >&- 2>&- <&-', 0, ""),
        (EXPLAINED, '"$@" 2>&-', 2, ""),
        (("--help",), '"$@" >&-', 0, ""),
    ],
)
def test_a_closed_stream_takes_nothing(arguments: tuple[str, ...], line: str, code: int, out: str) -> None:
    result = shell(line, *arguments)
    assert (result.returncode, result.stdout) == (code, out)
    assert "Error" not in result.stderr


def test_a_file_that_opens_later_does_not_get_what_is_written_to_a_closed_stream(tmp_path: Path) -> None:
    file = tmp_path / "answers"
    code = (
        "import os, sys; from localspec.cli import main\n"
        "main.main(['--version'])\n"
        f"stream = open({str(file)!r}, 'wb')\n"
        "os.write(1, b'from native code')\n"
    )
    subprocess.run(["bash", "-c", '"$@" >&-', "bash", sys.executable, "-c", code], cwd=ROOT, check=True)
    assert file.read_bytes() == b""


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    ("arguments", "line", "code", "out"),
    [
        (RUN, '"$@" 2>/dev/full', 0, "Hello\n"),
        (EXPLAINED, '"$@" 2>/dev/full', 2, ""),
        (RUN, '"$@" >/dev/full', 1, ""),
        (("--help",), '"$@" >/dev/full', 1, ""),
        (("run", "--help"), '"$@" >/dev/full', 1, ""),
    ],
)
def test_a_full_disk(arguments: tuple[str, ...], line: str, code: int, out: str) -> None:
    result = shell(line, *arguments)
    assert (result.returncode, result.stdout) == (code, out)
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr
    assert ("cannot write: No space left" in result.stderr) == (code == 1)


def unread(
    *arguments: str, both: bool = False, answer: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run it with a pipe that no one reads as standard output, as both streams, or as the other alone."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as nobody, Path(answer or os.devnull).open("wb") as file:
        return subprocess.run(
            [sys.executable, "-c", ANSWER, *arguments],
            cwd=ROOT,
            env=buffered(),
            stdin=subprocess.DEVNULL,
            stdout=nobody if answer is None else file,
            stderr=nobody if both or answer is not None else subprocess.PIPE,
            timeout=60,
            check=False,
        )


@pytest.mark.parametrize("arguments", [("run", "--help"), ("--help",), RUN])
def test_a_reader_that_never_reads(arguments: tuple[str, ...]) -> None:
    result = unread(*arguments)
    assert result.stderr.replace(b"note: a note\n", b"") == b""
    assert result.returncode == 0


@pytest.mark.parametrize(("arguments", "code"), [(RUN, 0), (EXPLAINED, 2)])
def test_a_reader_of_both_streams_that_never_reads(arguments: tuple[str, ...], code: int) -> None:
    assert unread(*arguments, both=True).returncode == code


@pytest.mark.slow
def test_who_does_not_read_the_notes_may_want_the_answer(tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    assert unread(*RUN, "--json", "--stats", answer=answer).returncode == 0
    assert json.loads(answer.read_text())["text"] == "Hello"


def test_standard_input_without_end_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", FakeInput(b"x" * (2**20 + 1), terminal=False))
    with pytest.raises(UserError, match="larger than 1 MiB"):
        StandardInput(2**20).wait()
    monkeypatch.setattr(sys, "stdin", FakeInput(b"x" * 2**20, terminal=False))
    assert len(StandardInput(2**20).wait()) == 2**20


def test_a_status_line_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
    with os.fdopen(writer, "w", encoding="utf-8") as terminal, os.fdopen(reader, "rb", buffering=0) as screen:
        monkeypatch.setattr(sys, "stderr", terminal)
        status = ConsoleStatus()
        status.update("loading a-model-with-a-long-name.gguf: 12%")
        assert screen.read(100) == b"\r\x1b[Kloading a-model-wit"
        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        status.update("a terminal that does not know how wide it is")
        assert screen.read(100).endswith(b"how wide it is")


@pytest.fixture
def default_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_impatient_second_ctrl_c_is_as_the_first() -> None:
    pressed: list[bool] = []
    with on_interrupt(lambda: pressed.append(True)):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert pressed == [True, True]


def ask_to_end(number: signal.Signals) -> None:
    assert signal.getsignal(number) is not signal.SIG_DFL  # or this would end the tests
    signal.raise_signal(number)


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_leaves_in_order(number: signal.Signals) -> None:
    with pytest.raises(SystemExit) as left, exit_on_signals():
        ask_to_end(number)
    assert left.value.code == 128 + number
    assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.usefixtures("default_signals")
def test_a_terminal_that_closes_is_nothing_to_who_ignores_it() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with exit_on_signals():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize(("escaped", "shown"), [(True, "\\u00e4"), (False, "ä")])
def test_json_escapes_characters_or_writes_them(
    escaped: bool, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_json({"name": "ä"}, escaped=escaped)
    assert capsys.readouterr().out == f'{{"schema": 1, "name": "{shown}"}}\n'


def test_characters_that_a_terminal_lacks_are_written_by_simpler_ones() -> None:
    text = "▸ ×1.9 ██░░ ▁▄█ ✓ “日本”"
    assert text.encode("ascii", SIMPLER) == b'> x1.9 ##.. _=# + "??"'
    assert "×1.9 ▸".encode("latin-1", SIMPLER) == b"\xd71.9 >"
    assert text.encode("utf-8", SIMPLER).decode() == text
