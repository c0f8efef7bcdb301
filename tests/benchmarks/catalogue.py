"""Ask the hub whether the catalogue is right about every model: `python -m tests.benchmarks.catalogue`.

Each source of each model is looked up, and a few megabytes of its header are read.
Exit code 1 if one is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from localspec.errors import UserError
from localspec.models.catalogue import CatalogueModel, approximate_shape, shipped
from localspec.models.hub import remote_shape
from localspec.models.names import parse

ROUNDED = 0.02  # of the size: entries that no one checked are rounded
_COMPARED = ("width", "heads", "vocabulary", "training_context", "tied")


def faults(model: CatalogueModel, name: str) -> Iterator[str]:
    """Yield what the catalogue says wrongly of a model, as one of its sources has it."""
    try:
        found = remote_shape(parse(name))
    except UserError as error:
        yield str(error)
        return
    if abs(found.file_bytes - model.bytes) > (1 if model.checked else ROUNDED * model.bytes):
        yield f"bytes = {found.file_bytes:_}, not {model.bytes:_}"
    if abs(found.parameters - model.parameters) > ROUNDED * model.parameters:
        yield f"parameters = {found.parameters:_}, not {model.parameters:_}"
    known = approximate_shape(model)
    if len(found.layers) != len(known.layers):
        yield f"layers = {len(found.layers)}, not {len(known.layers)}"
    for field in _COMPARED:
        there, here = getattr(found, field), getattr(known, field)
        if there != here:
            yield f"{field} = {there}, not {here}"


def main(models: Iterable[CatalogueModel]) -> int:
    """Print a line for every source of every model, and return the exit code."""
    wrong = 0
    for model in models:
        for name in model.references:
            found = list(faults(model, name))
            wrong += bool(found)
            print(f"{model.key}  {name}: {'; '.join(found) or 'right'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(shipped().models))
