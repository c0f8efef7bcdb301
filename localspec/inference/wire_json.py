"""What open models take and give as JSON: safe to read from whoever sends it, which a pickle is not."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TypeVar

from cattrs import BaseValidationError
from cattrs.preconf.json import JsonConverter, make_converter
from cattrs.strategies import configure_tagged_union

from localspec.errors import UserError
from localspec.types import GenerationEvent, Message

T = TypeVar("T")
_Prompt = tuple[Message, ...] | str


def plain(value: object, kind: object = None) -> dict[str, object]:
    """Return a value as an object of JSON; `kind` is its type where that is a choice of several."""
    found: dict[str, object] = _converter().unstructure(value, kind or type(value))
    return found


def to_json(value: object, kind: object = None) -> str:
    """Return a value as JSON; `kind` is its type where that is a choice of several."""
    return _converter().dumps(value, unstructure_as=kind or type(value))


def from_json(text: str | bytes, kind: type[T]) -> T:
    """Return the value of a type that JSON stands for; raises UserError."""
    try:
        return _converter().loads(text, kind)
    except (BaseValidationError, ValueError, TypeError, KeyError, RecursionError) as error:
        what = getattr(kind, "__name__", "an event")
        raise UserError(
            f"what was sent is no {what}", "both sides need the same version of LocalSpec"
        ) from error


@cache
def _converter() -> JsonConverter:
    made = make_converter()
    made.register_structure_hook(Path, lambda value, _kind: Path(str(value)))
    made.register_unstructure_hook(Path, str)
    made.register_structure_hook_func(
        lambda kind: kind == _Prompt,
        lambda value, _kind: value if isinstance(value, str) else made.structure(value, tuple[Message, ...]),
    )
    configure_tagged_union(GenerationEvent, made)
    return made
