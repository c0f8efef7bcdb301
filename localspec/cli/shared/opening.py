"""Open the models of a request in a child process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.app import opening
from localspec.app.opening import OpenedPair
from localspec.cli.shared.console import ConsoleStatus, on_interrupt, say
from localspec.errors import UserError
from localspec.models.names import Reference
from localspec.models.pair_files import PairFiles
from localspec.models.pair_request import PairRequest

if TYPE_CHECKING:
    from localspec.hardware.placement.open_plan import OpenPlan
    from localspec.inference.worker.client import Worker
    from localspec.inference.worker.wire import LogLine
    from localspec.models.hub import DownloadProgress

_QUIET_S = 0.5  # a load that takes less needs no progress line


class TerminalSource:
    """Models from the Hub, with progress on standard error."""

    def download(self, reference: Reference) -> Path:
        """Download a model and return its file; raises UserError."""
        return fetch(reference)

    def check(self, files: Sequence[Path]) -> None:
        """Check files before they are first used; raises UserError."""
        check(files)


TERMINAL = TerminalSource()


def find_files(request: PairRequest) -> PairFiles:
    """Return the files of a request, downloaded and checked with progress; raises UserError."""
    return opening.find_files(request, TERMINAL)


def place(request: PairRequest, files: PairFiles, worker: Worker, *, explain: bool) -> OpenPlan:
    """Plan the models of a request, without tuned settings; raises UserError."""
    check_explained(request, explain=explain)
    return opening.placed(
        files, request, via=worker.values_of, report=say if explain else None, explain=explain
    )


def check_explained(request: PairRequest, *, explain: bool) -> None:
    """Raise UserError where a plan is to be explained and none is made."""
    if explain and not request.plans:
        raise UserError("--explain and --no-fit cannot be combined", "use only one of them")


@contextmanager
def opened(
    request: PairRequest, files: PairFiles, *, verbose: bool, explain: bool
) -> Iterator[OpenedPair[Worker]]:
    """Open models as was found best for them, until the context ends; raises UserError and EngineError."""
    with start_worker(verbose=verbose) as worker:
        check_explained(request, explain=explain)
        report = say if explain else None
        planned = opening.plan_to_open(request, files, via=worker.values_of, report=report, explain=explain)
        plan = replace(planned.plan, remembers_costs=True)
        load(worker, plan)
        tell_notes(worker, plan, request)
        yield OpenedPair(worker, planned.tuned_for, request)


def start_worker(*, verbose: bool) -> Worker:
    """Start the process for models, which gets ready while this one plans them."""
    return opening.start_worker(listener(verbose=verbose))


def listener(*, verbose: bool) -> Callable[[LogLine], None] | None:
    """Return the listener to the log of such a process, if there is one."""
    return _log if verbose else None


def _log(line: LogLine) -> None:
    import logging  # `start_worker` has imported it

    name = line.name if line.name.startswith("localspec") else f"localspec.{line.name}"
    logging.getLogger(name).log(line.level, "%s", line.text)


def load(worker: Worker, plan: OpenPlan) -> None:
    """Open the models, with progress on a terminal; Ctrl+C raises Cancelled."""
    started = time.monotonic()
    wanted = [True]

    def on_progress(fraction: float) -> bool:
        if time.monotonic() - started > _QUIET_S:
            status.update(f"loading {plan.target.path.name}: {fraction:.0%}")
        return wanted[0]

    with on_interrupt(lambda: wanted.__setitem__(0, False)), ConsoleStatus() as status:
        worker.load(plan, on_progress=on_progress)
    if not wanted[0]:  # asked too late for the loader to notice
        raise KeyboardInterrupt


def fetch(reference: Reference, *, force: bool = False) -> Path:
    """Download a model with progress on standard error, as `fetching.fetch` does, and return its file."""
    from localspec.app import fetching

    def report(text: str) -> None:
        status.clear()
        say(text)

    def on_progress(progress: DownloadProgress) -> bool:
        status.update(str(progress))
        return True

    try:
        with ConsoleStatus() as status:
            return fetching.fetch(reference, report, on_progress, force=force)
    except KeyboardInterrupt:
        say(f"stopped; the download so far is saved, and `localspec pull {reference}` resumes it")
        raise


def check(files: Sequence[Path]) -> None:
    """Check files from the Hub before their first use, with progress on standard error."""
    from localspec.models.verified import verify

    with ConsoleStatus() as status:
        verify(files, status.share_of(f"checking {files[0].name}"))


def tell_notes(worker: Worker, plan: OpenPlan, request: PairRequest) -> None:
    """Print what the user at the keyboard should know about these models on this machine."""
    for text in (*plan.notes, *worker.notes):
        note(text)
    if request.wants_gpu and opening.computes_on_cpu(worker.values_of):
        note("-ngl has no effect, because this build of llama.cpp computes on the CPU only")


def note(text: str) -> None:
    """Print what the user at the keyboard should know."""
    say(f"note: {text}")
