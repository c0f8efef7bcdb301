"""Models and commands on another machine: an `ssh` that stays on this one carries them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from localspec.app.opener import ChatModels, OpeningWatch
from localspec.app.recommendation import LocalTarget
from localspec.app.screen import ScreenRequest
from localspec.app.tuning import StopSignal, TuneChoice
from localspec.cli import main as command_line
from localspec.cli import screen
from localspec.errors import Cancelled, LocalSpecError, ServerLost, UserError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference import remote
from localspec.inference.remote import RemoteModels, run_there
from localspec.inference.runtime import Runtime
from localspec.models.pair_request import ModelChoice
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Request, Sampling
from tests.inference.runtimes import text_of

ROOT = Path(__file__).parents[2]
PROGRAM = f"{sys.executable} -m localspec"
TIMEOUT_S = 30.0
SSH = f"""#!{sys.executable}
import os, socket, subprocess, sys, threading

def carry(one, other):
    while data := one.recv(65536):
        begun = data.find(b"TextDelta") if host == "cut" else -1
        if begun >= 0:
            other.sendall(data[: data.index(b"\\n", begun) + 1])
            os._exit(9)
        other.sendall(data)
    other.shutdown(socket.SHUT_WR)

def forward(here, there):
    listener = socket.create_server(("127.0.0.1", here))
    while True:
        near = listener.accept()[0]
        far = socket.create_connection(("127.0.0.1", there))
        for pair in ((near, far), (far, near)):
            threading.Thread(target=carry, args=pair, daemon=True).start()

host, command = sys.argv[sys.argv.index("--") + 1 :]
if host == "locked":
    sys.stderr.write("me@locked: Permission denied (publickey).\\n")
    sys.exit(255)
used = os.path.join(os.path.dirname(__file__), "used")
if host == "busy" and not os.path.exists(used):
    open(used, "w").close()
    sys.stderr.write("error: cannot listen at 127.0.0.1 port 1: python has it\\n")
    sys.exit(2)
if "-L" in sys.argv:
    _, here, _, there = sys.argv[sys.argv.index("-L") + 1].split(":")
    threading.Thread(target=forward, args=(int(here), int(there)), daemon=True).start()
sys.exit(subprocess.call([os.environ["SHELL"], "-c", command]))
"""
SHELLS = ("bash", "sh", "dash", "zsh", "ksh", "mksh", "fish", "tcsh", "bsd-csh", "csh")
GREETING = "Welcome to tower"
STARTS = {  # files that shells read as they start, and how each says where programs are
    "export PATH=FOLDER:$PATH": (".profile", ".bash_profile", ".zprofile"),
    "setenv PATH FOLDER:$PATH": (".login",),
    "set -x PATH FOLDER $PATH": (".config/fish/config.fish",),
    "": (".bashrc", ".zshenv", ".kshrc", ".cshrc", ".tcshrc"),
}
TELLS = f"""#!{sys.executable}
import json, os, sys
print(json.dumps([sys.argv[1:], sys.stdin.read(), "LOCALSPEC_START" in os.environ]))
sys.exit(5)
"""
WORDS = [
    "it's",
    '"q" $HOME `id` $(id) {a,b} ~ * ?',
    "!ab !! \\\\ \\' \\n",
    "two\nlines\n",
    "",
    "-x",
    "é 总结 \U0001f40d",
    "long 问题 " * 500,
]


@pytest.fixture(autouse=True)
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH)
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SHELL", "/bin/sh")


@pytest.fixture
def models(demo_target: Path) -> Iterator[RemoteModels]:
    opened = RemoteModels("tower", ["-m", str(demo_target), "-c", "512"], PROGRAM)
    yield opened
    opened.close()


@pytest.fixture(params=[*SHELLS, "of-nobody"])
def shell(
    request: pytest.FixtureRequest, empty_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """An account there with this shell, whose files greet, and tell where `there` is installed."""
    folder = tmp_path / "programs"
    for line, names in STARTS.items():
        for name in names:
            (empty_home / name).parent.mkdir(parents=True, exist_ok=True)
            (empty_home / name).write_text(f"echo {GREETING}\n{line.replace('FOLDER', str(folder))}\n")
    folder.mkdir()
    program = folder / "there"
    program.write_text(TELLS)
    program.chmod(0o700)
    if request.param == "of-nobody":
        path = tmp_path / "of-nobody"
        path.write_text(f'#!/bin/sh\necho {GREETING}\n[ "$1" = -c ] && exec sh -c "$2"\nexit 9\n')
        path.chmod(0o700)
        found: str | None = str(path)
    else:
        found = shutil.which(request.param)
    if found is None:
        pytest.skip(f"{request.param} is not installed")
    monkeypatch.setenv("SHELL", found)
    monkeypatch.delenv("XDG_CONFIG_HOME")
    return found


@pytest.mark.usefixtures("shell")
def test_every_shell_hands_over_words_streams_and_code() -> None:
    code = (
        "import sys; from localspec.inference.remote import run_there\n"
        f"sys.exit(run_there('tower', {WORDS!r}, 'there', has_terminal=False))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], input="typed", capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert result.stdout, result.stderr
    assert (json.loads(result.stdout), result.returncode) == ([WORDS, "typed", False], 5)
    assert GREETING in result.stderr


@pytest.mark.usefixtures("shell")
def test_every_shell_passes_on_what_comes_as_it_comes(tmp_path: Path) -> None:
    slow = tmp_path / "programs" / "slow"
    slow.write_text(f"#!{sys.executable}\nprint('one', flush=True)\ninput()\nprint('two')\n")
    slow.chmod(0o700)
    code = (
        "from localspec.inference.remote import run_there; run_there('tower', [], 'slow', has_terminal=False)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        out, _ = process.communicate(b"\n", timeout=TIMEOUT_S)
        assert out == b"two\n"


@pytest.mark.usefixtures("shell")
def test_a_program_that_is_not_there_is_reported_whatever_the_shell() -> None:
    with pytest.raises(UserError, match="`nowhere-there` cannot be run on tower"):
        RemoteModels("tower", [], "nowhere-there")
    with pytest.raises(UserError, match="`nowhere-there` cannot be run on tower"):
        run_there("tower", [], "nowhere-there", has_terminal=False)


def test_all_that_a_failing_program_said_is_reported(tmp_path: Path) -> None:
    program = tmp_path / "fails"
    program.write_text("#!/bin/sh\necho 'no disk is there' >&2\necho ' ^' >&2\nexit 3\n")
    program.chmod(0o700)
    with pytest.raises(UserError, match=r"^tower: no disk is there; \^; try") as caught:
        RemoteModels("tower", [], str(program))
    assert "localspec devices --host tower" in caught.value.hint


@pytest.mark.parametrize("name", ["fish", "tcsh"])
def test_models_open_on_accounts_without_a_posix_shell(
    name: str, demo_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (path := shutil.which(name)) is None:
        pytest.skip(f"{name} is not installed")
    monkeypatch.setenv("SHELL", path)
    with closing(RemoteModels("tower", ["-m", str(demo_target), "-c", "256"], PROGRAM)) as models:
        assert models.target.context == 256


def servers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if "--tunnel" in child.cmdline()]


def test_answers_are_those_of_this_machine(models: RemoteModels, demo_target: Path) -> None:
    request = Request((Message("user", "Hi!"),), Sampling(0.0), EngineSettings(mode="off"), 24)
    with Runtime.open(OpenPlan(ModelOptions(demo_target, context=512))) as here:
        assert text_of([*models.generate(request)]) == text_of([*here.generate(request)])
    assert models.target.context == 512


@pytest.mark.slow
def test_a_line_that_is_cut_ends_the_answer_in_one_sentence_and_the_server_there(demo_target: Path) -> None:
    models = RemoteModels("cut", ["-m", str(demo_target), "-c", "512"], PROGRAM)
    running = servers()
    assert running
    request = Request((Message("user", "Hi!"),), Sampling(0.0), EngineSettings(mode="off"), 24)
    with pytest.raises(ServerLost, match=r"^cut is gone: the connection was lost$"):
        list(models.generate(request))
    models.close()
    psutil.wait_procs(running, TIMEOUT_S)
    assert not any(process.is_running() for process in running)


@pytest.mark.slow
def test_a_port_that_others_have_is_left_for_another(demo_target: Path) -> None:
    models = RemoteModels("busy", ["-m", str(demo_target), "-c", "256"], PROGRAM)
    assert models.count_tokens((Message("user", "Hi!"),)) > 0
    models.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "words", "program", "told"),
    [
        ("locked", [], PROGRAM, r"ssh to locked: me@locked: Permission denied"),
        ("tower", [], "/nowhere/localspec", r"`/nowhere/localspec` cannot be run on tower"),
        ("tower", ["-m", "/nowhere.gguf"], PROGRAM, r"tower: .*nowhere\.gguf"),
        ("tower", ["--rpc", "away:"], PROGRAM, r"tower: `away:` is not a server address"),
        ("-oProxyCommand=x", [], PROGRAM, r"is not a machine"),
        ("", [], PROGRAM, r"is not a machine"),
        (" ", [], PROGRAM, r"is not a machine"),
    ],
)
def test_models_that_fail_to_open_there_are_reported_in_one_line(
    host: str, words: list[str], program: str, told: str
) -> None:
    with pytest.raises(UserError, match=told) as caught:
        RemoteModels(host, words, program)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_a_machine_without_ssh_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for way in (
        lambda: RemoteModels("tower", [], PROGRAM),
        lambda: run_there("tower", [], PROGRAM, has_terminal=False),
    ):
        with pytest.raises(LocalSpecError, match="there is no `ssh` here"):
            way()


def test_opening_can_be_stopped(demo_target: Path) -> None:
    with pytest.raises(Cancelled):
        RemoteModels("tower", ["-m", str(demo_target)], PROGRAM, lambda _fraction: False)


@pytest.mark.slow
def test_verbs_run_there_with_their_words_streams_and_code(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[models]\nprogram = "{PROGRAM}"\n')
    monkeypatch.setenv("LOCALSPEC_CONFIG_DIR", str(tmp_path))
    assert command_line.main(["show", "--host", "tower", "it's not here.gguf"]) == 2
    assert "it's not here.gguf" in capfd.readouterr().err
    config.write_text(f'[models]\nhost = "locked"\nprogram = "{PROGRAM}"\n')
    assert command_line.main(["devices", "--no-measure"]) == 1
    assert "Permission denied" in capfd.readouterr().err
    assert command_line.main(["devices", "--no-measure", "--host", "none"]) == 0
    assert command_line.main(["history", "--host=tower"]) == 2
    assert "works on this machine only" in capfd.readouterr().err


@pytest.mark.slow
def test_the_screen_opens_models_there_with_what_is_tuned_there(
    demo_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text(f'[models]\nhost = "nowhere"\nprogram = "{PROGRAM}"\n')
    monkeypatch.setenv("LOCALSPEC_CONFIG_DIR", str(tmp_path))
    asked: list[ScreenRequest] = []

    def show(request: ScreenRequest) -> int:
        asked.append(request)
        return 0

    words = ["-m", str(demo_target), "-c", "300", "--host", "tower"]
    assert screen.main(words, show) == 0
    (request,) = asked
    there = ChatModels(request.opener, request.profiles)
    models = there.open(None, OpeningWatch()).models
    assert (models.target.context, there.opener.place) == (300, "tower")
    rows = [row for row in there.choices(()) if isinstance(row, LocalTarget)]
    included = next(row for row in rows if row.model.path.name == demo_target.name)
    assert included.drafts
    assert there.tuned_for("coding") is None  # nothing is tuned
    with pytest.raises(UserError, match="on another machine"):
        there.check_tuning()
    with pytest.raises(UserError, match="on another machine"):
        list(there.tune(TuneChoice(()), StopSignal(), lambda _line: None))
    models.close()
    choice = ModelChoice(included.model.path, None)
    with closing(there.open(choice, OpeningWatch()).models) as others:
        assert (others.target.path, others.draft) == (included.model.path, None)
        assert servers()
    there.use_local_models()
    assert there.opener.place == ""
    assert there.opener.at_home() is None
    there.check_tuning()
    with closing(there.open(None, OpeningWatch()).models) as here:
        assert here.target.context == 300
        assert not servers()


@pytest.mark.slow
def test_the_server_there_ends_with_this_side(demo_target: Path) -> None:
    models = RemoteModels("tower", ["-m", str(demo_target), "-c", "256"], PROGRAM)
    (server, *_) = servers()
    started = time.monotonic()
    models.close()
    psutil.wait_procs([server], TIMEOUT_S)
    assert not server.is_running()
    assert time.monotonic() - started < remote.SILENCE_S  # it was told, and need not draft
