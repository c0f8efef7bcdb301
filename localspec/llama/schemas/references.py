"""Where the parts of a JSON schema stand, and what its references point to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard
from urllib.parse import urljoin

from localspec.errors import UserError

if TYPE_CHECKING:
    from jsonschema_rs import Registry

JsonObject: TypeAlias = dict[str, Any]
Schema: TypeAlias = JsonObject | bool

_ROOT = "json-schema:///"  # the address of a schema that gives itself none
_OLD_DRAFTS = ("draft-03", "draft-04", "draft-05", "draft-06", "draft-07")
_NEW_DRAFTS = ("draft/2019-09", "draft/2020-12")
_LAST_OLD = 7  # as jsonschema_rs counts them


class SchemaError(UserError):
    """A JSON schema, or that of `whose`, cannot be used because of what stands at a path."""

    def __init__(self, path: str, reason: str, whose: str = "") -> None:
        self.path = path
        self.reason = " ".join(reason.split())
        of = f" of {whose}" if whose else ""
        super().__init__(
            f"the JSON schema{of} cannot be used: at {path}: {self.reason}", "change that part of it"
        )


def is_object(value: object) -> TypeGuard[JsonObject]:
    """Return whether a JSON value is an object."""
    return isinstance(value, dict)


def without_unknown_dialect(schema: JsonObject) -> JsonObject:
    """Return a schema without the address of a dialect that is none of the drafts: it reads as the newest."""
    dialect = str(schema.get("$schema"))
    if any(draft in dialect for draft in (*_OLD_DRAFTS, *_NEW_DRAFTS)):
        return schema
    return {name: value for name, value in schema.items() if name != "$schema"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a schema stands: its JSON pointer, and the address to which its references are relative."""

    path: str
    base: str
    is_old: bool  # of a draft before 2019-09

    def inside(self, *steps: str | int) -> Place:
        """Return the place of a part."""
        tail = "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)
        return replace(self, path=self.path + tail)

    def within(self, schema: JsonObject) -> Place:
        """Return the same place with the address that a schema gives itself."""
        given = schema.get("$id")
        return replace(self, base=urljoin(self.base, given)) if isinstance(given, str) else self


class References:
    """The references of one schema; none leads out of it."""

    def __init__(self, schema: object) -> None:
        """Prepare nothing yet."""
        self._schema = schema
        dialect = str(schema.get("$schema")) if is_object(schema) else ""
        self.root = Place("#", _ROOT, any(draft in dialect for draft in _OLD_DRAFTS))

    def follow(self, reference: object, place: Place) -> tuple[object, Place]:
        """Return the target of a reference and its place; raises SchemaError if it lies elsewhere."""
        from jsonschema_rs import ReferencingError

        try:
            found = self._registry.resolver(place.base).lookup(str(reference))
        except (ReferencingError, ValueError):
            raise SchemaError(place.path, f"{reference} is not in the schema itself") from None
        contents = found.contents
        is_old = found.draft <= _LAST_OLD
        if is_object(contents):  # its address is known already
            contents = {name: value for name, value in contents.items() if name != "$id"}
        return contents, Place(str(reference), found.resolver.base_uri, is_old)

    @cached_property
    def _registry(self) -> Registry:
        from jsonschema_rs import Registry

        schema = self._schema if is_object(self._schema) else {}
        return Registry([(_ROOT, without_unknown_dialect(schema))])
