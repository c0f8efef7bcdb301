"""The file of tuned settings; several programs may read and write it at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from localspec.errors import StoreError, os_errors_as
from localspec.storage.call_costs import forget_costs
from localspec.storage.json_file import JsonFile, warn
from localspec.storage.pair_identity import Identity, ModelFacts, changes
from localspec.storage.paths import data_dir
from localspec.types.models import KvType
from localspec.types.request import EngineSettings, TaskType

SCHEMA = 1
TIMEOUT_S = 10.0
MAX_FILE = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TunedTask:
    """The tuner's result for a task; the gain is over plain decoding, with its 95% interval."""

    task: TaskType
    settings: EngineSettings
    gain: float
    gain_low: float
    gain_high: float
    rate: float
    plain_rate: float
    measured_at: str  # in ISO 8601
    reason: str


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a pair is best opened on this machine; 0 threads and None leave it to the runtime.

    What the memory of GPUs limits is relative to the plan, which knows how much of it is free.
    """

    threads: int = 0
    draft_threads: int | None = None
    micro_batch: int = 512  # other sizes were tuned by version 0.2
    draft_flash_attention: bool | None = None
    draft_kv_type: KvType = "f16"
    draft_on_cpu: bool = False
    micro_batch_factor: float = 1.0  # of the planned one
    more_experts_at_home: int = 0  # layers more than planned, fewer if it is negative
    target_kv_type: KvType = "f16"  # others move the target's distribution, and are tried only on request


@dataclass(frozen=True, slots=True)
class TunedEntry:
    """Settings, and what they are valid for."""

    identity: Identity
    tuned: TunedTask


@dataclass(frozen=True, slots=True)
class SavedTuning:
    """The saved settings of a task; `stale` says what has changed since then."""

    tuned: TunedTask | None = None
    stale: tuple[str, ...] = ()

    @property
    def settings(self) -> EngineSettings | None:
        """Return the settings if they are still valid."""
        return None if self.tuned is None or self.stale else self.tuned.settings


@dataclass(frozen=True, slots=True)
class _KeptLoadOptions:
    identity: Identity
    workplace: LoadOptions


@dataclass(slots=True)
class _Contents:
    tasks: tuple[TunedEntry, ...] = ()
    workplaces: tuple[_KeptLoadOptions, ...] = ()


def keep(identity: Identity, tuned: TunedTask) -> None:
    """Save settings, replacing those for the same; raises StoreError or UserError."""
    with _rewriting() as contents:
        others = [
            kept
            for kept in contents.tasks
            if kept.tuned.task != tuned.task or not _replaces(identity, kept.identity)
        ]
        contents.tasks = (*others, TunedEntry(identity, tuned))


def recall(identity: Identity, task: TaskType) -> SavedTuning:
    """Return the tuned settings of a task: valid ones, else the closest, with the changes."""
    found = [
        (changes(kept.identity, identity), kept.tuned)
        for kept in _read()[0].tasks
        if kept.tuned.task == task and same_pair(kept.identity, identity)
    ]
    found.sort(key=lambda each: each[1].measured_at, reverse=True)
    stale, tuned = min(found, key=lambda each: len(each[0]), default=((), None))
    return SavedTuning(tuned, stale)


def save_load_options(identity: Identity, workplace: LoadOptions) -> None:
    """Save the best load options of a pair; raises StoreError or UserError."""
    with _rewriting() as contents:
        others = [kept for kept in contents.workplaces if not _replaces(identity, kept.identity)]
        contents.workplaces = (*others, _KeptLoadOptions(identity, workplace))


def find_load_options(identity: Identity) -> LoadOptions | None:
    """Return the best load options of a pair, None if unknown or no longer valid."""
    found = (kept for kept in _read()[0].workplaces if same_pair(kept.identity, identity))
    return next((kept.workplace for kept in found if not changes(kept.identity, identity)), None)


def forget(identity: Identity, task: TaskType | None = None) -> int:
    """Delete the tuned settings of a pair, for any machine: one task, or all; return the number of tasks.

    Its measured costs are deleted as well. Raises StoreError or UserError.
    """
    with _rewriting() as contents:
        before = contents.tasks
        contents.tasks = tuple(
            kept
            for kept in before
            if task not in (None, kept.tuned.task) or not same_pair(kept.identity, identity)
        )
        if task is None:
            others = (kept for kept in contents.workplaces if not same_pair(kept.identity, identity))
            contents.workplaces = tuple(others)
    forget_costs(identity)
    return len(before) - len(contents.tasks)


def everything() -> tuple[tuple[TunedEntry, ...], str]:
    """Return all that was tuned for any pair, and why a file could not be read, if so."""
    contents, note = _read()
    return contents.tasks, note


def same_pair(kept: Identity, now: Identity) -> bool:
    """Return whether these are the same models, moved or changed on the spot."""
    return _same_model(kept.target, now.target) and _same_model(kept.draft, now.draft)


def _same_model(kept: ModelFacts | None, now: ModelFacts | None) -> bool:
    if kept is None or now is None:
        return kept is now
    return kept.fingerprint == now.fingerprint or kept.path == now.path


def _replaces(new: Identity, old: Identity) -> bool:
    """Return whether settings for `new` replace those for `old`.

    Other placements of the same pair are saved separately.
    """
    return _place(new) == _place(old) and same_pair(old, new)


def _place(of: Identity) -> tuple[object, ...]:
    machine = of.machine
    draft_seat = of.draft and of.draft.seat
    return machine.processor, machine.cores, machine.devices, of.context, of.target.seat, draft_seat


def _file() -> JsonFile[_Contents]:
    return JsonFile(data_dir() / "tuned.json", _Contents, SCHEMA, MAX_FILE)


def _read() -> tuple[_Contents, str]:
    """Return the contents, and why the file could not be read, if so."""
    file = _file()
    try:
        return file.load(), ""
    except FileNotFoundError:
        return _Contents(), ""
    except (OSError, ValueError, RecursionError) as error:
        note = (
            f"the tuned settings in {file.path} cannot be used: {getattr(error, 'strerror', None) or error}"
        )
        warn("%s", note)
        return _Contents(), note


@contextmanager
def _rewriting() -> Iterator[_Contents]:
    """Lock the file, let the caller change its contents, and write them.

    A file that cannot be read, perhaps a newer program's, is set aside.
    """
    file = _file()
    with os_errors_as(f"cannot write `{file.path}`", StoreError), file.locked(TIMEOUT_S):
        contents, note = _read()
        yield contents
        if note:
            with suppress(OSError):
                file.path.replace(file.path.with_suffix(".unread"))
        file.write(contents)
