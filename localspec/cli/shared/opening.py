"""Open the models that the arguments name, in a process of their own: what ends that ends nothing else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.app.options import PairOptions
from localspec.cli.shared.console import StatusLine, on_interrupt, say
from localspec.models.names import Reference

if TYPE_CHECKING:
    from localspec.hardware.devices import Ask
    from localspec.inference.worker.client import Worker
    from localspec.inference.worker.wire import LogLine
    from localspec.llama.backends import BackendDevice
    from localspec.models.hub import DownloadProgress

_QUIET_S = 0.5  # a load that takes less needs no progress line


def start_worker(*, verbose: bool) -> Worker:
    """Start the process that is to open models, which gets ready while this one reads what they are."""
    from localspec.inference.worker.client import Worker

    return Worker(_log if verbose else None)


def _log(line: LogLine) -> None:
    import logging  # `start_worker` has imported it

    name = line.name if line.name.startswith("localspec") else f"localspec.{line.name}"
    logging.getLogger(name).log(line.level, "%s", line.text)


def load(worker: Worker, options: PairOptions) -> None:
    """Open the models, with progress on a terminal; Ctrl+C raises Cancelled."""
    started, wanted = time.monotonic(), [True]

    def on_progress(fraction: float) -> bool:
        if time.monotonic() - started > _QUIET_S:
            status.update(f"loading {options.target.path.name}: {fraction:.0%}")
        return wanted[0]

    with on_interrupt(lambda: wanted.__setitem__(0, False)), StatusLine() as status:
        worker.load(
            options.target,
            options.draft,
            max_fan_out=options.max_fan_out,
            on_progress=on_progress,
        )
    if not wanted[0]:  # asked too late for the loader to notice
        raise KeyboardInterrupt


def fetch(reference: Reference, *, force: bool = False) -> Path:
    """Download a model with progress on standard error, and return its file; as `fetching.fetch` does."""
    from localspec.app import fetching

    def tell(text: str) -> None:
        status.clear()
        say(text)

    def on_progress(progress: DownloadProgress) -> bool:
        status.update(str(progress))
        return True

    try:
        with StatusLine() as status:
            return fetching.fetch(reference, tell, on_progress, force=force)
    except KeyboardInterrupt:
        say(f"stopped; what has arrived is kept, and `localspec pull {reference}` goes on with it")
        raise


def check(files: Sequence[Path]) -> None:
    """Check files that came from the hub before they are first used, with progress on standard error."""
    from localspec.models.verified import verify

    with StatusLine() as status:
        verify(files, status.share_of(f"checking {files[0].name}"))


def tell_notes(worker: Worker, options: PairOptions) -> None:
    """Print what the person at the keyboard should know about these models on this machine."""
    for text in (*options.notes, *worker.notes):
        note(text)
    if options.asked_for_gpu and all(device.kind == "cpu" for device in _devices(worker.look)):
        note("-ngl has no effect, because this build of llama.cpp computes on the CPU only")


def note(text: str) -> None:
    """Print what the person at the keyboard should know."""
    say(f"note: {text}")


def _devices(via: Ask) -> tuple[BackendDevice, ...]:
    from localspec.hardware.devices import look

    return look(via=via).found.devices
