"""What the headers of model files said, remembered so that no header is read twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, fields
from itertools import groupby
from pathlib import Path

import localspec
from localspec.errors import ModelFileError, StoreError
from localspec.models.shape_m import LayerShape, ModelShape
from localspec.storage.paths import write_atomically

_LAYOUT = [
    localspec.__version__,
    *(field.name for kind in (ModelShape, LayerShape) for field in fields(kind)),
]


class Headers:
    """The shapes of files, or why they have none, by path, size and time of change."""

    def __init__(self, file: Path, read: Callable[[Path], ModelShape]) -> None:
        self._file = file
        self._read = read
        self._known = _load(file)
        self._changed = False

    def shape(self, path: Path, files: Sequence[Path]) -> tuple[ModelShape | None, str]:
        """Return the shape of a model, or None and what is wrong with it."""
        try:
            stats = [file.stat() for file in files]
        except FileNotFoundError:
            return None, "it links to a file that is gone; download it again"
        except OSError as error:
            return None, f"it cannot be read: {error.strerror or error}"
        stamp = [[stat.st_size, stat.st_mtime_ns] for stat in stats]
        known = self._known.get(str(path))
        if isinstance(known, dict) and known.get("stamp") == stamp:
            with suppress(KeyError, TypeError, ValueError):
                return _decode(known["shape"]), str(known["problem"])
        shape: ModelShape | None = None
        problem = ""
        try:
            shape = self._read(path)
        except ModelFileError as error:
            problem = error.message.removeprefix(f"{path} ") + (f"; {error.hint}" if error.hint else "")
            if isinstance(error.__cause__, OSError):  # which may pass while the file stays as it is
                return None, problem
        self._known[str(path)] = {"stamp": stamp, "shape": _encode(shape), "problem": problem}
        self._changed = True
        return shape, problem

    def save(self) -> None:
        """Write what was learned; a disk that takes no more costs only time, the next time."""
        if not self._changed:
            return
        entries = {path: entry for path, entry in self._known.items() if _is_there(path)}
        with suppress(StoreError):
            write_atomically(self._file, json.dumps({"layout": _LAYOUT, "models": entries}))


def _is_there(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # a folder that is closed now
        return True


def _load(file: Path) -> dict[str, object]:
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(held, dict) or held.get("layout") != _LAYOUT:
        return {}
    models = held.get("models")
    return models if isinstance(models, dict) else {}


def _encode(shape: ModelShape | None) -> dict[str, object] | None:
    if shape is None:
        return None
    values = {field.name: getattr(shape, field.name) for field in fields(ModelShape)}
    # most layers of a model are alike: say how many of each
    runs = [[len(list(run)), astuple(layer)] for layer, run in groupby(shape.layers)]
    return values | {"layers": runs}


def _decode(held: object) -> ModelShape | None:
    if held is None:
        return None
    if not isinstance(held, dict):
        raise TypeError
    layers = tuple(layer for count, values in held["layers"] for layer in [LayerShape(*values)] * count)
    return ModelShape(**held | {"layers": layers})
