"""Change a profile in the user's editor: checked when it is saved, and in place only when it is sound."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from localspec.cli.shared.console import is_terminal, on_interrupt, say
from localspec.cli.shared.errors import FAILURE, SUCCESS, tell
from localspec.errors import UserError
from localspec.storage.paths import PRIVATE_FILE, make_private_folder, write_atomically
from localspec.storage.profiles import parse_profile, profile_file

_TUNING = re.compile(r"^\[tuning\][^\n]*\n.*", re.MULTILINE | re.DOTALL)
_NO_TUNING = """\
# [tuning]
# prompts = ["...", "..."]   # 8 or more
# held_out = ["...", "..."]  # 4 or more
"""


def content(name: str, folder: Path) -> bytes:
    """Return what a copy of a profile holds; raises UserError if there is no such profile.

    The prompts of a shipped one stay behind: without its own, a copy is tuned with those of its task.
    """
    path = profile_file(name, folder)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    return data if path.parent == folder else _TUNING.sub(_NO_TUNING, data.decode()).encode()


def write(path: Path, data: bytes) -> None:
    """Write a file beside the user's own profiles in one step, and keep who may read it."""
    try:
        make_private_folder(path.parent)
    except OSError as error:
        raise UserError(f"cannot make the folder `{path.parent}`: {error.strerror or error}") from None
    mode = path.stat().st_mode & 0o777 if path.exists() else PRIVATE_FILE
    write_atomically(path, data.decode("utf-8", "replace"), mode)


SCHEMA = 1
_QUESTION = "[e]dit again, [d]iscard the changes, or [k]eep them aside? "


@dataclass(frozen=True, slots=True)
class _Work:
    """A profile that is edited: what it was, where it goes, and where unfinished changes wait."""

    target: Path
    before: bytes
    existed: bool

    @property
    def aside(self) -> Path:
        """Return the file of unfinished changes; by its name it is no profile."""
        return self.target.with_name(f"{self.target.name}.unfinished")

    @property
    def is_current(self) -> bool:
        """Tell whether the file is still as it was."""
        return self.target.read_bytes() == self.before if self.target.exists() else not self.existed

    def fault(self, data: bytes) -> UserError | None:
        """Return what is wrong with a new content."""
        try:
            parse_profile(self.target, data)
        except UserError as error:
            return error
        return None


def edit(name: str, folder: Path, *, as_json: bool) -> int:
    """Let the user change a profile; return the exit code."""
    before, target = content(name, folder), folder / f"{name}.toml"
    work = _Work(target, before, target.exists())
    command = _editor(target)
    if work.aside.exists():
        say(f"going on with the unfinished changes in {work.aside}")
    scratch = Path(tempfile.mkdtemp(prefix="localspec-"))
    draft = scratch / target.name
    draft.write_bytes(work.aside.read_bytes() if work.aside.exists() else before)
    try:
        code = _edited(work, command, draft, as_json=as_json)
    except BaseException:
        if draft.exists() and draft.read_bytes() != before:
            say(f"your text is still in {draft}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
        raise
    shutil.rmtree(scratch, ignore_errors=True)
    return code


def _edited(work: _Work, command: list[str], draft: Path, *, as_json: bool) -> int:
    while True:
        ended = _run(command, draft)
        data = draft.read_bytes() if draft.exists() else work.before
        if ended:
            say(f"the editor ended with code {ended}: nothing was changed")
            return FAILURE if data == work.before else _keep(work, data)
        fault = work.fault(data)
        if fault is None:
            return _save(work, data, as_json=as_json)
        tell(fault)
        answer = _answer()
        if answer == "d":
            work.aside.unlink(missing_ok=True)
            say("the changes are discarded; the profile is as it was")
            return FAILURE
        if answer == "k":
            return _keep(work, data)


def _save(work: _Work, data: bytes, *, as_json: bool) -> int:
    changed = data != work.before
    if changed and not work.is_current:
        say(f"somebody else has changed {work.target} meanwhile")
        return _keep(work, data)
    if changed:
        write(work.target, data)
    work.aside.unlink(missing_ok=True)
    if as_json:
        value = {"name": work.target.stem, "path": str(work.target), "changed": changed}
        print(json.dumps({"schema": SCHEMA, **value}))
    else:
        say(f"saved {work.target}" if changed else "nothing was changed")
    return SUCCESS


def _keep(work: _Work, data: bytes) -> int:
    """Put unfinished changes where they are no profile and the next edit finds them."""
    write(work.aside, data)
    say(f"your changes are kept in {work.aside}; `localspec profiles edit {work.target.stem}` goes on there")
    return FAILURE


def _answer() -> str:
    """Ask what becomes of a faulty text; where nobody is there to answer, it is kept."""
    if not is_terminal(sys.stdin):
        return "k"
    while True:
        sys.stderr.write(_QUESTION)
        sys.stderr.flush()
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            line = ""
        answer = line.strip().lower()[:1] if line else "k"
        if answer in {"e", "d", "k"}:
            return answer


def _editor(target: Path) -> list[str]:
    """Return the command of the user's editor; raises UserError if none is set."""
    for variable in ("VISUAL", "EDITOR"):
        try:
            words = shlex.split(os.environ.get(variable, ""), posix=os.name != "nt")
        except ValueError:
            raise UserError(f"{variable} has a quote that does not end: `{os.environ[variable]}`") from None
        if words:
            return words
    raise UserError(
        "no editor is set: neither VISUAL nor EDITOR",
        f"say which one, for instance `EDITOR=nano localspec profiles edit {target.stem}`",
    )


def _run(command: list[str], draft: Path) -> int:
    """Run the editor and return its exit code; Ctrl+C is the editor's."""
    try:
        with on_interrupt(lambda: None):
            return subprocess.run([*command, str(draft)], check=False).returncode
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot start the editor `{command[0]}`: {reason}", "set VISUAL or EDITOR") from None
