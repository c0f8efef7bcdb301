"""Which draft models can serve a target, from the disk and from the catalogue, and what they should bring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.app.recommendation import on_disk
from localspec.errors import UserError
from localspec.hardware.device_info import Machine, Placement
from localspec.hardware.placement.constraints import PlacementConstraints
from localspec.hardware.placement.place import place
from localspec.models.catalogue import Catalogue, CatalogueModel, approximate_shape
from localspec.models.local import LocalModel
from localspec.models.pairing import PADDING_ALLOWED, PairingVerdict, may_serve
from localspec.models.shape import ModelShape

Compare = Callable[[Path, Path], PairingVerdict]
_BY_CATALOGUE = "the same by the catalogue; compared once both are on disk"
_BY_SIZE = "of about the same size, so perhaps the same; compared once both are on disk"


@dataclass(frozen=True, slots=True)
class Target:
    """The model that is to be served: on disk, or known from the catalogue alone."""

    name: str
    shape: ModelShape
    path: Path | None


@dataclass(frozen=True, slots=True)
class Partner:
    """A draft model for a target: on disk with a `path`, or to be pulled by its `name`.

    `placement` says how both would work together; None where they are no pair, or do not fit.
    """

    name: str
    path: Path | None
    verdict: PairingVerdict
    placement: Placement | None
    problem: str = ""

    @property
    def tokens_per_s(self) -> float:
        """Return the expected speed, 0 where there is none."""
        return (self.placement.tokens_per_s or 0.0) if self.placement else 0.0


def partners(
    target: Target,
    machine: Machine,
    local: Sequence[LocalModel],
    known: Catalogue,
    compare: Compare = may_serve,
) -> tuple[Partner, ...]:
    """Return every smaller model with its verdict: those that serve first, the fastest first."""
    found = [
        *_from_disk(target, machine, local, known, compare),
        *_from_catalogue(target, machine, local, known),
    ]
    return tuple(
        sorted(found, key=lambda partner: (not partner.verdict.fits, -partner.tokens_per_s, partner.name))
    )


def entry_of(model: LocalModel, known: Catalogue) -> CatalogueModel | None:
    """Return the entry of the catalogue that a model on disk is."""
    return next((entry for entry in known.models if on_disk(entry, (model,)) is model), None)


def families(target: Target, local: Iterable[LocalModel], known: Catalogue) -> frozenset[str]:
    """Return the families of the catalogue whose vocabulary the target may have.

    One where a file of that family has the target's very vocabulary; else all of about that size.
    """
    for model in local:
        shape = model.shape
        if shape is not None and shape.vocabulary_family == target.shape.vocabulary_family:
            entry = entry_of(model, known)
            if entry is not None:
                return frozenset({entry.family})
    of_catalogue = {entry.family for entry in known.models}
    if target.shape.vocabulary_family in of_catalogue:
        return frozenset({target.shape.vocabulary_family})
    return frozenset(
        entry.family
        for entry in known.models
        if abs(entry.vocabulary - target.shape.vocabulary) <= PADDING_ALLOWED
    )


def _from_disk(
    target: Target, machine: Machine, local: Sequence[LocalModel], known: Catalogue, compare: Compare
) -> Iterator[Partner]:
    wanted = frozenset[str]() if target.path else families(target, local, known)
    for model in local:
        shape = model.shape
        if shape is None or model.path == target.path or shape.parameters >= target.shape.parameters:
            continue
        ratio = target.shape.parameters / max(1, shape.parameters)
        if target.path is not None:
            try:
                verdict = compare(target.path, model.path)
            except UserError as error:
                verdict = PairingVerdict(False, error.message, ratio)
        elif (entry := entry_of(model, known)) is not None and entry.family in wanted:
            verdict = PairingVerdict(True, _BY_CATALOGUE, ratio)
        else:
            continue  # without the target's file there is nothing to compare
        yield _partner(model.name, model.path, verdict, target, shape, machine)


def _from_catalogue(
    target: Target, machine: Machine, local: Sequence[LocalModel], known: Catalogue
) -> Iterator[Partner]:
    wanted = families(target, local, known)
    drafts = {pair.draft.key: pair.draft for pair in known.pairs if pair.draft is not None}
    for entry in drafts.values():
        if entry.family not in wanted or not entry.reference or on_disk(entry, local) is not None:
            continue
        if entry.parameters >= target.shape.parameters:
            continue
        reason = _BY_CATALOGUE if len(wanted) == 1 else _BY_SIZE
        verdict = PairingVerdict(True, reason, target.shape.parameters / entry.parameters)
        yield _partner(entry.reference, None, verdict, target, approximate_shape(entry), machine)


def _partner(
    name: str, path: Path | None, verdict: PairingVerdict, target: Target, shape: ModelShape, machine: Machine
) -> Partner:
    if not verdict.fits:
        return Partner(name, path, verdict, None)
    try:
        placement = place(machine, target.shape, shape, PlacementConstraints())
    except UserError as error:
        return Partner(name, path, verdict, None, error.message)
    if placement.draft is None:
        reason = next((text for text in placement.reasons if text.startswith("the draft stays closed")), "")
        return Partner(name, path, verdict, None, reason or "the draft stays closed")
    return Partner(name, path, verdict, placement)
