"""Ollama's store: which of its files is which model, as its manifests say; nothing in it is ever changed.

Layout: `manifests/HOST/NAMESPACE/MODEL/TAG` list layers, which are in `blobs` under their checksums.
Source: Ollama's server/manifest.go and types/model/name.go.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from localspec.safe_text import whole_text
from localspec.storage.paths import read_plain
from localspec.values import InvalidValueError, read

_USUAL_HOST = "registry.ollama.ai"
_USUAL_NAMESPACE = "library"
_LARGEST = 2**20  # bytes of a manifest
_MOST = 10_000  # manifests
_DIGEST = re.compile("sha256[:-]([0-9a-f]{64})")
_KIND = "application/vnd.ollama.image."


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model by the name that `ollama list` shows, and the file with its weights."""

    name: str
    blob: Path
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Layer:
    mediaType: str  # noqa: N815 - as in the file
    digest: str


def is_store(folder: Path) -> bool:
    """Return whether a folder is laid out like Ollama's store."""
    return all(os.path.isdir(folder / name) for name in ("manifests", "blobs"))  # noqa: PTH112 - never raises


def models_in(store: Path) -> Iterator[StoredModel]:
    """Yield the models of a store whose weights are on this disk; other files than manifests are skipped."""
    for manifest in islice(_manifests(store / "manifests", 4), _MOST):
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError, InvalidValueError):
            yield from _model(store, manifest)


def _manifests(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the files at a depth below a folder."""
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            if depth == 1:
                yield path
            elif not path.name.startswith("."):
                yield from _manifests(path, depth - 1)


def _model(store: Path, manifest: Path) -> Iterator[StoredModel]:
    index = json.loads(read_plain(manifest, _LARGEST))
    layers = [read(_Layer, layer, "a layer") for layer in index["layers"]]
    weights = [layer.digest for layer in layers if layer.mediaType == f"{_KIND}model"]
    if not weights:  # it runs in Ollama's cloud
        return
    has_adapter = any(layer.mediaType == f"{_KIND}adapter" for layer in layers)
    problem = "it needs an adapter, which LocalSpec does not support" if has_adapter else ""
    yield StoredModel(_name(*manifest.parts[-4:]), _blob(store, weights[0]), problem)


def _name(host: str, namespace: str, model: str, tag: str) -> str:
    steps = [host, namespace, model]
    if host == _USUAL_HOST:
        steps = [model] if namespace == _USUAL_NAMESPACE else [namespace, model]
    return whole_text(f"{'/'.join(steps)}:{tag}")


def _blob(store: Path, digest: str) -> Path:
    """Return the file of a layer; raises ValueError where its name is none."""
    found = _DIGEST.fullmatch(digest)
    if found is None:
        raise ValueError(digest)
    paths = [store / "blobs" / f"sha256{mark}{found[1]}" for mark in "-:"]
    return next((path for path in paths if os.path.exists(path)), paths[0])  # noqa: PTH110 - likewise
