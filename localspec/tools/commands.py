"""The tool that runs a shell command: in the workspace, without input, and ended with all that it started.

A command that ends leaves nothing behind: a process in the background would keep its output open for ever.
"""

from __future__ import annotations

import codecs
import os
import re
import subprocess
import unicodedata
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import IO, Annotated

from localspec import units
from localspec.child_process import exit_words
from localspec.errors import UserError
from localspec.safe_text import safe_text
from localspec.tools.differences import fenced
from localspec.tools.family import ProcessFamily, marked, new_mark
from localspec.tools.tool import Tell, ToolOutput, tell_nobody
from localspec.tools.workspace import Workspace
from localspec.values import Range

# bytes of output that are kept
MAX_HEAD = 8_000
MAX_TAIL = 16_000
MAX_TOLD = 2**20  # bytes of output that are told while a command runs
USUAL_SECONDS = 120
LONGEST_COMMAND = 10_000  # characters
MAX_PRINTED = 64 * 2**20  # bytes
_LOOK_S = 0.05
_CLOSING_S = 1.0  # for the output of a command that has ended
_SECRET = re.compile(
    r"TOKEN|API_?KEY|SECRET|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE_?KEY|ACCESS_?KEY|_AUTH$", re.IGNORECASE
)
_ADDRESS_WITH_PASSWORD = re.compile(r"://[^/\s:@]*:[^/\s@]+@")
_CONTINUATION = re.compile(rb"\A[\x80-\xbf]{1,3}")  # of a character that was cut
_QUIET = {"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0", "TERM": "dumb", "NO_COLOR": "1"}


@dataclass(frozen=True, slots=True)
class RunArguments:
    """Arguments of `run_command`."""

    command: Annotated[str, "for the shell, in the workspace; it gets no input"]
    timeout_s: Annotated[int, Range(1, 600), "seconds after which it is ended"] = USUAL_SECONDS


@dataclass(frozen=True, slots=True)
class CommandRunner:
    """Runs commands in a workspace."""

    workspace: Workspace

    def preview(self, wanted: RunArguments) -> str:
        """Return the command in a fence; raises UserError for one that is not what it looks like."""
        _check(wanted.command)
        return fenced(wanted.command, "sh")

    def run(self, wanted: RunArguments, stop: Event, tell: Tell = tell_nobody) -> ToolOutput:
        """Run the command; its exit code, unless 0, and how it was ended come after its output."""
        _check(wanted.command)
        mark = new_mark()
        process = _started(wanted.command, self.workspace.folder, marked(environment(), mark))
        family = ProcessFamily(process.pid, mark).guarded()
        output = _Output(tell)
        assert process.stdout is not None
        reader = Thread(target=output.read, args=(process.stdout,), name="localspec-command", daemon=True)
        reader.start()
        try:
            reason = _wait(process, output, wanted.timeout_s, stop)
        finally:
            left = family.end()
            process.wait()
        reader.join(_CLOSING_S)
        if not reader.is_alive():
            process.stdout.close()
        notes = [reason or exit_words(process.returncode)] if reason or process.returncode else []
        if left and not reason:
            notes.append(f"ended, too: {left} in the background")
        text = output.text().rstrip("\n") or "(no output)"
        text = "\n".join([text, *(f"[{note}]" for note in notes)])
        return ToolOutput(text, bool(reason), {"exit_code": process.returncode, "ended": reason})


class _Output:
    """The first and the last bytes of what a command prints, which is told as it comes, up to a limit."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head = bytearray()
        self._tail = bytearray()
        self.size = 0

    def read(self, stream: IO[bytes]) -> None:
        """Read to the end; keep little."""
        with suppress(OSError, ValueError):  # ValueError of a stream that is closed meanwhile
            while data := os.read(stream.fileno(), 65536):
                self.size += len(data)
                if self.size <= MAX_TOLD:
                    self._tell(safe_text(self._decoder.decode(data)))
                elif self.size - len(data) <= MAX_TOLD:
                    self._tell(f"\n[... output after {units.size(MAX_TOLD)} is left out ...]\n")
                room = MAX_HEAD - len(self._head)
                self._head += data[:room]
                self._tail += data[room:]
                del self._tail[:-MAX_TAIL]

    def text(self) -> str:
        """Return it, harmless, with a line for what is left out."""
        head = bytes(self._head)
        tail = bytes(self._tail)
        left_out = self.size - len(head) - len(tail)
        if b"\0" in head + tail:
            return f"(binary output, {units.size(self.size)})"
        if not left_out:
            return safe_text((head + tail).decode("utf-8", "replace"))
        first = codecs.getincrementaldecoder("utf-8")("replace").decode(head)  # without half of a character
        last = _CONTINUATION.sub(b"", tail).decode("utf-8", "replace")
        note = f"\n[... {units.size(left_out)} of output left out ...]\n"
        return f"{safe_text(first)}{note}{safe_text(last)}"


def environment() -> dict[str, str]:
    """Return the environment without names and values that look like secrets, and without pagers."""
    return {
        name: value
        for name, value in os.environ.items()
        if not _SECRET.search(name) and not _ADDRESS_WITH_PASSWORD.search(value)
    } | _QUIET


def _check(command: str) -> None:
    """Raise UserError for a command that would not look as it is."""
    if not command.strip():
        raise UserError("`command` is empty")
    if len(command) > LONGEST_COMMAND:
        raise UserError(
            f"`command` has more than {LONGEST_COMMAND:,} characters", "write a script with write_file"
        )
    hidden = next((sign for sign in command if _is_hidden(sign)), None)
    if hidden is not None:
        raise UserError(f"`command` has an invisible character, U+{ord(hidden):04X}", "leave it out")


def _is_hidden(sign: str) -> bool:
    return sign not in "\n\t" and unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def _started(command: str, folder: Path, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            shell=True,  # the user has seen the command, or allowed it by a rule
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # without a terminal that it could ask
        )
    except OSError as error:
        raise UserError(f"the command cannot be started: {error.strerror or error}") from None


def _wait(process: subprocess.Popen[bytes], output: _Output, seconds: int, stop: Event) -> str:
    """Wait until a command ends; return the reason if it is to be ended before."""
    ends = monotonic() + seconds
    while not _has_ended(process):
        if stop.wait(_LOOK_S):
            return "stopped by the user"
        if monotonic() > ends:
            return f"ended after {units.duration(seconds)}; timeout_s sets the time"
        if output.size > MAX_PRINTED:
            return f"ended: it printed more than {units.size(MAX_PRINTED)}"
    return ""


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a command has ended; its number is not free for another process before `wait`."""
    if hasattr(os, "waitid"):
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, process.pid, flags) is not None
    return process.poll() is not None
