"""The user's editor: for a file, and for a text that is not in a file."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from localspec.app.windowed_editors import check_waits
from localspec.errors import UserError
from localspec.storage.paths import PRIVATE_FILE
from localspec.storage.profiles import own_copy, read_profile, write_own

_AT_ONCE_S = 1.0  # too fast for a user to open, read and close an editor
_OWN_KEYS = [getattr(signal, name) for name in ("SIGINT", "SIGQUIT") if hasattr(signal, name)]


def editor_command(example: str) -> list[str]:
    """Return the command of $VISUAL or $EDITOR.

    Raises `UserError` if none is set, with an example, or if the editor would not wait for the user.
    """
    for variable in ("VISUAL", "EDITOR"):
        try:
            words = shlex.split(os.environ.get(variable, ""), posix=os.name != "nt")
        except ValueError:
            raise UserError(f"{variable} has a quote that does not end: `{os.environ[variable]}`") from None
        if words:
            check_waits(words)
            return words
    raise UserError(
        "no editor is set: neither VISUAL nor EDITOR", f"say which one, for instance `EDITOR=nano {example}`"
    )


def run_editor(command: list[str], path: Path) -> int:
    r"""Open a file and return the editor's exit code; meanwhile Ctrl+C and Ctrl+\ are the editor's.

    To be called in the main thread. Raises `UserError` if the editor cannot be started.
    """
    before = {
        key: signal.signal(key, lambda *_: None) for key in _OWN_KEYS
    }  # to ignore it would be inherited
    try:
        return subprocess.call([*command, str(path)])
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot start the editor `{command[0]}`: {reason}", "set VISUAL or EDITOR") from None
    finally:
        for key, handler in before.items():
            signal.signal(key, handler)


def edit_profile(name: str, folder: Path) -> tuple[int, bool]:
    """Open a profile (a copy of a shipped one); return the exit code and whether it changed.

    For the main thread. Raises `UserError`, also if the saved text is not a profile.
    """
    path = folder / f"{name}.toml"
    before = own_copy(name, folder)
    command = editor_command(f"localspec profiles edit {name}")
    is_copy = not path.exists()
    if is_copy:
        write_own(path, before)
    try:
        code = run_editor(command, path)
    finally:
        is_changed = path.exists() and path.read_bytes() != before
        if is_copy and not is_changed:
            path.unlink(missing_ok=True)
    if is_changed:
        _check(path)
    return code, is_changed


def _check(path: Path) -> None:
    try:
        read_profile(path)
    except UserError as error:
        again = f"until `localspec profiles edit {path.stem}` fixes it, it is not used"
        raise UserError(error.message, f"{error.hint}; {again}" if error.hint else again) from None


def edit_text(command: list[str], text: str, report: Callable[[str], None] = lambda _: None) -> str:
    """Edit a text in the editor and return it: the saved text counts, whatever the exit code.

    `report` gets a line for the user if nothing changed. For the main thread. Raises `UserError` if the
    editor failed or the text is empty.
    """
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="localspec-") as folder:  # private to the user
        path = Path(folder, "prompt.md")
        path.touch(PRIVATE_FILE)
        path.write_text(text, "utf-8", "replace")
        before = path.read_bytes()
        began_s = time.monotonic()
        code = run_editor(command, path)
        took_s = time.monotonic() - began_s
        after = path.read_bytes() if path.is_file() else b""
    edited = after.decode("utf-8", "replace").rstrip() if after != before else ""
    if edited:
        report(f"the editor ended with code {code}; the saved text is here" if code else "")
        return edited
    if code:
        raise UserError(f"the editor ended with code {code}", "the prompt is as it was")
    if after != before and text.strip():
        raise UserError("the editor left no text", "the prompt is as it was")
    nothing = "nothing was changed" if text.strip() else "nothing was written"
    waits = "; an editor with its own window needs a flag to wait, such as `code --wait`"
    report(f"{nothing}{waits if took_s < _AT_ONCE_S else ''}")
    return text
