"""Another machine through OpenSSH: commands that run there, and the models of a `localspec serve` there.

ssh carries all of it, and asks for keys and passwords itself. The models' server there listens to its own
machine alone, wants a key made for this connection, and ends when this side falls silent.
"""

from __future__ import annotations

import os
import secrets
import select
import shlex
import signal
import socket
import string
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, TextIO

from localspec.errors import Cancelled, UserError
from localspec.inference.attached import AttachedModels, Server

READY = "listening at "
"""The beginning of the line in which `localspec serve` prints its address."""
SILENCE_S = 20.0  # after which either side takes the other for gone
_BEAT_S = 4.0
_LOOK_S = 0.1  # between two looks at whether the opening is still wanted
_KEPT_LINES = 8
_PORTS = range(20_000, 60_000)
_TRIES = 3  # ports that others may have
_SSH_FAILED = 255
_NOT_FOUND = 127
_CHUNK = 65536  # bytes
_WORD = 150  # signs of up to five characters: csh takes words of less than 1,024
_VARIABLE = "LOCALSPEC_START"
_DECODE = """'eval "$(printf %b "$@")"' sh"""
# Programs that users install are in the PATH of their login shells. csh takes no `-l` with `-c`, and
# has read its other files when this runs. Shells that are not listed may know no `-l`.
_START = f"""
{_VARIABLE}=COMMAND
export {_VARIABLE}
run='exec sh -c '"'"'eval "${_VARIABLE}"'"'"
case "${{SHELL##*/}}" in
    bash | zsh | ksh* | mksh | dash | ash | sh | fish) exec "$SHELL" -lc "$run" ;;
    csh | tcsh | bsd-csh) exec "$SHELL" -c "if ( -r ~/.login ) source ~/.login; $run" ;;
    *) exec sh -lc "$run" ;;
esac
"""
_OPTIONS = ("-o", "ServerAliveInterval=5", "-o", f"ServerAliveCountMax={int(SILENCE_S // 5) - 1}")


def run_there(host: str, words: Sequence[str], program: str, *, has_terminal: bool) -> int:
    """Run a command there with this terminal's streams, and return its exit code; raises UserError."""
    mark = "" if has_terminal else secrets.token_hex(8)  # which nothing but data follows
    command = _command(host, words, program, ["-t" if has_terminal else "-T"], mark)
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE if mark else None) as process:
            if process.stdout is not None:
                _pass_on(process.stdout, f"{mark}\n".encode())
            code = process.wait()
    except FileNotFoundError:
        raise _no_ssh() from None
    if code == _NOT_FOUND:
        raise _not_installed(host, program)
    return 1 if code == _SSH_FAILED else code  # ssh has said why


def _pass_on(stream: IO[bytes], mark: bytes) -> None:
    """Write what comes to standard output; what the shell there prints before the mark, to standard error."""
    before = b""
    while mark not in before and (data := os.read(stream.fileno(), _CHUNK)):
        before += data
    greeting, _, data = before.partition(mark)
    _write(sys.stderr, greeting)
    _write(sys.stdout, data)
    while data := os.read(stream.fileno(), _CHUNK):
        _write(sys.stdout, data)


def _write(stream: TextIO, data: bytes) -> None:
    stream.buffer.write(data)
    stream.flush()


class RemoteModels(AttachedModels):
    """The models that a `localspec serve` opens on another machine for this program alone."""

    def __init__(
        self,
        host: str,
        words: Sequence[str],
        program: str,
        on_progress: Callable[[float], bool] = lambda _fraction: True,
        on_line: Callable[[str], object] = lambda _line: None,
    ) -> None:
        """Open the models of the flags there; `program` is the name of the program there.

        `on_line` gets its output. Raises UserError if there is no connection, and `Cancelled` when
        `on_progress` returns False.
        """
        for attempt in range(_TRIES):
            self._tunnel = _Tunnel(host, words, program, on_line)
            try:
                self._tunnel.wait_until_ready(on_progress)
                super().__init__(self._tunnel.server)
                return
            except _PortTakenError:
                self._tunnel.close()
                if attempt == _TRIES - 1:
                    raise
            except BaseException:
                self._tunnel.close()
                raise

    def close(self) -> None:
        """End the connection, and with it the models there."""
        self._tunnel.close()


class _PortTakenError(UserError):
    """The port is taken, here or there."""


class _Tunnel:
    """A running `ssh`: a port of this machine leads to the server that it started on the other."""

    def __init__(
        self, host: str, words: Sequence[str], program: str, on_line: Callable[[str], object]
    ) -> None:
        here = _free_port()
        there = secrets.choice(_PORTS)
        key = secrets.token_urlsafe(24)
        self.server = Server(f"127.0.0.1:{here}", key, name=host)
        self._host = host
        self._program = program
        self._on_line = on_line
        forward = ["-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", "-o", "LogLevel=ERROR"]
        forward += ["-L", f"127.0.0.1:{here}:127.0.0.1:{there}"]
        serve = ["serve", "--tunnel", "--port", str(there), *words]
        command = _command(host, serve, program, forward)
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe)
        except FileNotFoundError:
            raise _no_ssh() from None
        self._printed = deque[str](maxlen=_KEPT_LINES)
        self._told = threading.Event()  # that it is ready, or over
        self._ready = self._closed = False
        self._say(f"{key}\n")
        for work in (self._listen, self._beat):
            threading.Thread(target=work, name="localspec-ssh", daemon=True).start()

    def wait_until_ready(self, on_progress: Callable[[float], bool]) -> None:
        while not self._told.wait(_LOOK_S):
            if not on_progress(0.0):
                raise Cancelled("opening was stopped")
        if not self._ready:
            raise self._refused()

    def close(self) -> None:
        self._closed = True
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()  # the server there ends
        self._process.terminate()
        try:
            self._process.wait(_BEAT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _refused(self) -> UserError:
        code = self._process.wait()
        host = self._host
        line = self._printed[-1] if self._printed else f"it ended with code {code}"
        if code == _NOT_FOUND:
            return _not_installed(host, self._program)
        if "forward" in line or any("cannot listen" in printed for printed in self._printed):
            return _PortTakenError(f"{host}: {line}", "try again")
        if code == _SSH_FAILED:
            hint = f"`ssh {host}` has to open without a question: by a key or an agent, and a known host"
            return UserError(f"ssh to {host}: {line}", hint)
        problem = next(
            (printed for printed in self._printed if printed.startswith("error: ")), "; ".join(self._printed)
        )
        return UserError(
            f"{host}: {problem.removeprefix('error: ')}", f"try `localspec devices --host {host}`"
        )

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for raw in lines:
                line = raw.decode(errors="replace").strip()
                self._printed.append(line)
                self._on_line(line)
                if line.startswith(READY):
                    self._ready = True
                    self._told.set()
        self._told.set()

    def _beat(self) -> None:
        """Send signs of life to the other side."""
        while not self._closed and self._say("\n"):
            try:
                self._process.wait(_BEAT_S)
            except subprocess.TimeoutExpired:
                continue
            return

    def _say(self, text: str) -> bool:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(text.encode())
            self._process.stdin.flush()
        except (OSError, ValueError):  # it is over, or closed
            return False
        return True


def _command(host: str, words: Sequence[str], program: str, more: Sequence[str], mark: str = "") -> list[str]:
    """Return the command of ssh; `mark` is printed before what the program prints."""
    if host.startswith("-") or not host.strip():
        raise UserError(f"`{host}` is not a machine", "use --host USER@MACHINE, as with ssh")
    start = f"exec {program} {shlex.join(words)}"
    start = f"echo {mark}; {start}" if mark else start
    script = _START.replace("COMMAND", shlex.quote(f"unset {_VARIABLE}; {start}"))
    return ["ssh", *_OPTIONS, *more, "--", host, f"exec sh -c {_DECODE} {_encoded(script)}"]


def _encoded(text: str) -> str:
    """Return a text as words that every shell reads alike: most signs as numbers, which `printf %b` knows."""
    plain = string.ascii_letters + string.digits + " /=:;,._-"
    signs = (bytes([byte]).decode("latin-1") for byte in text.encode("utf-8", "surrogateescape"))
    codes = [sign if sign in plain else f"\\0{ord(sign):03o}" for sign in signs]
    words = ("".join(codes[at : at + _WORD]) for at in range(0, len(codes), _WORD))
    return " ".join(f"'{word}'" for word in words)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _no_ssh() -> UserError:
    return UserError("there is no `ssh` here", "install the OpenSSH client")


def _not_installed(host: str, program: str) -> UserError:
    return UserError(
        f"`{program}` cannot be run on {host}",
        'install LocalSpec there, or name it in config.toml: program = "/path/to/localspec" under [models]',
    )


def end_with_input() -> None:
    """End this program when standard input ends, or is silent for a while: the other side is gone."""
    while select.select([0], [], [], SILENCE_S)[0] and os.read(0, 64):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
