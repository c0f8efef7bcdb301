"""Open the models that the arguments name: the one seam between the command line and native code."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from localspec.app.options import PairOptions
from localspec.cli.shared.console import StatusLine, on_interrupt, say

if TYPE_CHECKING:
    from localspec.inference.runtime import Runtime
    from localspec.llama import BackendDevice

_QUIET_S = 0.5  # a load that takes less needs no progress line


def open_runtime(options: PairOptions) -> Runtime:
    """Open the models, with progress on a terminal; Ctrl+C raises Cancelled."""
    from localspec.inference.runtime import Runtime  # numpy and llama.cpp: 0.3 s

    threading.Thread(target=_import_the_rest).start()
    status, started, wanted = StatusLine(), time.monotonic(), [True]

    def on_progress(fraction: float) -> bool:
        if time.monotonic() - started > _QUIET_S:
            status.update(f"loading {options.target.path.name}: {fraction:.0%}")
        return wanted[0]

    with on_interrupt(lambda: wanted.__setitem__(0, False)):
        try:
            runtime = Runtime.open(
                options.target,
                options.draft,
                max_fan_out=options.max_fan_out,
                draft_threads=options.draft_threads,
                on_progress=on_progress,
            )
        finally:
            status.clear()
    if not wanted[0]:  # asked too late for the loader to notice
        runtime.close()
        raise KeyboardInterrupt
    return runtime


def _import_the_rest() -> None:
    """Import what the first answer needs, while native code reads the models."""
    with suppress(ImportError):  # whoever needs it has more to say
        for name in ("jinja2.ext", "jinja2.sandbox", "numpy.random"):
            import_module(name)


def tell_notes(runtime: Runtime, options: PairOptions) -> None:
    """Print what the person at the keyboard should know about these models on this machine."""
    for text in runtime.notes:
        note(text)
    if options.asked_for_gpu and all(device.kind == "cpu" for device in _devices()):
        note("-ngl has no effect, because this build of llama.cpp computes on the CPU only")


def note(text: str) -> None:
    """Print what the person at the keyboard should know."""
    say(f"note: {text}")


def list_devices() -> int:
    """Print a line for each device that a model can sit on; return the exit code."""
    for device in _devices():
        memory = f"{device.memory_total / 2**30:.1f} GiB, {device.memory_free / 2**30:.1f} GiB free"
        print(f"{device.name}: {device.description} ({memory})")
    return 0


def _devices() -> tuple[BackendDevice, ...]:
    from localspec.llama import devices  # llama.cpp: 0.3 s

    return devices()
