"""Models on a disk, laid out as the caches have them."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from localspec.demo import bundled_pair

REPOSITORY = "someone/tiny-GGUF"
NEW, OLD = "a" * 40, "b" * 40


def model_bytes() -> bytes:
    return bundled_pair()[1].read_bytes()


def header_bytes(*tensors: str, lists: Sequence[str] = (), **values: str | int) -> bytes:
    """Return a GGUF file of a header and tensors of one number; `__` in a key represents a dot.

    `lists` are keys of arrays with a text in them.
    """

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    entries = [
        text(key.replace("__", ".")) + (struct.pack("<I", 8) + text(value) if isinstance(value, str)
                                        else struct.pack("<II", 4, value))
        for key, value in values.items()
    ]  # fmt: skip
    entries += [text(key) + struct.pack("<IIQ", 9, 8, 1) + text("a") for key in lists]
    infos = [text(name) + struct.pack("<IQIQ", 1, 1, 0, 32 * number) for number, name in enumerate(tensors)]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(entries)) + b"".join(entries + infos)
    return head + bytes(-len(head) % 32 + 32 * len(infos))


SMALL = header_bytes(
    "token_embd.weight", "blk.0.attn_norm.weight",
    general__architecture="llama", llama__block_count=1, llama__embedding_length=1,
    llama__attention__head_count=1,
)  # fmt: skip
"""A model whose header can be read, and no more than that."""
PROJECTOR = header_bytes("v.patch_embd.weight", general__architecture="clip", general__type="mmproj")


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
