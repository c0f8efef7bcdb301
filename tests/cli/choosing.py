"""Invented models on disk and a small catalogue, for the commands that choose."""

from __future__ import annotations

from pathlib import Path

from localspec.models.caches import FolderKind
from localspec.models.catalogue import CatalogueModel, CataloguePair
from localspec.models.local import LocalModel
from localspec.models.shape import ModelShape


def entry(key: str, billions: float, **changes: object) -> CatalogueModel:
    """Return a model of the hub at about 4.5 bits a weight."""
    values: dict[str, object] = {
        "key": key,
        "title": key.title(),
        "source": f"user/{key}-GGUF",
        "file": "",
        "quant": "Q4_K_M",
        "bytes": int(billions * 0.6e9),
        "parameters": int(billions * 1e9),
        "active": int(billions * 1e9),
        "licence": "MIT",
        "family": "one",
        "layers": 32,
        "width": 2048,
        "feed_forward": 8192,
        "heads": 16,
        "kv_heads": 4,
        "head_size": 128,
        "vocabulary": 32000,
        "context": 32768,
        "tied": False,
        "window": None,
        "full_every": 1,
        "checked": False,
    }
    return CatalogueModel(**(values | changes))  # type: ignore[arg-type]


def pair(target: CatalogueModel, draft: CatalogueModel | None = None, **changes: object) -> CataloguePair:
    values: dict[str, object] = {
        "name": target.key,
        "target": target,
        "draft": draft,
        "memory_gb": 8,
        "score": 50,
        "good_at": (),
        "tip": "",
    }
    return CataloguePair(**(values | changes))  # type: ignore[arg-type]


def on_disk(name: str, shape: ModelShape | None, source: FolderKind = "hub", problem: str = "") -> LocalModel:
    path = Path("/models") / f"{name.rpartition('/')[2].replace(':', '-')}.gguf"
    return LocalModel(name, path, (path,), 1_000, source, shape, problem)
