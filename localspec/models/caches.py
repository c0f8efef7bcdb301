"""The folders of models: the caches of llama.cpp, Hugging Face, LM Studio and Ollama, and packages."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localspec import smollm2
from localspec.storage.paths import expanded, read_plain

FolderKind = Literal["hub", "llama.cpp", "lmstudio", "ollama", "package", "bundled", "folder"]
"""`hub` has huggingface_hub's layout, which llama.cpp shares; `llama.cpp` are loose files next to it.

From what is in Ollama's store nothing is deleted: Ollama counts who uses its files.
"""
OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")  # of the user that its Linux installer makes

_MOST = 2**20  # bytes of other programs' notes


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder that contains models, or a single model file."""

    path: Path
    kind: FolderKind

    @property
    def is_cache(self) -> bool:
        """Return whether these files were downloaded, and may be deleted on request."""
        return self.kind in ("hub", "llama.cpp", "lmstudio")


def hub_cache() -> Path:
    """Return the folder that downloads go to: the first that is set, in llama.cpp's order."""
    return next(_hub_candidates())


def known_places() -> tuple[ModelFolder, ...]:
    """Return every folder and file on this machine that may contain models, whether it exists or not."""
    places = [ModelFolder(path, "hub") for path in _hub_candidates()]
    places += [ModelFolder(path, "llama.cpp") for path in _loose_candidates()]
    places += [ModelFolder(path, "lmstudio") for path in _lmstudio_candidates()]
    places += [ModelFolder(path, "ollama") for path in _ollama_candidates()]
    packaged = smollm2.target()
    if packaged is not None:
        places.append(ModelFolder(packaged, "package"))
    return tuple(dict.fromkeys(places))


def repository_folder(cache: Path, repository: str) -> Path:
    """Return the folder of a repository in the Hub's layout, also one whose name differs in case."""
    name = f"models--{repository.replace('/', '--')}"
    with suppress(OSError):
        there = sorted(each.name for each in cache.iterdir() if each.name.lower() == name.lower())
        if there and name not in there:
            return cache / there[0]
    return cache / name


def repository_of(folder: str) -> str | None:
    """Return the repository of a folder in the Hub's layout."""
    user, separator, name = folder.removeprefix("models--").partition("--")
    return f"{user}/{name}" if folder.startswith("models--") and separator and user and name else None


def current_commit(folder: Path) -> str | None:
    """Return the newest commit in a repository's folder."""
    with suppress(OSError, UnicodeDecodeError):
        return read_plain(folder / "refs" / "main", _MOST).decode("ascii").strip() or None
    return None


def _hub_candidates() -> Iterator[Path]:
    for variable, below in (
        ("LLAMA_CACHE", ""),
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ):
        base = _folder_from(variable)
        if base is not None:
            yield base / below
    yield expanded("~") / ".cache" / "huggingface" / "hub"


def _loose_candidates() -> Iterator[Path]:
    """Yield llama.cpp's own cache folders, used for other sources and before it shared the Hub's."""
    given = _folder_from("LLAMA_CACHE")
    if given is not None:
        yield given
    local = _folder_from("LOCALAPPDATA")
    if local is not None:
        yield local / "llama.cpp"
    yield (_folder_from("XDG_CACHE_HOME") or expanded("~") / ".cache") / "llama.cpp"
    yield expanded("~") / "Library" / "Caches" / "llama.cpp"


def _lmstudio_candidates() -> Iterator[Path]:
    home = expanded("~")
    base = home / ".lmstudio"
    with suppress(OSError, UnicodeDecodeError):
        base = Path(read_plain(home / ".lmstudio-home-pointer", _MOST).decode().strip() or base)
    with suppress(OSError, ValueError, RecursionError):
        settings = json.loads(read_plain(base / "settings.json", _MOST))
        chosen = settings.get("downloadsFolder") if isinstance(settings, dict) else None
        if isinstance(chosen, str) and chosen:
            yield Path(chosen)
    yield base / "models"
    yield home / ".cache" / "lm-studio" / "models"


def _ollama_candidates() -> Iterator[Path]:
    given = _folder_from("OLLAMA_MODELS")
    if given is not None:
        yield given
    yield expanded("~") / ".ollama" / "models"
    yield OLLAMA_SERVICE


def _folder_from(variable: str) -> Path | None:
    text = os.environ.get(variable, "").strip()
    return expanded(os.path.expandvars(text)) if text else None
