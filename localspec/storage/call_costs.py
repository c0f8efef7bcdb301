"""What the calls of a pair were measured to cost, kept for a day: opening it again need not wait for that.

One small file for each pair, way of opening it and way of working, written whole: of two programs that
write at once, one wins.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from localspec.errors import LocalSpecError, StoreError
from localspec.storage.json_file import UnexpectedError, checked
from localspec.storage.pair_identity import Identity
from localspec.storage.paths import data_dir, make_private_folder, write_atomically

logger = logging.getLogger("localspec.storage.tuned_settings")

SCHEMA = 1
HOLDS_S = 24 * 3600.0  # what was measured on a busy machine should not count for long
LARGEST_FILE = 64 * 1024


@dataclass(frozen=True, slots=True)
class KeptCall:
    """The seconds of a call with so many tokens."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class KeptCosts:
    """Calls of the target and of the draft model; `measured_at` is in seconds since 1970."""

    measured_at: float
    verify: tuple[KeptCall, ...]
    step: tuple[KeptCall, ...]
    schema: int = SCHEMA


def costs_file(identity: Identity, details: object) -> Path:
    """Return where the costs are kept that hold for this, with details that nothing but costs depends on.

    Raises UserError.
    """
    digest = hashlib.sha256(repr((identity, details)).encode()).hexdigest()[:16]
    return _folder() / f"{identity.pair}-{digest}.json"


def recall_costs(path: Path, now: float) -> KeptCosts | None:
    """Return the costs in a file, None if there are none, or none that may still hold."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UnexpectedError("it is far too large")
        kept = checked(KeptCosts, json.loads(path.read_text(encoding="utf-8")), "the file")
        if kept.schema != SCHEMA:
            raise UnexpectedError(f"its schema is {kept.schema}, and this program knows {SCHEMA}")
        if not _is_sound(kept):
            raise UnexpectedError("its figures make no sense")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("%s cannot be used, and costs are measured anew: %s", path, error)
        return None
    return kept if 0 <= now - kept.measured_at < HOLDS_S else None


def keep_costs(path: Path, costs: KeptCosts) -> None:
    """Keep costs, and drop all that no longer hold; trouble with that is for the log alone."""
    try:
        make_private_folder(path.parent)
        for old in path.parent.glob("*.json"):
            if old.stat().st_mtime < costs.measured_at - HOLDS_S:
                old.unlink(missing_ok=True)
        write_atomically(path, json.dumps(asdict(costs)) + "\n")
    except (LocalSpecError, OSError) as error:
        logger.warning("costs are not kept, and measured again next time: %s", error)


def forget_costs(identity: Identity) -> None:
    """Drop the costs of a pair, however it was opened; raises StoreError or UserError."""
    try:
        for path in _folder().glob(f"{identity.pair}-*.json"):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"cannot delete what calls cost: {error.strerror or error}") from error


def _folder() -> Path:
    return data_dir() / "costs"


def _is_sound(kept: KeptCosts) -> bool:
    calls = (*kept.verify, *kept.step)
    return bool(kept.verify and kept.step) and all(call.tokens > 0 and call.seconds > 0 for call in calls)
