"""Standard input of `run` and its like: told, left alone, waited for, unreadable, and named `-`."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest

from localspec.types.request import Grammar, Message
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import FakeRuntime, says

ROOT = Path(__file__).parents[2]
PROGRAM = (
    "import sys; from localspec.__main__ import main; from localspec.cli.shared import opening, piped\n"
    "from tests.cli.fake_runtime import FakeRuntime, says\n"
    "piped._SILENCE_S = float(sys.argv[1])\n"
    "fake = FakeRuntime([], notes=('models are open',))\n"
    "fake.scripts = [lambda request: says(request.prompt[-1].content)(request)]\n"
    "fake.install(setattr); opening._devices = lambda: ()\n"
    "sys.exit(main(sys.argv[2:]))\n"
)
LONG, SHORT = "60", "0.05"  # seconds of silence


def started(*arguments: str, silence: str = LONG, stdin: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, silence, *arguments, "--no-fit"],
        cwd=ROOT,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def shell(line: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `$@` is the program with its arguments; it answers with its question."""
    return subprocess.run(
        ["bash", "-c", line, "bash", sys.executable, "-c", PROGRAM, LONG, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("piped", "note"),
    [
        (b"", ""),
        (b"  \n", ""),
        (b"one", "note: read 1 line from standard input"),
        (b"green\nblue\n", "note: read 2 lines from standard input"),
        ("grün\r\nblau\r\n".encode("utf-16"), "note: read 2 lines from standard input"),
    ],
)
@pytest.mark.parametrize("json", [[], ["--json"]])
def test_what_is_read_below_a_question_is_reported(
    fake: FakeRuntime, invoke: Invoke, piped: bytes, note: str, json: list[str]
) -> None:
    outcome = invoke("run", "Name it:", *json, piped=piped)
    assert outcome.code == 0
    assert outcome.err.startswith(note)
    assert bool(outcome.err) == bool(note)
    assert ("--no-stdin" in outcome.err) == bool(note)
    assert len(fake.requests) == 1


def test_a_text_alone_needs_no_note(fake: FakeRuntime, invoke: Invoke) -> None:
    assert invoke("run", piped=b"a question\n").err == ""
    assert fake.requests[0].prompt == (Message("user", "a question"),)


def test_a_flag_leaves_standard_input_alone(fake: FakeRuntime, invoke: Invoke) -> None:
    outcome = invoke("run", "--no-stdin", "Name it:", piped=b"green\n")
    assert (outcome.code, outcome.err) == (0, "")
    assert fake.requests[0].prompt == (Message("user", "Name it:"),)
    assert "there is no prompt" in invoke("run", "--no-stdin", piped=b"green\n").err


@pytest.mark.slow
@pytest.mark.parametrize("skip", ["--no-stdin", "</dev/null"])
def test_a_loop_over_lines_asks_about_each(skip: str) -> None:
    line = f'printf \'red\\ngreen\\nblue\\n\' | while read q; do "$@" "name $q" {skip}; done'
    assert shell(line, "run", "--no-fit").stdout == "name red\nname green\nname blue\n"


def read_until(stream: object, words: bytes) -> bytes:
    """Read a stream until it has said something, for at most half a minute."""
    descriptor, came, ends = stream.fileno(), b"", time.monotonic() + 30  # type: ignore[attr-defined]
    while words not in came and time.monotonic() < ends:
        if select.select([descriptor], [], [], 1)[0]:
            chunk = os.read(descriptor, 4096)
            if not chunk:
                break
            came += chunk
    return came


@pytest.mark.slow
def test_an_input_from_which_nothing_comes_is_waited_for_aloud_while_models_open() -> None:
    with started("run", "Say hi", silence=SHORT) as process:
        told = read_until(process.stderr, b"models are open")
        assert b"waiting for standard input; --no-stdin or </dev/null does without" in told
        out, err = process.communicate(b"now\n", timeout=60)
    assert (process.returncode, out) == (0, b"Say hi\n\nnow\n")
    assert b"waiting" not in err
    assert b"read 1 line" in err


@pytest.mark.slow
def test_a_wait_without_a_question_does_not_offer_to_do_without() -> None:
    with started("run", silence=SHORT) as process:
        told = read_until(process.stderr, b"models are open")
        process.communicate(b"now\n", timeout=60)
    assert b"waiting for standard input\n" in told


@pytest.mark.slow
def test_who_writes_slowly_is_not_reminded() -> None:
    with started("run", "Say hi", silence="20") as process:
        assert process.stdin is not None
        process.stdin.write(b"a")
        process.stdin.flush()
        told = read_until(process.stderr, b"models are open")
        out, err = process.communicate(b"b\n", timeout=60)
    assert out == b"Say hi\n\nab\n"
    assert b"waiting" not in told + err


UNREADABLE = "{} 0>/dev/null"  # as under nohup


def test_an_input_that_cannot_be_read_is_none_to_a_question() -> None:
    result = shell(UNREADABLE.format('"$@"'), "run", "Say hi", "--no-fit")
    assert (result.returncode, result.stdout, result.stderr) == (0, "Say hi\n", "note: models are open\n")


@pytest.mark.parametrize("arguments", [("run",), (), ("run", "-"), ("chat",), ("history", "import", "-")])
def test_where_there_is_nothing_else_an_unreadable_input_is_reported(arguments: tuple[str, ...]) -> None:
    result = shell(UNREADABLE.format('"$@"'), *arguments, *["--no-fit"] * ("history" not in arguments))
    assert result.returncode == 2
    assert "standard input cannot be read: Bad file descriptor" in result.stderr
    assert "mistake in LocalSpec" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "prompt"),
    [
        (["run", "-"], "piped"),
        (["-"], "piped"),
        (["run", "-p", "-"], "piped"),
        (["run", "Explain:", "-"], "Explain:\n\npiped"),
        (["run", "what", "is", "5", "-", "3"], "what is 5 - 3\n\npiped"),
        (["run", "--", "-"], "piped"),
    ],
)
def test_a_dash_is_standard_input(
    fake: FakeRuntime, invoke: Invoke, arguments: list[str], prompt: str
) -> None:
    assert invoke(*arguments, piped=b"piped\n").code == 0
    assert fake.requests[0].prompt == (Message("user", prompt),)


def test_a_dash_at_a_terminal_is_what_is_typed(fake: FakeRuntime, invoke: Invoke) -> None:
    assert invoke("run", "-", typed="typed\n").code == 0
    assert fake.requests[0].prompt == (Message("user", "typed"),)


def test_a_dash_is_standard_input_where_a_file_is_named(fake: FakeRuntime, invoke: Invoke) -> None:
    assert invoke("run", "Hi", "-sysf", "-", piped=b"Be kind.\n").code == 0
    assert fake.requests[0].prompt == (Message("system", "Be kind."), Message("user", "Hi"))
    for flag in ("--json-schema", "-jf", "-j"):
        assert invoke("run", "Hi", flag, "-", piped=b"{}").code == 0
        assert fake.requests[-1].grammar == Grammar("json_schema", "{}")
        assert fake.requests[-1].prompt == (Message("user", "Hi"),)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "Hi", "-sysf", "-", "--json-schema", "-"], "both read standard input"),
        (["run", "-", "-sysf", "-"], "- reads the question"),
        (["run", "-", "--no-stdin"], "- reads the question"),
        (["chat", "-sysf", "-"], "a chat reads standard input"),
    ],
)
def test_standard_input_serves_one(
    fake: FakeRuntime, invoke: Invoke, arguments: list[str], told: str
) -> None:
    outcome = invoke(*arguments, piped=b"x\n")
    assert outcome.code == 2
    assert told in outcome.err
    assert fake.opened == []


SCHEMA, GBNF = '{"type": "object"}', 'root ::= "yes" | "no"'


@pytest.mark.parametrize(
    ("flag", "value", "form"),
    [
        ("-j", SCHEMA, Grammar("json_schema", SCHEMA)),
        ("--json-schema", f" \n{SCHEMA}", Grammar("json_schema", f" \n{SCHEMA}")),
        ("--json-schema", "schema.json", Grammar("json_schema", SCHEMA)),
        ("-jf", "schema.json", Grammar("json_schema", SCHEMA)),
        ("--json-schema-file", "schema.json", Grammar("json_schema", SCHEMA)),
        ("--grammar", GBNF, Grammar("gbnf", GBNF)),
        ("--grammar", "yes.gbnf", Grammar("gbnf", GBNF)),
        ("--grammar-file", "yes.gbnf", Grammar("gbnf", GBNF)),
    ],
)
def test_a_form_is_a_text_or_a_file(
    fake: FakeRuntime, invoke: Invoke, flag: str, value: str, form: Grammar,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.json").write_text(SCHEMA, encoding="utf-8-sig")
    (tmp_path / "yes.gbnf").write_text(GBNF, encoding="utf-16")
    fake.scripts = [says("{}")]
    outcome = invoke("run", "Hi", flag, value)
    assert (outcome.code, outcome.err) == (0, "")
    assert fake.requests[0].grammar == form


@pytest.mark.parametrize("flag", ["-jf", "--grammar-file"])
def test_a_flag_for_files_takes_no_text(invoke: Invoke, flag: str) -> None:
    outcome = invoke("run", "Hi", flag, "{}" if flag == "-jf" else GBNF)
    assert outcome.code == 2
    assert "cannot read" in outcome.err


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_chat_reads_lines_in_the_encodings_of_files(
    fake: FakeRuntime, invoke: Invoke, encoding: str
) -> None:
    assert invoke("chat", piped="grün\nblau\n".encode(encoding)).code == 0
    assert [cast(Message, request.prompt[-1]).content for request in fake.requests] == ["grün", "blau"]
