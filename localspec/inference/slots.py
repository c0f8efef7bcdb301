"""Slots whose conversations are saved to files and restored by their numbers, as a client asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from localspec.decoding.seating import Seating
from localspec.errors import EngineError, UserError
from localspec.inference.contexts import CostedEngine
from localspec.llama.context import state_memory
from localspec.storage.cache_file import DamagedFileError, read_copy, save_copy
from localspec.storage.regular_file import check_regular
from localspec.types.models import SlotFile


def save_slot(
    seating: Seating[CostedEngine],
    models: Callable[[tuple[float, ...]], Sequence[str]],
    slot: int,
    path: Path,
) -> SlotFile:
    """Write what a slot holds to a file, with the `identity_of` its models; raises UserError."""
    copy = seating.copy_of_slot(slot)
    if copy is None:
        raise UserError(f"slot {slot} holds no conversation", "it is unused, or has given way to others")
    try:
        save_copy(path, copy, models(copy.adapters))
    except OSError as error:
        raise UserError(f"slot {slot} cannot be saved as {path.name}: {error.strerror or error}") from None
    return SlotFile(len(copy.tokens), path.stat().st_size)


def restore_slot(
    seating: Seating[CostedEngine], models: Sequence[str], slot: int, path: Path, context: int
) -> SlotFile:
    """Put the conversation of a file into a slot; raises UserError for one that does not fit the models.

    Whatever fails, the slot is usable then: it holds what it held before, or nothing.
    """
    name = path.name
    try:
        check_regular(path.lstat(), name)  # of a link, nothing is read
        size = path.stat().st_size
        copy = read_copy(path, models, "", state_memory, lambda: True)
    except OSError as error:
        raise UserError(f"there is no saved slot {name}: {error.strerror or error}") from None
    except DamagedFileError as error:
        hint = "save it again, with these models, cache types and LoRA adapters"
        told = (
            str(error).replace(str(path), name).replace("another model", "another model or of other settings")
        )
        raise UserError(told, hint) from None
    if copy is None:
        raise EngineError(f"there is not enough memory to restore {name}")
    if len(copy.tokens) > context:
        problem = f"{name} has {len(copy.tokens):,} tokens, and the context {context:,}"
        raise UserError(problem, "start the server with a larger -c")
    seating.fill_slot(slot, copy)
    return SlotFile(len(copy.tokens), size)
