from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from queue import Queue
from threading import Event, Thread

import psutil
import pytest

from localspec.errors import UserError
from localspec.tools.commands import MAX_HEAD, MAX_TAIL, CommandRunner, RunArguments
from localspec.tools.tool import ToolOutput
from localspec.tools.workspace import Workspace
from tests.waiting import once, until

PYTHON = f"'{sys.executable}' -c"


@pytest.fixture
def runner(tmp_path: Path) -> CommandRunner:
    return CommandRunner(Workspace(tmp_path))


def run(runner: CommandRunner, command: str, timeout_s: int = 30, stop: Event | None = None) -> ToolOutput:
    return runner.run(RunArguments(command, timeout_s), stop or Event())


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_output_errors_and_exit_code_are_returned(runner: CommandRunner, tmp_path: Path) -> None:
    outputs = {
        "echo a; echo b >&2; pwd": (f"a\nb\n{tmp_path}", 0),
        "echo a; exit 3": ("a\n[exit code 3]", 3),
        "true": ("(no output)", 0),
        "kill -9 $$": ("(no output)\n[SIGKILL]", -9),
    }
    for command, (text, code) in outputs.items():
        assert run(runner, command) == ToolOutput(text, data={"exit_code": code, "ended": ""})


def test_output_is_told_as_it_comes(runner: CommandRunner) -> None:
    told = Queue[str]()
    wanted = RunArguments("printf 'one\\n\\303'; read x < go; printf '\\251\\n'")
    os.mkfifo(runner.workspace.root / "go")
    running = Thread(target=runner.run, args=(wanted, Event(), told.put))
    running.start()
    assert told.get(timeout=20) == "one\n"  # without half of a character
    (runner.workspace.root / "go").write_text("on\n")
    running.join(20)
    assert told.get(timeout=20) == "é\n"


def test_a_command_gets_no_input_and_no_terminal(runner: CommandRunner) -> None:
    ours = os.dup(0)
    reading, writing = os.pipe()
    os.write(writing, b"typed by the user\n")
    os.dup2(reading, 0)
    try:
        output = run(runner, "head -n 1; (: < /dev/tty) 2>/dev/null || echo none").text
    finally:
        os.dup2(ours, 0)
        for each in (ours, reading, writing):
            os.close(each)
    assert output == "none"


@pytest.mark.parametrize(
    "command",
    [
        "sleep 300 & echo $! ",
        "sleep 300 </dev/null >/dev/null 2>&1 & echo $!",
        "setsid sleep 300 & echo $!",
        "nohup sleep 300 2>/dev/null & echo $!",
        "env -i sleep 300 & echo $!",
        "(sleep 300 & echo $!)",
    ],
)
def test_what_runs_in_the_background_ends_with_the_command(runner: CommandRunner, command: str) -> None:
    output = run(runner, command)
    pid, note = output.text.split("\n")
    assert note == "[ended, too: 1 in the background]"
    assert not is_running(int(pid))
    assert not output.is_error


@pytest.mark.slow
def test_a_command_that_takes_too_long_is_ended(runner: CommandRunner) -> None:
    output = run(runner, "sleep 300", 1)
    assert (output.text, output.is_error) == ("(no output)\n[ended after 1 s; timeout_s sets the time]", True)
    assert output.data["ended"] == "ended after 1 s; timeout_s sets the time"


@pytest.mark.slow
def test_a_daemon_that_left_the_session_twice_is_found(runner: CommandRunner, tmp_path: Path) -> None:
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        print(os.getpid(), flush=True)\n"
        "        open('printed', 'w').close()\n"
        "        time.sleep(300)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "time.sleep(300)\n"
    )
    stop = Event()
    with once((tmp_path / "printed").exists, stop.set):
        output = run(runner, f'{PYTHON} "{code}"', stop=stop)
    pid, note = output.text.split("\n")
    assert note == "[stopped by the user]"
    assert not is_running(int(pid))


@pytest.mark.slow
def test_a_process_that_has_another_number_each_time_is_ended(runner: CommandRunner, tmp_path: Path) -> None:
    code = (
        "import os\n"
        "if os.fork() == 0:\n"
        "    while True:\n"
        "        if os.fork(): os._exit(0)\n"
        "        os.utime('alive')\n"
    )
    (tmp_path / "alive").write_text("")
    run(runner, f'{PYTHON} "{code}"; sleep 0.2')
    before = (tmp_path / "alive").stat().st_mtime_ns
    run(runner, "sleep 0.2")
    assert (tmp_path / "alive").stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_command_that_ignores_signals_and_forks_is_ended_by_stop(
    runner: CommandRunner, tmp_path: Path
) -> None:
    loop = "(while :; do sleep 9; done) & echo $!"
    command = f"trap '' TERM INT HUP; for i in 1 2 3; do {loop}; done; touch printed; wait"
    stop = Event()
    with once((tmp_path / "printed").exists, stop.set):
        output = run(runner, command, stop=stop)
    *pids, note = output.text.split("\n")
    assert note == "[stopped by the user]"
    assert len(pids) == 3
    assert not any(is_running(int(pid)) for pid in pids)


def test_a_flood_of_output_keeps_head_and_tail(runner: CommandRunner) -> None:
    output = run(runner, "echo first; seq 1000000; echo last").text
    assert output.startswith("first\n1\n2\n")
    assert output.endswith("\n1000000\nlast")
    assert "of output left out ...]" in output
    assert len(output) < MAX_HEAD + MAX_TAIL + 100


@pytest.mark.slow
def test_no_character_is_cut_in_two(runner: CommandRunner) -> None:
    for shift in range(4):
        output = run(runner, f"printf '{'x' * shift}'; yes 你好😀 | head -n 9999 | tr -d '\\n'").text
        assert "output left out" in output
        assert "�" not in output


def test_an_endless_flood_is_ended(runner: CommandRunner) -> None:
    output = run(runner, "yes")
    assert output.is_error
    assert output.text.endswith("[ended: it printed more than 64 MiB]")


def test_binary_output_and_sequences_are_harmless(runner: CommandRunner) -> None:
    assert run(runner, "head -c 1000 /dev/zero").text == "(binary output, 1000 bytes)"
    assert (
        run(runner, r"printf '\033[31mred\033[0m \033]0;title\007\377 done\r\nnext'").text
        == "red � done\nnext"
    )


def test_no_secret_is_in_the_environment(runner: CommandRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {
        "HF_TOKEN": "s3cret", "OPENAI_API_KEY": "s3cret", "openai_apikey": "s3cret",
        "AWS_SECRET_ACCESS_KEY": "s3cret", "PGPASSWORD": "s3cret", "GITHUB_TOKEN": "s3cret",
        "DATABASE_URL": "postgres://me:s3cret@db/x", "NPM_CONFIG__AUTH": "s3cret",
    }  # fmt: skip
    for name, value in (hidden | {"PLAIN": "seen", "HOMEPAGE": "https://host:80/x@y"}).items():
        monkeypatch.setenv(name, value)
    output = run(runner, "env").text
    assert "s3cret" not in output
    assert "PLAIN=seen" in output
    assert "HOMEPAGE=" in output
    assert "PAGER=cat" in output


def test_the_preview_shows_the_whole_command(runner: CommandRunner) -> None:
    assert runner.preview(RunArguments("echo '```'\nrm x")) == "````sh\necho '```'\nrm x\n````"


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("", "is empty"),
        ("echo \x1b[8mhidden", r"U\+001B"),
        ("echo \u202etxt", r"U\+202E"),
        ("echo\u200b", r"U\+200B"),
        ("ls\rrm x", r"U\+000D"),
        ("ls\0", r"U\+0000"),
        ("x" * 10_001, "more than 10,000"),
    ],
)
def test_a_command_that_hides_something_is_refused(
    runner: CommandRunner, command: str, complaint: str
) -> None:
    for call in (lambda: runner.preview(RunArguments(command)), lambda: run(runner, command)):
        with pytest.raises(UserError, match=complaint):
            call()


def test_a_command_of_another_program_lives_on(runner: CommandRunner) -> None:
    child = os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ)
    try:
        run(runner, "sleep 60 & true")
        assert is_running(child)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.slow
def test_a_command_ends_with_the_program_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import os
import signal
from pathlib import Path
from threading import Event, Thread
from localspec.tools.commands import CommandRunner, RunArguments
from localspec.tools.workspace import Workspace
wanted = RunArguments("setsid sleep 600 & echo $! > one; echo $$ > two; mkfifo on; : > on; sleep 600")
runner = CommandRunner(Workspace(Path({str(tmp_path)!r})))
Thread(target=runner.run, args=(wanted, Event()), daemon=True).start()
while not Path({str(tmp_path)!r}, "on").exists():
    pass
Path({str(tmp_path)!r}, "on").read_text()
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    pids = [int((tmp_path / name).read_text()) for name in ("one", "two")]
    until(lambda: not any(map(is_running, pids)))


def test_a_command_that_is_localspec_itself_keeps_both_marks(
    runner: CommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_STARTED", "outer-1.")
    assert run(runner, "echo $LOCALSPEC_STARTED").text.startswith("outer-1.")
