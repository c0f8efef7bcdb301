"""Measured costs of a pair's calls, saved for a day, so reopening it does not wait for them.

One small file for each pair, its options and its parallelism, written whole: if two programs write at
once, one wins.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import LocalSpecError, StoreError, os_errors_as
from localspec.storage.json_file import JsonFile, warn
from localspec.storage.pair_identity import Identity
from localspec.storage.paths import data_dir
from localspec.types.models import ModelOptions

SCHEMA = 2  # 1 had times of calls that compiled something
HOLDS_S = 24 * 3600.0  # what was measured on a busy machine should not count for long
MAX_FILE = 64 * 1024

Points = dict[int, float]
"""The seconds of calls by the tokens in them."""


@dataclass(frozen=True, slots=True)
class _Call:
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Costs:
    """Calls of the target and of the draft model; `measured_at` is in seconds since 1970."""

    measured_at: float
    verify: tuple[_Call, ...]
    step: tuple[_Call, ...]


def costs_file(identity: Identity, opened: str) -> Path:
    """Return the path of the costs for this pair; `opened` is its `opening_key`.

    Raises UserError.
    """
    digest = hashlib.sha256(f"({identity!r}, {opened})".encode()).hexdigest()[:16]
    return _folder() / f"{identity.pair}-{digest}.json"


def opening_key(target: ModelOptions, draft: ModelOptions | None, max_fan_out: int, *, together: bool) -> str:
    """Write out what costs depend on beyond an `Identity`: all options, and whether both models work at once.

    Saved files are found by this text, so no name in it may change.
    """
    sides = f"{_side(target, keeps_costs=True)}, {_side(draft, keeps_costs=False)}"
    return f"([{sides}], {max_fan_out}, {together})"


def _side(options: ModelOptions | None, *, keeps_costs: bool) -> str:
    if options is None:
        return "None"
    values = {
        "path": "PosixPath('.')",
        "context": 0,
        "gpu_layers": options.gpu_layers,
        "devices": options.devices,
        "tensor_split": options.tensor_split,
        "split_mode": repr(options.split_mode),
        "main_gpu": options.main_gpu,
        "output_at_home": options.output_at_home,
        "kv_type_k": repr(options.kv_type_k),
        "kv_type_v": repr(options.kv_type_v),
        "flash_attention": options.flash_attention,
        "batch": options.batch,
        "micro_batch": options.micro_batch,
        "threads": options.threads,
        "mmap": options.mmap,
        "keeps_costs": keeps_costs,
        "chat_template": None,
    }
    if options.experts_at_home or options.overrides:  # later than the others
        values |= {"experts_at_home": options.experts_at_home, "overrides": options.overrides}
    if options.adapters:
        values |= {"adapters": tuple(map(str, options.adapters))}
    return f"ModelOptions({', '.join(f'{name}={value}' for name, value in values.items())})"


def recall_costs(path: Path, now: float) -> tuple[Points, Points] | None:
    """Return the saved costs of the target and the draft model; None without a valid file."""
    kept = _file(path).read()
    if kept is None or not 0 <= now - kept.measured_at < HOLDS_S:
        return None
    verify, step = ({call.tokens: call.seconds for call in calls} for calls in (kept.verify, kept.step))
    return verify, step


def keep_costs(path: Path, now: float, verify: Points, step: Points) -> None:
    """Save costs, and remove outdated ones; errors only go to the log."""
    calls = [tuple(_Call(*point) for point in points.items()) for points in (verify, step)]
    try:
        for old in path.parent.glob("*.json"):
            if old.stat().st_mtime < now - HOLDS_S:
                old.unlink(missing_ok=True)
        _file(path).write(_Costs(now, *calls))
    except (LocalSpecError, OSError) as error:
        warn("costs cannot be saved, and will be measured again: %s", error)


def forget_costs(identity: Identity) -> None:
    """Drop the costs of a pair, however it was opened; raises StoreError or UserError."""
    with os_errors_as("cannot delete what calls cost", StoreError):
        for path in _folder().glob(f"{identity.pair}-*.json"):
            path.unlink(missing_ok=True)


def _folder() -> Path:
    return data_dir() / "costs"


def _file(path: Path) -> JsonFile[_Costs]:
    return JsonFile(path, _Costs, SCHEMA, MAX_FILE, _is_sound)


def _is_sound(kept: _Costs) -> bool:
    calls = (*kept.verify, *kept.step)
    return bool(kept.verify and kept.step) and all(call.tokens > 0 and call.seconds > 0 for call in calls)
