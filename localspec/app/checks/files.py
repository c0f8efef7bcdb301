"""Checks of files: folders, chats, and the configuration with its models."""

from __future__ import annotations

import os
import shlex
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from difflib import get_close_matches
from pathlib import Path
from shutil import disk_usage

from localspec import units
from localspec.app.checks.check import Check
from localspec.app.opening import with_moved
from localspec.errors import UserError
from localspec.gguf import check_model_file
from localspec.llama.template.template_file import usable_template
from localspec.storage import paths
from localspec.storage.config import Config, check_models, read_config
from localspec.storage.kept_caches import caches_dir, figures

_SCARCE = 2**30
_TOO_LITTLE = 2**26
_PRIVATE = 0o077
_SETTINGS = {".toml", ".json", ".yaml", ".yml", ".ini"}  # endings of other programs' settings


def file_checks() -> Iterator[Check]:
    """Look at everything about files."""
    yield _kept("config folder", paths.config_dir, folder)
    yield _kept("data folder", paths.data_dir, folder)
    yield _kept("state folder", paths.state_dir, folder)
    yield _kept("chats", paths.chats_file, chats)
    yield from caches()
    yield from models()


def _kept(name: str, find: Callable[[], Path], look: Callable[[str, Path], Check]) -> Check:
    try:
        return look(name, find())
    except UserError as error:
        return Check(name, "fail", error.message, error.hint)


def _missing_folder(name: str, path: Path) -> Check:
    """Look whether a folder that is not there can be made."""
    above = next(each for each in path.parents if each.exists())
    if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
        return Check(name, "pass", f"`{path}` will be created when it is needed")
    mend = f"export LOCALSPEC_{name.partition(' ')[0].upper()}_DIR=...   # a folder that you can write to"
    return Check(name, "fail", f"`{path}` cannot be made: `{above}` cannot be written", mend)


def folder(name: str, path: Path) -> Check:
    """Look whether a folder of ours can be written, has room, and is private."""
    if not path.exists():
        return _missing_folder(name, path)
    quoted = shlex.quote(str(path))
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return Check(name, "fail", f"`{path}` cannot be written", f"sudo chown -R $(id -u) {quoted}")
    free = disk_usage(path).free
    room = f"{units.memory(free, 0)} free on its disk"
    if free < _TOO_LITTLE:
        text = f"`{path}`: {room}: chats cannot be saved"
        return Check(name, "fail", text, f"df -h {quoted}   # free some space")
    if free < _SCARCE:
        return Check(name, "warn", f"`{path}`: {room}", f"df -h {quoted}   # free some space")
    if os.name == "posix" and path.stat().st_mode & _PRIVATE:
        return Check(name, "warn", f"`{path}` can be looked into by others", f"chmod 700 {quoted}")
    return Check(name, "pass", f"`{path}`, {room}")


def chats(name: str, path: Path) -> Check:
    """Look whether the chats can be read, and whether their file is whole."""
    quoted = shlex.quote(str(path))
    if not path.exists() and (os.access(path.parent, os.X_OK) or not path.parent.exists()):
        return Check(name, "pass", "none saved yet")
    mend = f"sqlite3 {quoted} .recover | sqlite3 {quoted}.new   # then put the new file in its place"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        return Check(name, "fail", f"`{path}` cannot be read: {error}", f"ls -l {quoted}")
    except sqlite3.DatabaseError as error:
        return Check(name, "fail", f"`{path}` is damaged: {error}", mend)
    if verdict != "ok":
        return Check(name, "fail", f"`{path}` is damaged: {verdict}", mend)
    return Check(name, "pass", f"`{path}` is whole, {path.stat().st_size / 2**20:.1f} MiB")


def caches() -> Iterator[Check]:
    """Look at the KV caches of conversations on disk, if there are any."""
    with suppress(UserError):  # a mistake in config.toml has a line of its own
        limit = read_config(paths.config_dir() / "config.toml").cache_disk
        there = figures(limit)
        if there.count or limit:
            text = (
                f"{units.counted(there.count, 'conversation')}, {units.size(there.bytes)} in `{caches_dir()}`"
            )
            most = f", at most {units.size(limit)}" if limit else "; `localspec rm --caches` deletes them"
            yield Check("saved caches", "pass", text + most)


def _nearly(path: Path) -> Path | None:
    """Return the file beside a missing one whose name is nearly its own, if there is one."""
    with suppress(OSError):
        files = (each for each in path.parent.iterdir() if each.is_file())
        names = {each.name.lower(): each for each in files if each.suffix not in (".yaml", ".yml", ".json")}
        near = get_close_matches(path.name, names, n=1, cutoff=0.8)
        return names[near[0]] if near else None
    return None


def _unread(folder: Path) -> Iterator[Check]:
    """Warn of files in the configuration folder that look like settings and are never read."""
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            if path.suffix in _SETTINGS and path.is_file() and path.name != "config.toml":
                text = f"`{path}` is not read: settings are in `config.toml`, profiles in `profiles/`"
                yield Check("configuration", "warn", text, f"rm {shlex.quote(str(path))}   # or move it")


def models() -> Iterator[Check]:
    """Look at the configured models, if the configuration names any."""
    try:
        path = paths.config_dir() / "config.toml"
        config = with_moved(read_config(path))
        check_models(path, config)
    except UserError as error:
        yield Check("configuration", "fail", error.message, error.hint)
        return
    if path.exists():
        yield Check("configuration", "pass", f"`{path}` is in order")
        yield from _unread(path.parent)
    elif (other := _nearly(path)) is not None:
        mend = f"mv {shlex.quote(str(other))} {shlex.quote(str(path))}"
        yield Check("configuration", "warn", f"`{other}` is not read: its name is not `{path.name}`", mend)
    elif (unread := list(_unread(path.parent))) != []:
        yield from unread
    else:
        yield Check("configuration", "pass", "none; nothing needs one")
    for name, file in (("target model", config.target), ("draft model", config.draft)):
        if file is not None:
            yield _model(name, file)
    for template in dict.fromkeys(file for _, file in config.templates if file is not None):
        yield _template(template, config)


def _template(path: Path, config: Config) -> Check:
    try:
        usable_template(path)
    except UserError as error:
        return Check("chat template", "fail", error.message, error.hint)
    text = f"`{path}` is in order"
    if config.target is not None and config.template_of(config.target) == path:
        text += f", and is used instead of that of `{config.target.name}`"
    return Check("chat template", "pass", text)


def _model(name: str, path: Path) -> Check:
    try:
        header = check_model_file(path)
    except UserError as error:
        return Check(name, "fail", error.message, f"{error.hint}, or: localspec setup")
    return Check(name, "pass", f"`{path.name}` ({header.architecture}) is in order")
