"""Models on a disk, laid out as the caches have them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from localspec.demo import bundled_pair

REPOSITORY = "someone/tiny-GGUF"
NEW, OLD = "a" * 40, "b" * 40


def model_bytes() -> bytes:
    return bundled_pair()[1].read_bytes()


def put(
    cache: Path,
    name: str,
    content: bytes,
    *,
    repository: str = REPOSITORY,
    commit: str = NEW,
    newest: bool = True,
) -> Path:
    """Lay a file where the hub's layout has it; return the link."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    blob = folder / "blobs" / hashlib.sha256(content).hexdigest()
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    link = folder / "snapshots" / commit / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    if newest:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(commit)
    return link


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
