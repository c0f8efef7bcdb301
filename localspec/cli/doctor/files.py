"""What `localspec doctor` looks for in files and the terminal: models, folders, chats, characters."""

from __future__ import annotations

import os
import shlex
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from shutil import disk_usage

from localspec.cli.doctor.hardware import Check
from localspec.cli.shared.console import is_terminal
from localspec.errors import UserError
from localspec.storage import paths

_SCARCE, _TOO_LITTLE = 2**30, 2**26
_PRIVATE = 0o077
_RUNNING_STATE = (".ssm.", ".wkv", "rwkv", ".shortconv.")  # in the header of models that keep one


def file_checks(environment: Mapping[str, str]) -> Iterator[Check]:
    """Look at everything about files and the terminal."""
    yield from _folders()
    yield chats()
    yield from models()
    yield _characters()
    yield _colours(environment)


def _folders() -> Iterator[Check]:
    own: dict[str, Callable[[], Path]] = {
        "config": paths.config_dir,
        "data": paths.data_dir,
        "state": paths.state_dir,
    }
    for name, find in own.items():
        try:
            yield folder(f"{name} folder", find())
        except UserError as error:
            yield Check(f"{name} folder", "fail", error.message, error.hint)


def folder(name: str, path: Path) -> Check:
    """Look whether a folder of ours can be written, has room, and is private."""
    quoted = shlex.quote(str(path))
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return Check(name, "fail", f"`{path}` cannot be written", f"sudo chown -R $(id -u) {quoted}")
    free = disk_usage(path).free
    room = f"{free / 2**30:.1f} GiB free on its disk"
    if free < _TOO_LITTLE:
        return Check(
            name, "fail", f"`{path}`: {room}: chats cannot be kept", f"df -h {quoted}   # free some space"
        )
    if free < _SCARCE:
        return Check(name, "warn", f"`{path}`: {room}", f"df -h {quoted}   # free some space")
    if os.name == "posix" and path.stat().st_mode & _PRIVATE:
        return Check(name, "warn", f"`{path}` can be looked into by others", f"chmod 700 {quoted}")
    return Check(name, "pass", f"`{path}`, {room}")


def chats() -> Check:
    """Look whether the chats can be read, and whether their file is whole."""
    try:
        path = paths.chats_file()
    except UserError as error:
        return Check("chats", "fail", error.message, error.hint)
    quoted = shlex.quote(str(path))
    if os.access(path.parent, os.X_OK) and not path.exists():
        return Check("chats", "pass", "none kept yet")
    mend = f"sqlite3 {quoted} .recover | sqlite3 {quoted}.new   # then put the new file in its place"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        return Check("chats", "fail", f"`{path}` cannot be read: {error}", f"ls -l {quoted}")
    except sqlite3.DatabaseError as error:
        return Check("chats", "fail", f"`{path}` is damaged: {error}", mend)
    if verdict != "ok":
        return Check("chats", "fail", f"`{path}` is damaged: {verdict}", mend)
    return Check("chats", "pass", f"`{path}` is whole, {path.stat().st_size / 2**20:.1f} MiB")


def models() -> Iterator[Check]:
    """Look at the configured models, if the configuration names any."""
    from localspec.storage.config import read_config

    try:
        path = paths.config_dir() / "config.toml"
        config = read_config(path)
    except UserError as error:
        yield Check("configuration", "fail", error.message, error.hint)
        return
    yield Check(
        "configuration", "pass", f"`{path}` is in order" if path.exists() else "none; nothing needs one"
    )
    for name, file in (("target model", config.target), ("draft model", config.draft)):
        if file is not None:
            yield _model(name, file)


def _model(name: str, path: Path) -> Check:
    from localspec.llama import check_model_file

    try:
        header = check_model_file(path)
    except UserError as error:
        return Check(name, "fail", error.message, f"{error.hint}, or: localspec setup")
    keys = (*header.values, *header.numbers)
    if any(mark in key for key in keys for mark in _RUNNING_STATE):
        text = (
            f"`{path.name}` ({header.architecture}) keeps a running state: guessed tokens cannot be taken "
            "back at any place, so speculation is limited or off"
        )
        return Check(name, "warn", text, "localspec recommend   # lists models that can")
    return Check(name, "pass", f"`{path.name}` ({header.architecture}) is in order")


def _characters() -> Check:
    encoding = (getattr(sys.stdout, "encoding", "") or "").lower().replace("-", "")
    if encoding == "utf8":
        return Check("characters", "pass", "the terminal takes every character (UTF-8)")
    text = f"the terminal takes {encoding or 'an unknown encoding'}: some characters show as `?`"
    mend = "chcp 65001" if os.name == "nt" else "export LANG=C.UTF-8"
    return Check("characters", "warn", text, mend)


def _colours(environment: Mapping[str, str]) -> Check:
    if not is_terminal(sys.stdout):
        return Check("colours", "pass", "the output is no terminal")
    if environment.get("NO_COLOR"):
        return Check("colours", "pass", "not wanted: NO_COLOR is set")
    term = environment.get("TERM", "")
    if os.name != "nt" and term in {"", "dumb"}:
        text = f"TERM is `{term}`: the chat screen cannot be drawn, `localspec chat` works"
        return Check("colours", "warn", text, "export TERM=xterm-256color")
    if environment.get("COLORTERM") in {"truecolor", "24bit"}:
        return Check("colours", "pass", "16 million")
    return Check("colours", "pass", "256" if "256" in term else "a few")
