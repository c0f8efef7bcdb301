"""All checks in their order."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from importlib import import_module

from localspec.app.checks.check import Check
from localspec.app.checks.files import file_checks
from localspec.app.checks.machine import machine_checks
from localspec.child_process import values_of
from localspec.errors import LocalSpecError, UserError
from localspec.hardware import devices, machine
from localspec.storage import paths
from localspec.storage.config import read_config


def examine() -> Iterator[Check]:
    """Look at the machine, then at files."""
    try:
        read_config(paths.config_dir() / "config.toml")
        sight = devices.look()
    except UserError as error:
        checks = tuple(file_checks())
        if all(error.message != check.text for check in checks):
            yield Check("llama.cpp", "fail", error.message, error.hint)
        yield from checks
        return
    yield from machine_checks(sight, machine.recall(sight) or sight.machine, os.environ)
    if sight.found.devices:
        yield _engine()
    yield from file_checks()


def _engine() -> Check:
    """Look whether all that models are opened with can be imported, in a process as they have one."""
    try:
        list(values_of(_imported, devices.TIMEOUT_S))
    except LocalSpecError as error:
        mend = f"{shlex.quote(sys.executable)} -m pip check   # or unset PYTHONPATH, which may hide a package"
        return Check("engine", "fail", f"models cannot be opened: {error}", mend)
    return Check("engine", "pass", "all that opens models can be imported")


def _imported() -> Iterator[str]:
    """Import what a process that opens models imports; yields the names."""
    for name in ("localspec.inference.runtime", "localspec.llama.grammar"):
        import_module(name)
        yield name
